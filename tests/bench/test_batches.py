"""`bench batches` on a small graph: everything is compared on the same batches."""

from thinwire.bench import batches


def test_samplers_and_models_side_by_side() -> None:
    shares: list[float] = []
    result = batches.run(
        num_nodes=8000, num_edges=40_000, repeats=1, on_progress=lambda share, what: shares.append(share)
    )
    rows = {(row.what, row.method): row for row in result.rows}
    assert {"thinwire", "numpy"} <= {method for what, method in rows if what == "sampling"}
    assert [method for what, method in rows if what == "computation"] == ["thinwire", "PyG", "PyG, trimmed"]
    assert rows["sampling", "thinwire"].ratio == rows["computation", "thinwire"].ratio == 1.0
    assert shares == sorted(shares)
    content = result.to_json()
    assert content["num_nodes"] == 8000
    assert len(content["rows"]) == len(result.rows)
