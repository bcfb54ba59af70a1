r"""VIP: the probability that a sampled batch contains a vertex (SALIENT++, arXiv 2305.03152). Pure.

Let t_h(v) be the share of its in-neighbours that v draws at hop h. Vertex u is drawn by those it has edges to:

.. math:: p_h(u) = 1 - \prod_{u \to v} (1 - t_h(v)\, p_{h-1}(v)), \qquad VIP(u) = 1 - \prod_h (1 - p_h(u))

where p_0 is the probability that a seed is in the batch. Our sampler expands each vertex once only; so p_{h-1} on the
right is multiplied by the probability that no earlier hop has found v. This is exact if each vertex is reached along
one path only; else different v are taken as independent. A factor depends on v alone, so a hop is a sum of logarithms
over the out-edges of u: O(N + M), float64.
"""

from collections.abc import Sequence

import numpy as np

from thinwire.minibatch.topology import Array, Topology


def vip(
    topology: Topology,
    seeds: Array,
    *,
    batch: float,
    fanouts: Sequence[int],
    with_seeds: bool = False,
    expands_again: bool = False,
) -> Array:
    """VIP of each vertex, for batches of `batch` drawn from `seeds`; `fanouts` from the seeds outwards, -1 for all.

    `with_seeds` also counts a vertex as a seed itself (hop 0); a part's own vertices are ordered by that.
    `expands_again` is for samplers that draw neighbours again for a vertex that an earlier hop found; ours does not.
    """
    if len(seeds) and not batch > 0:
        raise ValueError(f"batch is {batch}; give how many seeds it has in the mean, more than 0")
    for fanout in fanouts:
        if fanout < 1 and fanout != -1:
            raise ValueError(f"fan-out {fanout}; give 1 or more, or -1 for all neighbours")
    degrees = np.diff(topology.indptr)
    reached = np.zeros(topology.num_nodes)
    if len(seeds):
        reached[seeds] = min(1.0, batch / len(seeds))
    with np.errstate(divide="ignore"):  # log(0), for vertices that are drawn with certainty
        log_seed = np.log1p(-reached)
        missed = np.zeros(topology.num_nodes)
        for fanout in fanouts:
            share = np.ones(len(degrees)) if fanout == -1 else np.minimum(1.0, fanout / np.maximum(1, degrees))
            log_missed = topology.sum_over_targets(np.log1p(-share * reached))
            reached = -np.expm1(log_missed)
            if not expands_again:
                reached *= np.exp(log_seed + missed)  # and not found by an earlier hop
            missed += log_missed
        if with_seeds:
            missed += log_seed
    return -np.expm1(missed)
