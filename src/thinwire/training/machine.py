"""Facts about the machine that a run ran on, for its plan.json."""

import os
import platform
from pathlib import Path
from typing import Any

from thinwire.native import native_module


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_cores() -> int | None:
    """The cores that all ranks share if they are on one machine; None if a torchrun job has several machines."""
    ranks, here = (os.environ.get(name) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return cores() if ranks == here else None


def facts() -> dict[str, Any]:
    """This machine's software and hardware, for plan.json."""
    import torch  # imported here: counting cores does not need it

    module = native_module()
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "kernels": f"native, {module.isa()}" if module is not None else "torch twins",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _cpu() -> str:
    """The processor's name if the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
