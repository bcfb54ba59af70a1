"""What the installed torch is, read from its files: to import it takes two seconds."""

import re
import runpy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

# In the flags that torch passes on to what is compiled against it.
TARGETS = Path("share/cmake/Caffe2/Caffe2Targets.cmake")
BACKENDS = {"gloo": "USE_C10D_GLOO", "nccl": "USE_C10D_NCCL"}


@dataclass(frozen=True)
class TorchBuild:
    """Equal to what torch says of itself once it is imported."""

    version: str
    has_gpu_code: bool
    backends: tuple[str, ...]


def torch_build() -> TorchBuild | None:
    """None where there is no torch."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    try:
        facts = runpy.run_path(str(folder / "version.py"))
        flags = set(re.findall(r"\w+", (folder / TARGETS).read_text()))
    except OSError:
        return _asked()  # a build that keeps them elsewhere
    backends = tuple(name for name, flag in BACKENDS.items() if flag in flags)
    return TorchBuild(facts["__version__"], any(facts.get(name) for name in ("cuda", "hip", "xpu")), backends)


def _asked() -> TorchBuild:
    import torch
    import torch.distributed as dist

    offered = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available}
    backends = tuple(name for name, there in offered.items() if there())
    return TorchBuild(str(torch.__version__), bool(torch.version.cuda or torch.version.hip), backends)
