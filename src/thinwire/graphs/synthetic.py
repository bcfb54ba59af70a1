"""Graphs for demos, tests and benchmarks: heavy-tailed degrees, communities, features too noisy to classify alone.

A degree-corrected block model: a node has a weight from a Pareto tail and a community; an edge's ends are drawn by
weight, both from one community, or, of a share `cross` of all edges, from two. A community has a class; features are
the class's centre in noise, so that a node's own say little and its neighbours' mean says much.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from thinwire.graphs.graph import TEST, TRAIN, VALIDATION, Array, Graph, GraphError

PREFIX = "synthetic"
# Duplicate edges are dropped, so a few more are drawn than wanted.
SURPLUS = 1.12
# For a node of weight 1, the least.
TICKETS = 4
MOST_ROUNDS = 30
# Smaller graphs take the edges that there are.
LEAST_STRICT = 1_000


@dataclass(frozen=True)
class Settings:
    """`synthetic:nodes=20000,degree=15,...`; what is not named is as here."""

    nodes: int = 20_000
    degree: float = 15.0  # mean number of neighbours
    classes: int = 12
    features: int = 64
    communities: int = 0  # 0: one for each 500 nodes, at least one for each class, of at least 8 nodes
    cross: float = 0.2  # share of edges between communities
    skew: float = 2.2  # exponent of the tail of degrees: smaller is heavier
    noise: float = 5.0  # of features, beside centres a distance of about 1.4 apart in each direction
    label_noise: float = 0.05  # share of nodes with a random class
    train: float = 0.6  # share of nodes to train on; half of the others are for validation
    train_in: float = 1.0  # share of communities that they come from, as far as those have enough
    directed: bool = False
    multilabel: bool = False
    seed: int = 0


def parse(name: str) -> Settings:
    """From `synthetic` or `synthetic:key=value,...`."""
    kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(Settings)}
    options: dict[str, Any] = {}
    for word in filter(None, name.removeprefix(PREFIX).removeprefix(":").split(",")):
        key, equals, value = word.partition("=")
        if key not in kinds:
            raise GraphError(f"{name}: there is no {key!r}; give some of {', '.join(kinds)}")
        try:
            options[key] = _value(kinds[key], value if equals else None)
        except ValueError:
            raise GraphError(f"{name}: {word!r}; give for example {key}={getattr(Settings, key)}") from None
    settings = Settings(**options)
    _check(name, settings)
    return settings


def generate(settings: Settings) -> Graph:
    rng = np.random.default_rng(settings.seed)
    n = settings.nodes
    communities = settings.communities or max(1, min(n // 8, max(settings.classes, n // 500)))
    # Sorted by community while edges are drawn, shuffled afterwards: a numbering gives nothing away.
    community = np.sort(rng.integers(0, communities, n)).astype(np.int32)
    weights = (1 - rng.random(n)) ** (-1 / (settings.skew - 1))
    np.minimum(weights, np.sqrt(n), out=weights)  # no node has more than about sqrt(N) times a usual one's edges
    class_of = rng.permutation(np.arange(communities) % settings.classes).astype(np.int16)
    label = class_of[community]
    wrong = rng.random(n) < settings.label_noise
    label[wrong] = rng.integers(0, settings.classes, int(wrong.sum()))
    shuffled = rng.permutation(n).astype(np.int32)
    edges = shuffled[_edges(rng, settings, community, weights)]
    centres = rng.standard_normal((settings.classes, settings.features), dtype=np.float32)
    x = np.empty((n, settings.features), dtype=np.float16)
    for start in range(0, n, 1 << 16):
        rows = slice(start, start + (1 << 16))
        classes = class_of[community[rows]]
        noise = rng.standard_normal((len(classes), settings.features), dtype=np.float32)
        x[shuffled[rows]] = centres[classes] + np.float32(settings.noise) * noise
    y = np.empty(n, dtype=np.int16)
    y[shuffled] = label
    split = np.full(n, TEST, dtype=np.uint8)
    order = rng.permutation(n)
    if settings.train_in < 1:
        inside = np.empty(n, dtype=bool)
        inside[shuffled] = community < np.ceil(settings.train_in * communities)
        order = np.concatenate((order[inside[order]], order[~inside[order]]))
    trained = max(1, int(settings.train * n))
    split[order[:trained]] = TRAIN
    split[order[trained : int((settings.train + (1 - settings.train) / 2) * n)]] = VALIDATION
    targets = _several(rng, settings, y) if settings.multilabel else y
    return Graph(edges, x, targets, split, source=PREFIX)


def _edges(rng: np.random.Generator, settings: Settings, community: Array, weights: Array) -> Array:
    """[2, E] of int32 without loops or duplicates; each in both directions unless directed."""
    n = settings.nodes
    wanted = round(n * settings.degree / (1 if settings.directed else 2))
    draw = _Draw(rng, community, weights, directed=settings.directed)
    between = draw.keys(round(settings.cross * wanted), between=True)
    within = draw.keys(wanted - round(settings.cross * wanted), between=False)
    keys = np.concatenate((between, within))
    if len(keys) < wanted and n >= LEAST_STRICT:
        raise GraphError(
            f"{PREFIX}: only {len(between):,} edges between communities and {len(within):,} within could be drawn of "
            f"{wanted:,}; give a smaller degree, fewer communities, or another cross"
        )
    source, target = (keys // n).astype(np.int32), (keys % n).astype(np.int32)
    if settings.directed:
        return np.stack((source, target))
    return np.stack((np.concatenate((source, target)), np.concatenate((target, source))))


class _Draw:
    """Edges drawn by weight. A node has tickets by its weight, a community's lie together: drawing is one look-up."""

    def __init__(self, rng: np.random.Generator, community: Array, weights: Array, *, directed: bool) -> None:
        self._rng = rng
        self._community = community
        self._directed = directed
        self._tickets = np.repeat(np.arange(len(weights), dtype=np.int32), np.rint(TICKETS * weights).astype(np.int64))
        self._bounds = np.searchsorted(community[self._tickets], np.arange(int(community[-1]) + 2))

    def keys(self, wanted: int, *, between: bool) -> Array:
        """source * n + target, sorted, each once; fewer than wanted where there are no more to be found."""
        keys = np.empty(0, dtype=np.int64)
        for _ in range(MOST_ROUNDS):
            missing = wanted - len(keys)
            if missing <= 0:
                break
            keys = np.sort(np.concatenate((keys, self._some(round(missing * SURPLUS) + 16, between=between))))
            fresh = np.ones(len(keys), dtype=bool)
            fresh[1:] = keys[1:] != keys[:-1]
            keys = keys[fresh]
        if len(keys) > wanted:
            keys = np.delete(keys, self._rng.choice(len(keys), len(keys) - wanted, replace=False))
        return keys

    def _some(self, draws: int, *, between: bool) -> Array:
        tickets, n = self._tickets, len(self._community)
        source = tickets[self._rng.integers(0, len(tickets), draws)].astype(np.int64)
        home = self._community[source]
        low = np.zeros(draws, dtype=np.int64) if between else self._bounds[home]
        size = len(tickets) if between else self._bounds[home + 1] - low
        target = tickets[low + (self._rng.random(draws) * size).astype(np.int64)].astype(np.int64)
        good = self._community[target] != home if between else source != target
        if not self._directed:
            source, target = np.minimum(source, target), np.maximum(source, target)
        return (source * n + target)[good]


