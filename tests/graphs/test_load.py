"""Loading: every source gives the same kind of graph, and what can't be right is named by file, array and index."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thinwire.graphs import Graph, GraphError, Settings, assign, check, from_data, glue, load, split
from thinwire.graphs.files import write_npz

DATA = Path(__file__).parent.parent.parent.parent / "shared" / "data"


def small(**changes: Any) -> Graph:
    graph = Graph(
        edge_index=np.array([[0, 1, 2, 2], [1, 0, 2, 0]]),
        x=np.arange(6, dtype=np.float32).reshape(3, 2),
        y=np.array([0, 1, 1]),
        split=np.array([0, 1, 2], dtype=np.uint8),
        source="small.npz",
    )
    return replace(graph, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"edge_index": np.array([[0, 1, 9], [1, 0, 0]])},
            r"small\.npz: edge_index\[0, 2\] is 9; nodes are numbered 0 to 2",
        ),
        ({"edge_index": np.array([[0], [-1]])}, r"edge_index\[1, 0\] is -1"),
        ({"edge_index": np.zeros((3, 4), int)}, r"edge_index is int64 \[3, 4\]; give integers \[2, edges\]"),
        ({"edge_index": np.zeros((2, 4))}, "edge_index is float64"),
        ({"x": np.array([[0, 1], [2, np.nan], [4, 5]], dtype=np.float16)}, r"x\[1, 1\] is not finite"),
        ({"x": np.zeros(3, np.float32)}, "give floats"),
        ({"y": np.array([0, 1])}, "y has 2 rows and x has 3"),
        ({"y": np.array([0, -1, 0])}, r"y\[1\] is -1"),
        ({"y": np.array([[0, 1], [2, 0], [0, 0]])}, r"y\[1\] has other values"),
        ({"y": np.zeros(3)}, "y is float64"),
        ({"split": np.array([0, 1, 4], np.uint8)}, r"split\[2\] is 4; give 0 train"),
        ({"split": np.array([1, 1, 2], np.uint8)}, "split has no training node"),
        ({"split": np.array([0], np.uint8)}, "split has 1 rows"),
        ({"split": np.array([True, False, False])}, "split is bool"),
        ({"edge_weight": np.array([1, 1e300, 1, 1])}, r"edge_weight\[1\] is not finite in float32"),
        ({"y": np.array([[0, 256], [1, 0], [0, 0]])}, r"y\[0\] has other values"),
        ({"edge_weight": np.ones(3, np.float32)}, "edge_weight has 3 rows for 4 edges"),
        ({"edge_weight": np.array([1, np.inf, 1, 1])}, r"edge_weight\[1\] is not finite"),
        ({"edge_attr": np.ones(4, np.float32)}, "edge_attr is float32"),
        ({"classes": ("only",)}, r"y\[1\] is 1; classes are numbered 0 to 0"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check(small(**changes))


def test_an_unused_node_needs_no_label() -> None:
    check(small(y=np.array([0, 1, -1]), split=np.array([0, 1, 3], np.uint8)))


def test_edge_lists(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("id,label,split,f0,f1\n10,cat,train,0,1\n7,dog,validation,2,3\n30,dog,test,4,5\n")
    for text in ("10,7\n7,10\n30,30\n30,10\n", "source\ttarget\n10\t7\n# a remark\n\n7 10\n30 30\n30 10\n"):
        edges = tmp_path / "edges.csv"
        edges.write_text(text)
        graph = load(str(edges), nodes=str(nodes))
        np.testing.assert_array_equal(graph.edge_index, small().edge_index)
        np.testing.assert_array_equal(graph.x, small().x)
        assert graph.y.tolist() == [0, 1, 1]
        assert graph.classes == ("cat", "dog")
        assert graph.split.tolist() == [0, 1, 2]
    edges.write_text("10,7,0.5\n7,10,2\n")
    weights = load(str(edges), nodes=str(nodes)).edge_weight
    assert weights is not None
    assert weights.tolist() == [0.5, 2.0]
    write_npz(tmp_path / "nodes.npz", small())
    edges.write_text("0,1\n")
    assert load(str(edges), nodes=str(tmp_path / "nodes.npz")).num_edges == 1
    edges.write_text("")
    assert load(str(edges), nodes=str(nodes)).num_edges == 0


@pytest.mark.parametrize(
    ("edges", "nodes", "message"),
    [
        ("0,1\n1,5\n", "label,split,f\n0,0,1\n1,1,1\n", r"edge_index\[1, 1\] is 5"),
        ("0,1\n1,x\n", "label,split,f\n0,0,1\n1,1,1\n", "give a line an edge"),
        ("0,1.5\n", "label,split,f\n0,0,1\n1,1,1\n", "could not convert string '1.5'"),
        ("0 1 2 3\n", "label,split,f\n0,0,1\n1,1,1\n", "4 columns"),
        ("0,1\n", "label,f\n0,1\n", "name the columns `label` and `split`"),
        ("0,1\n", "label,split,f\n0,0\n", "row 0 has 2 columns, the header 3"),
        ("0,1\n", "label,split,f\n0,0,1\n1,maybe,1\n", r"split\[1\] is 'maybe'"),
        ("0,1\n", "label,split,f\n0,0,1\n1,1,much\n", r"f\[1\] is 'much'; give a number"),
        ("0,1\n", "id,label,split,f\n1.5,0,0,1\n0,1,1,1\n", r"id\[0\] is '1.5'; give a whole number"),
        ("0,1\n", "label,split,f,f\n0,0,1,2\n1,1,1,2\n", "two columns are called 'f'"),
        ("O,1\n1,0\n", "label,split,f\n0,0,1\n1,1,1\n", "could not convert string 'O'"),
        ("0,1\n", "id,label,split,f\n0,0,0,1\n0,1,1,1\n", "id 0 stands there twice"),
        ("0,1\n", "id,label,split,f\n0,0,0,1\n3,1,1,1\n", r"edge 0 is \[0, 1\], and .* has no such id"),
    ],
)
def test_mistakes_in_text_are_named(edges: str, nodes: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text(edges)
    (tmp_path / "nodes.csv").write_text(nodes)
    with pytest.raises(GraphError, match=message):
        load(str(tmp_path / "edges.csv"), nodes=str(tmp_path / "nodes.csv"))


def test_marks_ends_of_line_and_large_ids_do_no_harm(tmp_path: Path) -> None:
    edges, nodes = tmp_path / "edges.csv", tmp_path / "nodes.csv"
    big = 2**53
    edges.write_bytes(b"\xef\xbb\xbf" + f"{big},{big + 1}\r\n{big + 1},{big}\r\n".encode())
    nodes.write_bytes(b"\xef\xbb\xbf" + f"id,label,split,f\r\n{big},0,0,1\r\n{big + 1},1,1,2\r\n".encode())
    graph = load(str(edges), nodes=str(nodes))
    assert graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert graph.x.tolist() == [[1.0], [2.0]]
    nodes.write_bytes("label,split,f\n0,0,1\nä,1,2\n".encode("latin-1"))
    with pytest.raises(GraphError, match=r"nodes\.csv: not UTF-8"):
        load(str(edges), nodes=str(nodes))


@pytest.mark.parametrize("ids", [np.uint8, np.uint16, np.uint64, ">i4", np.int16])
@pytest.mark.parametrize("labels", [np.uint8, np.uint64, ">i8", np.int8])
@pytest.mark.parametrize("floats", [np.float64, ">f4", np.longdouble, ">f2"])
def test_any_type_becomes_one_that_can_be_used(ids: Any, labels: Any, floats: Any) -> None:
    plain = small()
    odd = small(
        edge_index=plain.edge_index.astype(ids),
        y=plain.y.astype(labels),
        x=plain.x.astype(floats),
        edge_weight=np.ones(4, dtype=floats),
    )
    graph = check(odd)
    np.testing.assert_array_equal(graph.edge_index, plain.edge_index)
    np.testing.assert_array_equal(graph.x, plain.x)
    assert graph.num_classes == 2
    shards = list(split(graph, assign(graph, Settings(2, "range")), 2))
    np.testing.assert_array_equal(glue(shards).y, plain.y)


def test_a_file_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "ogbn-mine.npz", small())
    monkeypatch.chdir(tmp_path)
    assert load("ogbn-mine.npz").num_nodes == 3


def test_names_that_are_nothing(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no file, folder or data set 'cora'; data sets are synthetic, planetoid:cora"):
        load("cora")
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(GraphError, match="name its table of nodes too"):
        load(str(tmp_path / "edges.csv"))
    (tmp_path / "graph.xlsx").write_text("")
    with pytest.raises(GraphError, match=r"give an \.npz file"):
        load(str(tmp_path / "graph.xlsx"))
    np.savez(tmp_path / "half.npz", x=np.zeros((2, 2)))
    with pytest.raises(GraphError, match="no edge_index, y, split"):
        load(str(tmp_path / "half.npz"))


class Bag:
    """What looks like a PyG Data."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def test_data_objects() -> None:
    values: dict[str, Any] = {
        "x": torch.zeros(3, 2),
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "y": torch.tensor([[0], [1], [0]]),
        "train_mask": torch.tensor([True, False, False]),
        "val_mask": torch.tensor([False, True, False]),
        "edge_attr": torch.tensor([0.5, 1.0]),
    }
    graph = check(from_data(Bag(**values)))
    assert graph.split.tolist() == [0, 1, 3]
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [0.5, 1.0]
    several = check(from_data(Bag(**{**values, "y": torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])})))
    assert several.multi_label
    with pytest.raises(GraphError, match=r"train_mask has 10 columns.*keep one"):
        from_data(Bag(**{**values, "train_mask": torch.zeros(3, 10, dtype=torch.bool)}))
    with pytest.raises(GraphError, match="train_mask has 2 entries for 3 nodes"):
        from_data(Bag(**{**values, "train_mask": torch.ones(2, dtype=torch.bool)}))
    with pytest.raises(GraphError, match="x is no plain tensor"):
        from_data(Bag(**{**values, "x": torch.zeros(3, 2, dtype=torch.bfloat16)}))
    with pytest.warns(UserWarning, match="has no split: drawn at random"):
        drawn = from_data(Bag(**{**values, "train_mask": None, "val_mask": None}))
    assert set(drawn.split.tolist()) <= {0, 1, 2}
    with pytest.raises(GraphError, match="no x"):
        from_data(Bag(**{**values, "x": None}))
    with pytest.raises(GraphError, match="fractions"):
        from_data(Bag(**{**values, "y": torch.tensor([0.5, 1.0, 0.0])}))


