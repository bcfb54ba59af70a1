"""Facts about the installed torch, read from its files, since importing torch takes two seconds."""

import re
import runpy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# This file has the flags that torch passes on to code compiled against it.
TARGETS = Path("share/cmake/Caffe2/Caffe2Targets.cmake")
BACKENDS = {"gloo": "USE_C10D_GLOO", "nccl": "USE_C10D_NCCL"}


@dataclass(frozen=True)
class TorchBuild:
    """The same facts that torch tells once it is imported."""

    version: str
    has_gpu_code: bool
    backends: tuple[str, ...]


def torch_build() -> TorchBuild | None:
    """The installed torch; None if there is none."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    try:
        facts = runpy.run_path(str(folder / "version.py"))
        flags = set(re.findall(r"\w+", (folder / TARGETS).read_text()))
    except OSError:
        return _from_import()  # this build keeps its files elsewhere
    backends = tuple(name for name, flag in BACKENDS.items() if flag in flags)
    return TorchBuild(facts["__version__"], any(facts.get(name) for name in ("cuda", "hip", "xpu")), backends)


def _from_import() -> TorchBuild:
    import torch
    import torch.distributed as dist

    checks = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available}
    backends = tuple(name for name, is_available in checks.items() if is_available())
    return TorchBuild(str(torch.__version__), bool(torch.version.cuda or torch.version.hip), backends)
