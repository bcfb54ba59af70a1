"""`thinwire doctor`."""

import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console
from rich.table import Table

from thinwire import __version__, artifacts
from thinwire.cli.torch_build import TorchBuild, torch_build
from thinwire.launch import lab
from thinwire.native import native_module
from thinwire.training import machine

GOOD, MISSING, NOTE = "ok", "missing", "note"
COLOURS = {GOOD: "green", MISSING: "yellow", NOTE: "cyan"}
LITTLE_MEMORY_BYTES = 4e9
# Device files of the GPU drivers that torch supports on Linux (CUDA, ROCm, and either of them in WSL). If none exists,
# torch need not be imported to ask it.
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True)
class Finding:
    """One line: what was checked, what was found, and what to do if it falls short."""

    what: str
    state: str
    found: str
    advice: str = ""


@dataclass
class Doctor:
    """Check what this machine has, and say what to do about what is missing.

    thinwire doctor
    """

    joins: ClassVar[bool] = False
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the findings to this file too."""

    def verify(self) -> None:
        if self.json is not None:
            artifacts.check_writable(self.json)

    def run(self, console: Console) -> None:
        all_findings = findings()
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for finding in all_findings:
            text = f"{finding.found}; {finding.advice}" if finding.advice else finding.found
            table.add_row(finding.what, f"[{COLOURS[finding.state]}]{finding.state}[/]", text)
        console.print(table)
        if self.json is not None:
            stamp = artifacts.stamp(seed=0, world_size=1)
            artifacts.write_json(self.json, {**stamp, "findings": [asdict(finding) for finding in all_findings]})


def findings() -> list[Finding]:
    """All findings, in the order in which a newcomer needs them."""
    build = torch_build()
    basics = [
        Finding("thinwire", GOOD, f"{__version__}, Python {platform.python_version()}, {platform.system()}"),
        _torch(build),
        _native(),
        _cores(),
        _memory(),
    ]
    if build is not None:
        basics += [_gpus(build), _backends(build)]
    return [*basics, _emulation()]


def _torch(build: TorchBuild | None) -> Finding:
    if build is None:
        return Finding("torch", MISSING, "not installed", "pip install torch==2.13.0")
    return Finding("torch", GOOD, build.version)


def _native() -> Finding:
    module = native_module()
    if module is None:
        return Finding("kernels", MISSING, "torch twins", "reinstall with a C++ compiler for kernels many times faster")
    return Finding("kernels", GOOD, f"native, {module.isa()}")


def _cores() -> Finding:
    count = machine.cores()
    if count == 1:
        return Finding("cores", NOTE, "1", "ranks will take turns on it, and nothing can hide behind anything")
    return Finding("cores", GOOD, f"{count}; ranks use one thread each where they fill the cores")


def _memory() -> Finding:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return Finding("memory", NOTE, "not known on this system")
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free, total = (1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    text = f"{free / 1e9:.1f} GB free of {total / 1e9:.1f}"
    if free < LITTLE_MEMORY_BYTES:
        return Finding("memory", NOTE, text, "use fewer --workers, or a smaller graph, for a start")
    return Finding("memory", GOOD, text)


def _gpus(build: TorchBuild) -> Finding:
    none = Finding("GPUs", NOTE, "none; all runs on the CPU")
    if sys.platform == "linux" and not any(Path(driver).exists() for driver in DRIVERS):
        return none
    if not build.has_gpu_code:
        advice = "install a torch that was built for them" if sys.platform == "linux" else ""
        return Finding("GPUs", NOTE, "none that this torch has code for; all runs on the CPU", advice)
    import torch  # only torch knows whether the driver fits its build

    if not torch.cuda.is_available():
        return none
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding("GPUs", GOOD, ", ".join(names))


def _backends(build: TorchBuild) -> Finding:
    if "gloo" not in build.backends:
        text = ", ".join(build.backends) or "none"
        return Finding("backends", MISSING, text, "install a torch that was built with gloo")
    return Finding("backends", GOOD, ", ".join(build.backends))


def _emulation() -> Finding:
    problem = lab.missing()
    if problem is not None:
        return Finding("emulated hosts", MISSING, "--hosts and `bench CASE.toml` can't run here", problem)
    return Finding("emulated hosts", GOOD, f"root, {shutil.which('ip')}, {shutil.which('tc')}")