def _several(rng: np.random.Generator, settings: Settings, y: Array) -> Array:
    """Zeros and ones [N, classes]: a class goes along with about a fifth of the others, and some labels are wrong."""
    together = rng.random((settings.classes, settings.classes)) < 0.2
    np.fill_diagonal(together, True)
    wrong = rng.random((len(y), settings.classes)) < settings.label_noise / 2
    return (together[y] ^ wrong).astype(np.uint8)


def _value(kind: type, word: str | None) -> bool | int | float:
    if kind is bool:
        if (word or "true").lower() not in ("true", "false", "1", "0"):
            raise ValueError(word)
        return (word or "true").lower() in ("true", "1")
    number = float(word or "")
    if not np.isfinite(number) or (kind is int and number != int(number)):
        raise ValueError(word)
    return int(number) if kind is int else number


def _check(name: str, settings: Settings) -> None:
    checks = {
        "nodes": settings.nodes >= 1,
        "degree": settings.degree >= 0,
        "classes": 2 <= settings.classes <= 10_000,
        "features": settings.features >= 1,
        "communities": settings.communities == 0 or settings.classes <= settings.communities <= settings.nodes,
        "cross": 0 <= settings.cross <= 1,
        "skew": settings.skew > 1,
        "noise": settings.noise >= 0,
        "label_noise": 0 <= settings.label_noise < 1,
        "train_in": 0 < settings.train_in <= 1,
        "seed": settings.seed >= 0,
    }
    for key, good in checks.items():
        if not good:
            raise GraphError(f"{name}: {key} is {getattr(settings, key)}; the default is {getattr(Settings, key)}")
