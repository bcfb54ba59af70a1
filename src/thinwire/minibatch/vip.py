r"""VIP: the probability that a vertex is among those that a sampled batch touches (SALIENT++, arXiv 2305.03152). Pure.

With t_h(v) the share of its in-neighbours that v draws at hop h, a vertex u is drawn by the vertices it has edges to:

.. math:: p_h(u) = 1 - \prod_{u \to v} (1 - t_h(v)\, p_{h-1}(v)), \qquad VIP(u) = 1 - \prod_h (1 - p_h(u))

Exact where every vertex is reached along one path only; elsewhere different v are taken as independent. A factor is a
matter of v alone, so that a hop is a sum of logarithms over u's out-edges: O(N + M), float64.
"""

from collections.abc import Sequence

import numpy as np

from thinwire.minibatch.topology import Array, Topology


def vip(topology: Topology, seeds: Array, *, batch: int, fanouts: Sequence[int], with_seeds: bool = False) -> Array:
    """Of every vertex, for batches of `batch` drawn from `seeds`; `fanouts` from the seeds outwards, -1 for all.

    `with_seeds`: also as a seed itself (hop 0), which is what a part's own vertices are ordered by.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; give 1 or more")
    for fanout in fanouts:
        if fanout < 1 and fanout != -1:
            raise ValueError(f"fan-out {fanout}; give 1 or more, or -1 for all neighbours")
    degrees = np.diff(topology.indptr)
    reached = np.zeros(topology.num_nodes)
    if len(seeds):
        reached[seeds] = min(1.0, batch / len(seeds))
    with np.errstate(divide="ignore"):  # the logarithm of 0: drawn for sure
        missed = np.log1p(-reached) if with_seeds else np.zeros(topology.num_nodes)
        for fanout in fanouts:
            share = np.ones(len(degrees)) if fanout == -1 else np.minimum(1.0, fanout / np.maximum(1, degrees))
            log_missed = topology.sum_over_targets(np.log1p(-share * reached))
            missed += log_missed
            reached = -np.expm1(log_missed)
    return -np.expm1(missed)
