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
OGB = "ogbn-"


def knows(name: str) -> bool:
    return name in SIMPLE or name.partition(":")[0] in FAMILIES or name.startswith(OGB)


def names() -> list[str]:
    return ["planetoid:cora", "planetoid:citeseer", "planetoid:pubmed", *SIMPLE, "ogbn-arxiv", "ogbn-products"]


def load_dataset(name: str) -> Graph:
    root = Path(os.environ.get("THINWIRE_DATA") or CACHE).expanduser() / name.replace(":", "-")
    make = _ogb if name.startswith(OGB) else _dataset
    try:
        return make(name, root)
    except (OSError, RuntimeError) as error:  # urllib's and aiohttp's errors are OSErrors
        raise GraphError(
            f"{name}: could not be fetched ({error}). Without a network: run `thinwire partition {name} --out shards` "
            f"where there is one and copy the folder, or put the data set's raw files into {root}, or set "
            "THINWIRE_DATA to the folder that has them"
        ) from error


def from_data(data: Any, *, source: str = "Data") -> Graph:
    """A `torch_geometric.data.Data` with x, edge_index, y and train_mask, val_mask, test_mask (or split)."""
    for name in ("x", "edge_index", "y"):
        if getattr(data, name, None) is None:
            raise GraphError(f"{source}: no {name}; a graph needs x, edge_index, y and train_mask (or split)")
    y = _array(data.y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "f":
        # As in Yelp: zeros and ones as floats. NaN marks nodes without a label.
        whole = np.nan_to_num(y, nan=-1 if y.ndim == 1 else 0)
        if (whole != np.floor(whole)).any():
            raise GraphError(f"{source}: y holds fractions; classes are whole numbers")
        y = whole.astype(np.int64)
    if y.ndim == 2:
        y = y.astype(np.uint8)
    weight, attr = (_array(getattr(data, name, None)) for name in ("edge_weight", "edge_attr"))
    if weight is None and attr is not None and attr.ndim == 1:
        weight, attr = attr, None
    return Graph(
        edge_index=_array(data.edge_index),
        x=_array(data.x),
        y=y,
        split=_split(data, len(y), source),
        edge_weight=None if weight is None else weight.astype(np.float32),
        edge_attr=None if attr is None else attr.astype(np.float32),
        source=source,
    )


def _split(data: Any, num_nodes: int, source: str) -> Array:
    given = getattr(data, "split", None)
    if given is not None:
        return _array(given)
    split = np.full(num_nodes, UNUSED, dtype=np.uint8)
    for name, value in (("test_mask", TEST), ("val_mask", VALIDATION), ("train_mask", TRAIN)):
        mask = _array(getattr(data, name, None))
        if mask is None:
            continue
        if mask.ndim != 1:
            raise GraphError(f"{source}: {name} has {mask.shape[1]} columns, a split each; keep one: data.{name}[:, 0]")
        split[mask.astype(bool)] = value
    return split


def _dataset(name: str, root: Path) -> Graph:
    import torch_geometric.datasets as datasets

    family, _, member = name.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make: Callable[..., Any] = getattr(datasets, SIMPLE.get(family) or FAMILIES[family])
        dataset = make(str(root), member) if family in FAMILIES else make(str(root))
    return from_data(dataset[0], source=name)


def _ogb(name: str, root: Path) -> Graph:
    try:
        from ogb.nodeproppred import PygNodePropPredDataset
    except ImportError as error:
        raise GraphError(f"{name}: needs the package ogb; `pip install thinwire[ogb]`") from error
    dataset = PygNodePropPredDataset(name, str(root))
    data = dataset[0]
    places = dataset.get_idx_split()
    split = np.full(data.num_nodes, UNUSED, dtype=np.uint8)
    for word, value in (("train", TRAIN), ("valid", VALIDATION), ("test", TEST)):
        split[places[word].numpy()] = value
    data.split = split
    return from_data(data, source=name)


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
