"""One name, one graph: a file, a folder, a data set, or a recipe for a synthetic one."""

from pathlib import Path

from thinwire.graphs import files, pyg, synthetic, text
from thinwire.graphs.graph import Graph, GraphError, check


def load(name: str, *, nodes: str | None = None) -> Graph:
    """The graph of this name, checked. `nodes` is the table of nodes that an edge list needs."""
    return check(_read(name, nodes))


def _read(name: str, nodes: str | None) -> Graph:
    path = Path(name)
    if name == synthetic.PREFIX or name.startswith(f"{synthetic.PREFIX}:"):
        return synthetic.generate(synthetic.parse(name))
    if not path.exists() and pyg.knows(name):
        return pyg.load_dataset(name)
    if not path.exists():
        known = ", ".join(["synthetic", *pyg.names()])
        raise GraphError(f"there is no file, folder or data set {name!r}; data sets are {known}")
    if path.suffix == ".npz":
        return files.read_npz(path)
    if path.is_dir():
        return files.read_folder(path)
    if path.suffix in text.SUFFIXES:
        if nodes is None:
            raise GraphError(f"{name} is an edge list; name its table of nodes too (--nodes FILE, docs/graphs.md)")
        return text.read_edge_list(path, Path(nodes))
    raise GraphError(f"{name}: give an .npz file, a folder of .npy files, or an edge list ({', '.join(text.SUFFIXES)})")
