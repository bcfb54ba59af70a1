"""Imports go one way: each layer says what it may import; only cli/ prints; nothing unpickles."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "thinwire"

# In words: cli, bench -> fullgraph minibatch crossmesh -> training -> gradients graphs -> codecs links launch ->
# artifacts. `gradients` is a technique by itself, and `training` sends weights' gradients through it.
FOUNDATION = {"artifacts", "checked", "later", "leaving", "native", "scratch"}
PARTS = {"codecs", "links", "launch"}
TECHNIQUES = {"fullgraph", "minibatch", "gradients", "crossmesh"}
MAY_IMPORT: dict[str, set[str]] = {
    "checked": set(),
    "later": set(),
    "leaving": set(),
    "native": set(),
    "scratch": set(),
    "artifacts": set(),
    "codecs": FOUNDATION,
    "links": FOUNDATION,
    "launch": FOUNDATION,
    "graphs": PARTS | FOUNDATION,
    "gradients": {"graphs"} | PARTS | FOUNDATION,
    "training": {"gradients", "graphs"} | PARTS | FOUNDATION,
    **{technique: {"training", "graphs"} | PARTS | FOUNDATION for technique in TECHNIQUES - {"gradients"}},
    "report": FOUNDATION,
    "prediction": TECHNIQUES | {"bench", "training", "graphs"} | PARTS | FOUNDATION,
    "bench": TECHNIQUES | {"training", "graphs"} | PARTS | FOUNDATION,
    "cli": TECHNIQUES | {"bench", "prediction", "report", "training", "graphs"} | PARTS | FOUNDATION,
    "__main__": {"cli"},
    "start": {"links", "launch"} | FOUNDATION,
    # What it offers, for readers and type checkers: it imports none of them before it is asked (test_imports.py).
    "__init__": {"later", "start", "graphs"} | TECHNIQUES | PARTS,
}
BANNED_NAMES = {"utils", "common", "core", "helpers", "misc"}

FILES = sorted(SOURCE.rglob("*.py"))


def layer_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer they reach"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def thinwire_layers(tree: ast.AST) -> set[str]:
    names = (module.split(".") for module in imported_modules(tree) if module.split(".")[0] == "thinwire")
    return {parts[1] for parts in names if len(parts) > 1 and parts[1] != "__version__"}


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 10
    assert {layer_of(file) for file in FILES} >= {"codecs", "bench", "cli", "artifacts"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_go_one_way(file: Path) -> None:
    layer = layer_of(file)
    assert layer in MAY_IMPORT, f"{layer} is a new layer: say in MAY_IMPORT what it may import"
    reached = thinwire_layers(ast.parse(file.read_text())) - {layer}
    assert reached <= MAY_IMPORT[layer], f"{layer} may not import {sorted(reached - MAY_IMPORT[layer])}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_house_rules(file: Path) -> None:
    tree = ast.parse(file.read_text())
    layer = layer_of(file)
    assert not BANNED_NAMES & {part.removesuffix(".py") for part in file.relative_to(SOURCE).parts}
    modules = set(imported_modules(tree))
    assert not any(module.split(".")[0] in {"pickle", "dill", "cloudpickle"} for module in modules)
    if layer != "cli":
        calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
        assert not any(isinstance(call, ast.Name) and call.id == "print" for call in calls), "only cli/ prints"
        assert not any(module.split(".")[0] == "rich" for module in modules), "only cli/ prints"
    if layer == "codecs":
        assert not any(module.startswith("torch.distributed") for module in modules), "codecs know no network"


def hidden_modules(init: Path, package: str) -> set[str]:
    """Modules of a package that a name it takes from elsewhere hides: `thinwire.x.plan` would not be that module."""
    modules = {path.stem for path in init.parent.iterdir()}
    imports = (node for node in ast.walk(ast.parse(init.read_text())) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imports if node.module != package for alias in node.names} & modules


PACKAGES = sorted(SOURCE.rglob("__init__.py"))


@pytest.mark.parametrize("init", PACKAGES, ids=lambda init: init.parent.name)
def test_no_name_of_a_package_hides_a_module(init: Path) -> None:
    package = ".".join(("thinwire", *init.parent.relative_to(SOURCE).parts))
    assert hidden_modules(init, package) == set()


def test_the_check_sees_a_hidden_module(tmp_path: Path) -> None:
    (tmp_path / "plan.py").touch()
    (tmp_path / "costs.py").touch()
    init = tmp_path / "__init__.py"
    init.write_text("from thinwire.x import costs\nfrom thinwire.x.plan import Plan, plan\n")
    assert hidden_modules(init, "thinwire.x") == {"plan"}


def test_the_check_sees_a_wrong_import() -> None:
    tree = ast.parse("from thinwire import bench\nfrom thinwire.links.cost import seconds\nimport thinwire.cli\n")
    assert thinwire_layers(tree) == {"bench", "links", "cli"}
