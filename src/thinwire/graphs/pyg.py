"""Graphs from PyTorch Geometric: a `Data` object, or a data set by name, downloaded by its own loader."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.graphs.graph import TEST, TRAIN, UNUSED, VALIDATION, Array, Graph, GraphError

# Where data sets are kept. THINWIRE_DATA names another folder.
CACHE = Path("~/.cache/thinwire")
SIMPLE = {
    "reddit": "Reddit",
    "yelp": "Yelp",
    "flickr": "Flickr",
    "amazon-products": "AmazonProducts",
    "reddit2": "Reddit2",
}
FAMILIES = {"planetoid": "Planetoid", "coauthor": "Coauthor", "amazon": "Amazon", "citationfull": "CitationFull"}
MEMBERS = {
    "planetoid": ("cora", "citeseer", "pubmed"),
    "coauthor": ("cs", "physics"),
    "amazon": ("computers", "photo"),
    "citationfull": ("cora", "cora_ml", "citeseer", "dblp", "pubmed"),
}
OGB = "ogbn-"
# Later ones win where masks overlap.
MASKS = {"test_mask": TEST, "val_mask": VALIDATION, "train_mask": TRAIN}
TAKEN = ("x", "edge_index", "y", "edge_weight", "edge_attr", "split", *MASKS)


def knows(name: str) -> bool:
    return name in SIMPLE or name.partition(":")[0] in FAMILIES or name.startswith(OGB)


def names() -> list[str]:
    return ["planetoid:cora", "planetoid:citeseer", "planetoid:pubmed", *SIMPLE, "ogbn-arxiv", "ogbn-products"]


def load_dataset(name: str) -> Graph:
    family, _, member = name.partition(":")
    if family in MEMBERS and member not in MEMBERS[family]:
        raise GraphError(f"{name}: give one of {', '.join(f'{family}:{known}' for known in MEMBERS[family])}")
    root = Path(os.environ.get("THINWIRE_DATA") or CACHE).expanduser() / name.replace(":", "-")
    try:
        data = _ogb(name, root) if name.startswith(OGB) else _dataset(family, member, root)
    except GraphError:
        raise
    except Exception as error:  # whatever the network, an archive or another library's loader comes up with
        raise GraphError(
            f"{name}: could not be fetched ({type(error).__name__}: {error}). Without a network: run `thinwire "
            f"partition {name} --out shards` where there is one and copy the folder, or copy {root} from there, or "
            "set THINWIRE_DATA to the folder that holds it"
        ) from error
    return from_data(data, source=name)


def from_data(data: Any, *, source: str = "Data") -> Graph:
    """A `torch_geometric.data.Data` with x, edge_index, y and train_mask, val_mask, test_mask (or split)."""
    for name in ("x", "edge_index", "y"):
        if getattr(data, name, None) is None:
            raise GraphError(f"{source}: no {name}; a graph needs x, edge_index, y and train_mask (or split)")
    arrays = {name: _array(getattr(data, name, None), name, source) for name in TAKEN}
    y = arrays["y"]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "f":
        # As in Yelp: zeros and ones as floats. NaN marks nodes without a label.
        whole = np.nan_to_num(y, nan=-1 if y.ndim == 1 else 0)
        if (whole != np.floor(whole)).any():
            raise GraphError(f"{source}: y holds fractions; classes are whole numbers")
        y = whole.astype(np.int64)
    weight, attr = arrays["edge_weight"], arrays["edge_attr"]
    if weight is None and attr is not None and attr.ndim == 1:
        weight, attr = attr, None
    return Graph(
        edge_index=arrays["edge_index"],
        x=arrays["x"],
        y=y,
        split=_split(arrays, len(y), source),
        edge_weight=None if weight is None else weight.astype(np.float32),
        edge_attr=None if attr is None else attr.astype(np.float32),
        source=source,
    )


def _split(arrays: dict[str, Any], num_nodes: int, source: str) -> Array:
    if arrays["split"] is not None:
        return arrays["split"]
    split = np.full(num_nodes, UNUSED, dtype=np.uint8)
    masks = [(arrays[name], name, value) for name, value in MASKS.items() if arrays[name] is not None]
    if not masks:
        # Coauthor, Amazon and their like come without.
        warnings.warn(f"{source} has no split: drawn at random, 60/20/20, seed 0", stacklevel=2)
        split[:] = np.random.default_rng(0).choice([TRAIN, VALIDATION, TEST], num_nodes, p=[0.6, 0.2, 0.2])
    for mask, name, value in masks:
        if mask.ndim != 1:
            raise GraphError(f"{source}: {name} has {mask.shape[1]} columns, a split each; keep one: data.{name}[:, 0]")
        if len(mask) != num_nodes:
            raise GraphError(f"{source}: {name} has {len(mask)} entries for {num_nodes} nodes")
        split[mask.astype(bool)] = value
    return split


def _dataset(family: str, member: str, root: Path) -> Any:
    import torch_geometric.datasets as datasets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make: Callable[..., Any] = getattr(datasets, SIMPLE.get(family) or FAMILIES[family])
        return (make(str(root), member) if family in FAMILIES else make(str(root)))[0]


def _ogb(name: str, root: Path) -> Any:
    try:
        from ogb.nodeproppred import PygNodePropPredDataset
    except ImportError as error:
        raise GraphError(f"{name}: needs the package ogb; `pip install ogb`") from error
    dataset = PygNodePropPredDataset(name, str(root))
    data = dataset[0]
    places = dataset.get_idx_split()
    split = np.full(data.num_nodes, UNUSED, dtype=np.uint8)
    for word, value in (("train", TRAIN), ("valid", VALIDATION), ("test", TEST)):
        split[places[word].numpy()] = value
    data.split = split
    return data


def _array(value: Any, name: str, source: str) -> Any:
    if value is None or isinstance(value, np.ndarray):
        return value
    try:
        return value.detach().cpu().numpy()
    except (AttributeError, TypeError, RuntimeError) as error:
        raise GraphError(f"{source}: {name} is no plain tensor ({error}); give a dense one of a usual type") from None
