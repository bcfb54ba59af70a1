"""Writes what each rank did when, as a trace file for Perfetto (ui.perfetto.dev) or chrome://tracing.

Each run is a process with its epochs. Each rank is a process with the epochs that recorded details: computation, waits,
codecs and transfers, with transfers that overlap side by side.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from thinwire import artifacts
from thinwire.report.records import Epoch, Run, Span

Event = dict[str, Any]
EPOCHS, COMPUTATION, WAIT, CODEC, TRANSFER = "epochs", "computation", "wait", "codec", "transfer"
LANES = {EPOCHS: 1, COMPUTATION: 2, WAIT: 3, CODEC: 4, TRANSFER: 5}  # transfers that overlap: 6, 7, ...


def write_trace(path: Path, runs: Sequence[Run]) -> None:
    artifacts.write_json(path, {"traceEvents": list(events(runs)), "displayTimeUnit": "ms"})


def events(runs: Sequence[Run]) -> Iterator[Event]:
    """The events of all runs. Epochs follow each other directly, without evaluation and checkpoints between them."""
    processes = count(1)
    for run in runs:
        whole = next(processes)
        yield from _names(whole, f"{run.label}: all epochs", {EPOCHS: LANES[EPOCHS]})
        world = max((max(len(epoch.ranks), len(epoch.spans)) for epoch in run.epochs), default=0)
        ranks = [next(processes) for _ in range(world)]
        for rank, process in enumerate(ranks):
            yield from _names(process, f"{run.label}: rank {rank}", _lanes(run, rank))
        start_s = 0.0
        for epoch in run.epochs:
            yield from _epoch(whole, epoch, start_s)
            for rank, process in enumerate(ranks):
                yield from _rank(process, rank, epoch, start_s)
            start_s += epoch.seconds or 0.0


def lanes(spans: Sequence[Span]) -> list[int]:
    """A lane for each span, so that spans on a lane do not overlap: viewers would take overlap for nesting."""
    ends: list[float] = []
    chosen = [0] * len(spans)
    for place in sorted(range(len(spans)), key=lambda place: (spans[place].start_s, spans[place].end_s)):
        span = spans[place]
        lane = next((number for number, end in enumerate(ends) if end <= span.start_s), len(ends))
        ends[lane : lane + 1] = [span.end_s]
        chosen[place] = lane
    return chosen


def computation(spans: Sequence[Span], seconds: float) -> list[tuple[float, float]]:
    """The stretches of an epoch in which the rank neither waited nor ran a codec."""
    busy = sorted((span.start_s, span.end_s) for span in spans if span.kind in (WAIT, CODEC))
    gaps = []
    at = 0.0
    for start, end in [*busy, (seconds, seconds)]:
        if start > at:
            gaps.append((at, min(start, seconds)))
        at = max(at, end)
    return [(start, end) for start, end in gaps if end > start]


def _epoch(process: int, epoch: Epoch, start_s: float) -> Iterator[Event]:
    seconds = epoch.seconds or 0.0
    values = {"loss": epoch.loss, "bytes": epoch.bytes, "validation": epoch.val_score, "test": epoch.test_score}
    stale = {} if epoch.stale is None else {"stale": epoch.stale}
    known = {name: value for name, value in values.items() if value is not None}
    yield _slice(process, LANES[EPOCHS], EPOCHS, f"epoch {epoch.number + 1}", start_s, start_s + seconds, known | stale)
    for name in ("loss", "bytes"):
        if name in known:
            yield {"name": name, "ph": "C", "pid": process, "ts": start_s * 1e6, "args": {name: known[name]}}


def _rank(process: int, rank: int, epoch: Epoch, start_s: float) -> Iterator[Event]:
    times = epoch.ranks[rank] if rank < len(epoch.ranks) else None
    spans = epoch.spans[rank] if rank < len(epoch.spans) else ()
    if times is None and not spans:
        return
    seconds = times.seconds if times is not None else epoch.seconds or 0.0
    parts = ("compute_s", "codec_s", "exposed_s", "hidden_s")
    arguments = {name: getattr(times, name) for name in parts} if times is not None else {}
    yield _slice(process, LANES[EPOCHS], EPOCHS, f"epoch {epoch.number + 1}", start_s, start_s + seconds, arguments)
    if not spans:
        return
    for begin, end in computation(spans, seconds):
        yield _slice(process, LANES[COMPUTATION], COMPUTATION, COMPUTATION, start_s + begin, start_s + end, {})
    # Codecs and waits of several threads may overlap too, so each kind gets further lanes as needed.
    for kind in (WAIT, CODEC, TRANSFER):
        of_kind = [span for span in spans if span.kind == kind]
        for span, lane in zip(of_kind, lanes(of_kind), strict=True):
            size = {"bytes": span.bytes} if span.bytes else {}
            track = LANES[kind] if lane == 0 else _more(kind, lane)
            yield _slice(process, track, kind, span.name or kind, start_s + span.start_s, start_s + span.end_s, size)


def _more(kind: str, lane: int) -> int:
    """The track of a further lane: below all first lanes, with those of its kind together."""
    return 100 * LANES[kind] + lane


def _lanes(run: Run, rank: int) -> dict[str, int]:
    """The names and numbers of the tracks that a rank needs."""
    tracks = dict(LANES)
    for epoch in run.epochs:
        for kind in (WAIT, CODEC, TRANSFER) if rank < len(epoch.spans) else ():
            used = lanes([span for span in epoch.spans[rank] if span.kind == kind])
            tracks |= {f"{kind} {lane + 1}": _more(kind, lane) for lane in set(used) if lane > 0}
    return tracks


def _slice(process: int, track: int, kind: str, name: str, begin_s: float, end_s: float, arguments: Event) -> Event:
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": process,
        "tid": track,
        "ts": begin_s * 1e6,
        "dur": max(end_s - begin_s, 0.0) * 1e6,
        "args": arguments,
    }


def _names(process: int, name: str, tracks: dict[str, int]) -> Iterator[Event]:
    yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "pid": process, "args": {"sort_index": process}}
    for track, number in tracks.items():
        yield {"name": "thread_name", "ph": "M", "pid": process, "tid": number, "args": {"name": track}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": process, "tid": number, "args": {"sort_index": number}}