def test_a_real_data_object() -> None:
    data = pytest.importorskip("torch_geometric.data").Data(
        x=torch.zeros(2, 1),
        edge_index=torch.tensor([[0], [1]]),
        y=torch.tensor([0, 1]),
        train_mask=torch.tensor([True, True]),
    )
    assert check(from_data(data)).num_edges == 1


def test_offline_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("torch_geometric.datasets")

    def unreachable(*_: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(datasets, "Planetoid", unreachable)
    monkeypatch.setenv("THINWIRE_DATA", str(tmp_path))
    with pytest.raises(GraphError, match=r"could not be fetched \(OSError: Name or.*copy the folder"):
        load("planetoid:cora")
    with pytest.raises(GraphError, match="give one of planetoid:cora, planetoid:citeseer"):
        load("planetoid:nope")
    with pytest.raises(GraphError, match="needs the package ogb"):
        load("ogbn-arxiv")


@pytest.mark.skipif(not DATA.is_dir(), reason="no real graphs beside the project (../shared/data)")
@pytest.mark.parametrize(("name", "nodes", "edges"), [("cora", 2708, 10556), ("citeseer", 3327, 9104)])
def test_real_graphs(name: str, nodes: int, edges: int) -> None:
    graph = load(str(DATA / f"{name}.npz"))
    assert (graph.num_nodes, graph.num_edges, graph.x.dtype.name) == (nodes, edges, "float16")
    assert len(graph.classes) == graph.num_classes
