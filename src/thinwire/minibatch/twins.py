"""Sampling, sums over neighbours and gathering of rows in plain numpy and torch.

They are the specification, fallback and test oracle of `native/sample.cpp` and `native/neighbours.h`, and equal to them
bit for bit. The k-th draw of a batch's row r is an integer in 0 .. most, a function of (seed, r, k) alone:

    word = splitmix64(splitmix64(seed) + (r << 20 | k))            modulo 2^64
    draw = (word >> 32) * (most + 1) >> 32

Of a vertex's d neighbours, k are chosen by Floyd's rule: for j = d - k .. d - 1 draw from 0 .. j, and take j itself if
the drawn one is taken already. Each set of k is equally likely.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.codecs.twins import decode_uniform, encode_uniform

Array = np.ndarray[Any, np.dtype[Any]]
PICK_BITS = np.uint64(20)


class Sampler:
    """Like the native sampler, but without threads: a batch is sampled when `next` asks for it."""

    def __init__(
        self,
        indptr: Array,
        indices: Array,
        starts: Array,
        rank: int,
        cached: Array,
        fanouts: Sequence[int],
        with_edges: bool,
        threads: int,
        ahead: int,
    ) -> None:
        self._graph = {"indptr": indptr, "indices": indices, "starts": starts, "cached": cached}
        self._rank = rank
        self._fanouts = fanouts
        self._with_edges = with_edges
        self._todo: list[tuple[Array, int]] = []

    def add(self, seeds: Array, ends: Array, keys: Array) -> None:
        parts = np.split(seeds, ends)[: len(ends)]
        self._todo += [(part, int(key)) for part, key in zip(parts, keys, strict=True)]

    def next(self) -> dict[str, Array]:
        if not self._todo:
            raise IndexError("no batch is left")
        seeds, key = self._todo.pop(0)
        batch = sample(**self._graph, rank=self._rank, seeds=seeds, fanouts=self._fanouts, seed=key)
        return batch if self._with_edges else batch | {"edges": batch["edges"][:0]}


def sample(
    indptr: Array,
    indices: Array,
    starts: Array,
    rank: int,
    cached: Array,
    seeds: Array,
    fanouts: Sequence[int],
    seed: int,
) -> dict[str, Array]:
    """Vertices in the order of sampling; the rows of all hops but the last as one CSR."""
    num_nodes = len(indptr) - 1
    if len(seeds) and not 0 <= seeds.min() <= seeds.max() < num_nodes:
        wrong = seeds[(seeds < 0) | (seeds >= num_nodes)][0]
        raise ValueError(f"seed {wrong}; vertices are 0 to {num_nodes - 1}")
    key = _splitmix64(np.array(seed, dtype=np.uint64))
    place_of = np.full(num_nodes, -1, dtype=np.int64)
    place_of[seeds[::-1]] = np.arange(len(seeds))[::-1]  # of a seed given twice, the first place
    nodes, counts = seeds.astype(np.int64), [len(seeds)]
    degrees, edges, columns = [], [], []
    begin = 0
    for fanout in fanouts:
        rows = np.arange(begin, len(nodes))
        begin = len(nodes)
        taken, positions = _positions(indptr, nodes, rows, fanout, key)
        ids = indices[positions].astype(np.int64)
        fresh, first = np.unique(ids[place_of[ids] < 0], return_index=True)
        fresh = fresh[np.argsort(first)]
        place_of[fresh] = len(nodes) + np.arange(len(fresh))
        nodes = np.concatenate((nodes, fresh))
        counts.append(len(nodes))
        degrees.append(taken)
        edges.append(positions)
        columns.append(place_of[ids])
    batch = {
        "nodes": nodes,
        "num_nodes": np.array(counts),
        "indptr": np.concatenate(([0], np.cumsum(np.concatenate(degrees)))).astype(np.int32),
        "columns": np.concatenate(columns).astype(np.int32),
        "edges": np.concatenate(edges),
    }
    return batch | _transposed(batch) | _split(nodes, starts, rank, cached)


def _positions(indptr: Array, nodes: Array, rows: Array, fanout: int, key: Array) -> tuple[Array, Array]:
    """The number of neighbours that each row draws, and their places in `indices`, row by row."""
    start, degree = indptr[nodes[rows]], np.diff(indptr)[nodes[rows]] if len(rows) else rows
    some = (degree > fanout) if fanout >= 0 else np.zeros(len(rows), dtype=bool)
    taken = np.where(some, fanout, degree)
    ends = np.cumsum(taken)
    positions = np.arange(taken.sum()) - np.repeat(ends - taken, taken) + np.repeat(start, taken)
    if some.any():
        chosen = np.empty((int(some.sum()), fanout), dtype=np.int64)
        for pick in range(fanout):
            last = degree[some] - fanout + pick
            drawn = _draw(key, rows[some], pick, last)
            again = (chosen[:, :pick] == drawn[:, None]).any(axis=1)
            chosen[:, pick] = np.where(again, last, drawn)
        positions[np.repeat(some, taken)] = (start[some][:, None] + chosen).reshape(-1)
    return taken, positions


def _draw(key: Array, rows: Array, pick: int, most: Array) -> Array:
    with np.errstate(over="ignore"):
        word = _splitmix64(key + (rows.astype(np.uint64) << PICK_BITS | np.uint64(pick)))
        return ((word >> np.uint64(32)) * (most + 1).astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def _splitmix64(z: Array) -> Array:
    with np.errstate(over="ignore"):
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _transposed(batch: dict[str, Array]) -> dict[str, Array]:
    """The rows of each column, ascending, and their edges. Covers all layers but the first one computed."""
    *_, before, num_columns, _ = (0, *batch["num_nodes"])
    num_rows = before if len(batch["num_nodes"]) > 2 else 0
    columns = batch["columns"][: batch["indptr"][num_rows]]
    order = np.argsort(columns, kind="stable").astype(np.int32)
    rows = np.repeat(np.arange(num_rows, dtype=np.int32), np.diff(batch["indptr"][: num_rows + 1]))
    readers = np.bincount(columns, minlength=num_columns)
    ends = np.concatenate(([0], np.cumsum(readers))).astype(np.int32)
    return {"column_ptr": ends, "rows": rows[order], "row_edges": order}


def _split(nodes: Array, starts: Array, rank: int, cached: Array) -> dict[str, Array]:
    """The vertices that this rank owns, those in its cache, and those to fetch, by owner."""
    owner = np.searchsorted(starts, nodes, side="right") - 1
    slot = np.searchsorted(cached, nodes) if len(cached) else np.zeros(len(nodes), dtype=np.int64)
    hit = cached[np.minimum(slot, len(cached) - 1)] == nodes if len(cached) else np.zeros(len(nodes), dtype=bool)
    owned = owner == rank
    hit &= ~owned
    wanted = np.flatnonzero(~owned & ~hit)
    wanted = wanted[np.argsort(owner[wanted], kind="stable")]
    return {
        "own_at": np.flatnonzero(owned).astype(np.int32),
        "own_rows": (nodes[owned] - starts[rank]).astype(np.int32),
        "cached_at": np.flatnonzero(hit).astype(np.int32),
        "cached_rows": slot[hit].astype(np.int32),
        "wanted_at": wanted.astype(np.int32),
        "wanted_rows": (nodes[wanted] - starts[owner[wanted]]).astype(np.int32),
        "wanted_from": np.bincount(owner[wanted], minlength=len(starts) - 1),
    }


def sum_neighbours(
    indptr: Tensor, columns: Tensor, weight: Tensor | None, scale: Tensor | None, x: Tensor, out: Tensor
) -> None:
    """out[r] = scale[r] * sum over edges e of row r of weight[e] * x[columns[e]]."""
    rows = torch.repeat_interleave(torch.arange(len(out), device=x.device), indptr[: len(out) + 1].diff())
    read = columns[: len(rows)].long()
    _add_scaled(out, rows, x[read], weight, torch.arange(len(rows), device=x.device), scale, rows)


def sum_readers(
    column_ptr: Tensor,
    rows: Tensor,
    row_edges: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    grad: Tensor,
    out: Tensor,
) -> None:
    """out[c] = sum over rows r of grad that read column c of scale[r] * weight[e] * grad[r]."""
    columns = torch.repeat_interleave(torch.arange(len(out), device=grad.device), column_ptr[: len(out) + 1].diff())
    readers = rows[: len(columns)].long()
    used = readers < len(grad)
    readers, edges = readers[used], row_edges[: len(columns)].long()[used]
    _add_scaled(out, columns[used], grad[readers], weight, edges, scale, readers)


def _add_scaled(
    out: Tensor, places: Tensor, x: Tensor, weight: Tensor | None, edges: Tensor, scale: Tensor | None, rows: Tensor
) -> None:
    """Adds in the order of the arguments, which is that of the native kernels: so sums are equal bit for bit."""
    by = torch.ones(len(x), device=x.device) if weight is None else weight[edges]
    by = by if scale is None else by * scale[rows]
    out.zero_().index_add_(0, places, by[:, None] * x)


FORMATS = {32: torch.float32, 16: torch.float16, -16: torch.bfloat16}


def gather_rows(table: Tensor, rows: Tensor, out: Tensor) -> None:
    """out[i] = table[rows[i]], as bytes."""
    out.copy_(table[rows.long()])


def take_rows(table: Tensor, stored: int, rows: Tensor, places: Tensor, out: Tensor) -> None:
    """out[places[i]] = table[rows[i]], in float32."""
    out[places.long()] = table[rows.long()].view(FORMATS[stored]).float()


def encode_taken(table: Tensor, stored: int, rows: Tensor, bits: int, seed: int, out: Tensor) -> bool:
    """encode_uniform of table[rows]."""
    return encode_uniform(table[rows.long()].view(FORMATS[stored]).float(), bits, seed, out)


def decode_placed(data: Tensor, places: Tensor, bits: int, out: Tensor) -> None:
    """out[places[i]] = row i of the data decoded by decode_uniform."""
    rows = out.new_empty(len(places), out.shape[1])
    decode_uniform(data, bits, rows)
    out[places.long()] = rows
