"""Aggregations that read neighbours in sequence (LSTM, GRU): they get the same sequences at any number of ranks.

PyG gives them each node's edges in order, padded with zeros to the most neighbours that any node has. On a shard, edges
are ordered by the sources' numbers in the whole graph, as in PyG's `sort_edge_index(..., sort_by_row=False)`, and
padded to the most neighbours of a node on any rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, aggr

from thinwire.fullgraph.halo import Halo
from thinwire.graphs import Shard

# These read the padding too.
PADDED = (aggr.LSTMAggregation, aggr.GRUAggregation, aggr.LCMAggregation)
ORDERED = (*PADDED, aggr.MLPAggregation, aggr.PatchTransformerAggregation)
# Ids are sent as two numbers of up to this many bits, which float32 holds exactly.
DIGITS = 24


def is_ordered(conv: nn.Module) -> bool:
    """Whether the order of a node's neighbours may matter to this layer."""
    aggregates_itself = isinstance(conv, MessagePassing) and type(conv).aggregate is not MessagePassing.aggregate
    return aggregates_itself or any(isinstance(module, ORDERED) for module in conv.modules())


def order(shard: Shard, halo: Halo) -> Tensor:
    """The order of the shard's edges by target, then by the source's number in the whole graph, fetched from owners."""
    ids = shard.original_ids
    fetched = halo.ask(torch.stack((ids >> DIGITS, ids & (2**DIGITS - 1)), dim=1).float()).long()
    sources = torch.cat((ids, (fetched[:, 0] << DIGITS) + fetched[:, 1]))[shard.indices.long()]
    by_source = torch.argsort(sources, stable=True)
    rows = torch.repeat_interleave(torch.arange(shard.num_owned, device=ids.device), shard.indptr.diff())
    return by_source[torch.argsort(rows[by_source], stable=True)]


@contextmanager
def padded(conv: nn.Module, most: int | None) -> Iterator[None]:
    """Within this block sequences are padded to this length."""
    modules = [module for module in conv.modules() if isinstance(module, PADDED)] if most else []
    before = [vars(module).get("forward") for module in modules]
    for module in modules:
        module.forward = partial(module.forward, max_num_elements=most)
    try:
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            if forward is None:
                del module.forward
            else:
                module.forward = forward
