"""From a name to a folder of shards, with the time and memory that each phase took."""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from thinwire.graphs.folder import check_out, write_shards
from thinwire.graphs.loading import load
from thinwire.graphs.partition import Settings, assign, read_assignment
from thinwire.graphs.report import PartRow, report
from thinwire.graphs.shard import Shard, split


@dataclass
class Phases:
    """Seconds of each phase, and the phase in which memory peaked."""

    on_phase: Callable[[str], None] = lambda name: None
    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    peak_phase: str = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.on_phase(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        # The process's peak never falls: the last phase in which it rose has it. (ru_maxrss is in kilobytes.)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if peak > self.peak_bytes:
            self.peak_bytes, self.peak_phase = peak, name


def prepare(
    data: str,
    settings: Settings,
    folder: Path,
    *,
    nodes: str | None = None,
    assignment: Path | None = None,
    layers: int = 3,
    hidden: int = 256,
    on_phase: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Load, check, partition, write. Nothing is written if a step before fails."""
    check_out(folder)
    phases = Phases(on_phase)
    with phases.phase("load"):
        graph = load(data, nodes=nodes)
    with phases.phase("partition"):
        part = read_assignment(assignment, graph, settings.parts) if assignment else assign(graph, settings)
    rows: list[PartRow] = []

    def seen(shards: Iterator[Shard]) -> Iterator[Shard]:
        for shard in shards:
            rows.append(PartRow.of(shard))
            on_phase(f"part {shard.part + 1} of {settings.parts}")
            yield shard

    with phases.phase("shard"):
        method = "assignment" if assignment is not None else settings.method
        write_shards(
            folder,
            seen(split(graph, part, settings.parts)),
            classes=graph.classes,
            settings={**asdict(settings), "method": method, "data": graph.source},
            report=lambda: report(rows, layers=layers, hidden=hidden),
        )
    return {
        "data": graph.source,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "graph_bytes": graph.nbytes,
        **report(rows, layers=layers, hidden=hidden),
        "seconds": phases.seconds,
        "peak_rss_bytes": phases.peak_bytes,
        "peak_phase": phases.peak_phase,
    }
