"""The commands that pages show: all are read and checked; each page's run in order, with a small graph.

Commands on emulated hosts run where they are possible; those and long ones are slow tests.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tests.docs.pages import BLOCKS, FILES, ROOT, of_page, pages_with
from thinwire import graphs
from thinwire.cli import main
from thinwire.cli.commands import COMMANDS, PLANS, parsed
from thinwire.fullgraph.methods import METHODS
from thinwire.graphs.files import write_npz
from thinwire.launch import lab
from thinwire.prediction import even

GRAPH = "synthetic:nodes=1000,classes=4,features=16"
# A command within a sentence or a table, and what may stand there for a reader's own values.
WITHIN_TEXT = re.compile(r"`((?:thinwire|torchrun)\s[^`]+)`")
VALUES = {
    "METHOD": "sylvie",
    "FILE": "file",
    "RUN": "run",
    "[RUN...]": "run",
    "NAME": "sign",
    "ALPHA": "0.1",
    "R": "1gbit",
    "S": "1",
}
# Of a few seconds together; other pages' commands are slow.
QUICK = {"docs/graphs.md", "docs/crossmesh.md", "docs/codecs.md"}


def thinwire_words(words: list[str]) -> list[str] | None:
    """The words after `thinwire`, also those that torchrun hands on; None where another program is called."""
    if words[0] == "torchrun" and "-m" in words:
        words = words[words.index("-m") + 1 :]
    return words[1:] if words[0] == "thinwire" else None


def small(words: list[str]) -> list[str]:
    """The same command, on a small graph and for a few epochs, in parts as many as there are ranks."""
    ranks = option(words, "--hosts") or option(words, "--workers") or "2"
    words = [
        f"shards-{ranks}" if word == "shards" and words[at - 1] == "--data" else word for at, word in enumerate(words)
    ]
    if words[0] == "train":
        words = with_option(words, "--epochs", "4")
        return words if "--data" in words else [*words, "--data", GRAPH]
    if words[:2] == ["bench", "codec"]:
        return [*words, "--rows", "500", "--columns", "32", "--repeats", "1"]
    if words[0] == "plan" and (len(words) == 1 or words[1].startswith("--")):
        words = with_option(words, "--hosts", "2") if "--hosts" in words else words
        return words if "--data" in words else [*words, "--data", GRAPH]
    if words[0] == "partition" and words[1] == "synthetic":
        return ["partition", GRAPH, *words[2:]]
    return words


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words else ""


def with_option(words: list[str], name: str, value: str) -> list[str]:
    if name not in words:
        return [*words, name, value]
    at = words.index(name)
    return [*words[: at + 1], value, *words[at + 2 :]]


def emulates(words: list[str]) -> bool:
    """Whether it starts emulated hosts: `thinwire plan` of methods only counts with them."""
    return "--hosts" in words and not (words[0] == "plan" and words[1].startswith("--"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of a page find: a graph in three forms, the same in parts, measured wires."""
    tmp_path = tmp_path_factory.mktemp("files")
    graph = graphs.load(GRAPH)
    write_npz(tmp_path / "graph.npz", graph)
    np.savetxt(tmp_path / "edges.csv", graph.edge_index.T, fmt="%d", delimiter=",", header="source,target", comments="")
    nodes = np.column_stack([np.arange(graph.num_nodes), graph.y, graph.split])
    np.savetxt(tmp_path / "nodes.csv", nodes, fmt="%d", delimiter=",", header="id,label,split", comments="")
    for parts in (2, 4):
        graphs.prepare(GRAPH, graphs.Settings(parts=parts), tmp_path / f"shards-{parts}")
    shutil.copytree(tmp_path / "shards-2", tmp_path / "shards")
    (tmp_path / "profile.json").write_text(json.dumps(even(2, 125e6).to_json()))
    return tmp_path


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pages(*, slow: set[str] | None = None) -> list[object]:
    """Pages with commands as test parameters; those of `slow` are slow tests."""
    return [pytest.param(page, marks=[pytest.mark.slow] * (page in (slow or set()))) for page in pages_with("sh")]


@pytest.mark.parametrize("page", pages())
def test_commands_are_read(page: str) -> None:
    """Also those that are not run."""
    for block in BLOCKS:
        if (block.page, block.language) != (page, "sh"):
            continue
        for words in block.commands():
            called = thinwire_words(words)
            if called is not None:
                parsed(called)
            elif not block.not_run:
                check_other(words)


def commands_within(file: Path) -> list[str]:
    """Those between the blocks of a page, but for ones that are cut short (`...`, an option without its value)."""
    text = re.sub(r"(?ms)^```.*?^```$", "", file.read_text())
    commands = (" ".join(command.split()) for command in WITHIN_TEXT.findall(text))
    return [command for command in commands if " ..." not in command and not re.search(r" --\S+$", command)]


NOW = [file for file in (*FILES, ROOT / "CHANGELOG.md") if file.name != "log.md"]  # the log keeps its old words


@pytest.mark.parametrize("file", [file for file in NOW if commands_within(file)], ids=lambda file: file.name)
def test_commands_within_sentences_are_read(file: Path) -> None:
    for command in commands_within(file):
        words = thinwire_words([VALUES.get(word, word) for word in shlex.split(command)])
        assert words is not None, command
        if words[0] not in COMMANDS or not set(words[1:]) <= set(PLANS):  # more than a command's name
            parsed(words)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if fields(method)])
def test_a_method_s_options_stand_below_its_name(name: str) -> None:
    section = (ROOT / "docs" / "fullgraph.md").read_text().split(f"\n### {name}\n")[1].split("\n### ")[0]
    for field in fields(METHODS[name]):
        default = f" {field.default}`" if isinstance(field.default, int | float) else ""
        assert f"| `--{field.name.replace('_', '-')}{default or ' '}" in section, f"{field.name}{default}"


def check_other(words: list[str]) -> None:
    if words[0] == "torchrun":
        assert (ROOT / words[next(at for at, word in enumerate(words) if word.endswith(".py"))]).exists()
    elif words[0] == "make":
        assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in words[1:])
    else:
        raise AssertionError(f"{' '.join(words)}: nobody checks this; say why it is not run")


@pytest.mark.parametrize("page", pages(slow=set(pages_with("sh")) - QUICK))
@pytest.mark.timeout(400)
def test_commands_run(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in of_page(page, "sh"):
        for words in block.commands():
            called = thinwire_words(words)
            if called is None or emulates(called):
                continue
            if words[0] == "torchrun":
                run_torchrun(words, folder)
            else:
                main(small(called))
                capsys.readouterr()


@pytest.mark.slow
@pytest.mark.skipif(bool(lab.missing()), reason=lab.missing() or "")
@pytest.mark.parametrize("page", pages())
@pytest.mark.timeout(400)
def test_commands_on_emulated_hosts_run(page: str, folder: Path) -> None:
    for block in of_page(page, "sh"):
        for words in block.commands():
            called = thinwire_words(words)
            if called is not None and emulates(called):
                main(small(called))


def run_torchrun(words: list[str], folder: Path) -> None:
    at = words.index("-m") if "-m" in words else len(words)
    words = [*words[:at], *(["-m", "thinwire", *small(words[at + 2 :])] if at < len(words) else [])]
    command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
