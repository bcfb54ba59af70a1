"""What is imported when: only what is stated as a dependency, and by a command only what it needs."""

import ast
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import thinwire
from tests.test_layers import FILES, SOURCE, imported_modules
from thinwire.cli import torch_build

ROOT = Path(__file__).parent.parent
# Measured as time on the processor, which other work on the machine hardly changes.
MOST_S = 0.3
LOADED = "import json, sys\nfrom thinwire.cli import main\n{}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
# What some commands use where it is there, and say so where it is not.
OPTIONAL = {"dgl", "ogb", "sklearn", "tensorboard", "transformers"}


def loaded_by(*words: str, **environment: str) -> set[str]:
    """The modules that a command has imported once it is done, ranks that join a job of torchrun's included."""
    call = f"try:\n    main({list(words)!r})\nexcept SystemExit as left:\n    assert not left.code"
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(call)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def processor_s(*words: str) -> float:
    """Of the quickest of three: what is written to the cache of bytecode, and what disturbs, is not counted."""
    taken = []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        taken.append(used.ru_utime + used.ru_stime)
    return min(taken)


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("doctor",)])
def test_a_first_look_waits_for_no_torch(words: tuple[str, ...]) -> None:
    assert not {"torch", "numpy", "plotly", "scipy"} & loaded_by(*words)
    assert processor_s("-m", "thinwire", *words) - processor_s("-c", "pass") < MOST_S


LAZY = """
import sys, thinwire
assert not {"torch", "numpy"} & set(sys.modules)
thinwire.launch
assert "torch" not in sys.modules
thinwire.codecs, thinwire.Door, thinwire.init, thinwire.crossmesh, thinwire.gradients
assert not {"torch_geometric", "thinwire.fullgraph", "thinwire.graphs", "plotly"} & set(sys.modules)
assert all(getattr(thinwire, name) is not None for name in thinwire.__all__)
assert not hasattr(thinwire, "nothing")
"""


def test_a_name_of_the_package_is_imported_when_it_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_training_brings_nothing_of_what_it_does_not_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    job = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    modules = loaded_by("train", "--data", "synthetic:nodes=200", "--epochs", "1", **job)
    assert "thinwire.fullgraph.run" in modules  # the rank was in this process
    for other in ("scipy", "plotly", "thinwire.crossmesh", "thinwire.report", "thinwire.bench.harness"):
        assert other not in modules, other


def test_doctor_says_of_torch_what_torch_says() -> None:
    assert torch_build.torch_build() == torch_build._from_import()


def test_doctor_without_torch_says_how_to_get_it(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom thinwire.cli import doctor, main, torch_build\n"
        "torch_build.find_spec = lambda name: None\nsys.modules['torch'] = None\nmain(['doctor'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "not installed; pip install torch" in done.stdout


def test_what_is_imported_is_stated() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w.-]+", requirement)[0].lower().replace("-", "_") for requirement in stated}  # type: ignore[index]
    assert all(re.search(r">=\d", requirement) for requirement in stated), "a dependency has no lower bound"
    imported = {name for file in FILES for name in third_party(file)}
    assert imported - OPTIONAL == names
    assert imported >= {"torch", "scipy"}


def test_the_lowest_versions_are_tried() -> None:
    """`make test-lowest` installs these."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    stated = settings["project"]["dependencies"] + settings["build-system"]["requires"]
    tried = [line for line in (ROOT / "constraints-lowest.txt").read_text().splitlines() if not line.startswith("#")]
    assert {padded(requirement, ">=") for requirement in stated} == {padded(requirement, "==") for requirement in tried}


def padded(requirement: str, sign: str) -> tuple[str, tuple[int, ...]]:
    """13 and 13.0.0 are one version."""
    name, version = requirement.split(sign)
    numbers = [int(number) for number in version.split(".")]
    return name, tuple(numbers + [0] * (3 - len(numbers)))


def third_party(file: Path) -> Iterator[str]:
    for module in imported_modules(ast.parse(file.read_text())):
        name = module.split(".")[0]
        if name not in sys.stdlib_module_names and name != "thinwire":
            yield name


def test_the_version_is_the_installed_one() -> None:
    """It is written in one place, which the build reads."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in settings["project"]["dynamic"]
    source = ROOT / settings["tool"]["scikit-build"]["metadata"]["version"]["input"]
    assert source == SOURCE / "__init__.py"
    assert thinwire.__version__ in source.read_text()
