"""When each action of a pipeline's iteration ran, simulated or measured: drawn as text, or as a trace for Perfetto.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire import artifacts
from thinwire.crossmesh.pipelines.schedule import BACKWARD, FORWARD, INPUT, WEIGHT

COLUMNS = 100
FILLING = {FORWARD: "=", BACKWARD: "#", INPUT: "+", WEIGHT: "~"}
IDLE = "."
LEGEND = "F= forward   B# backward   I+ its input part   W~ its weight part   . waits"


@dataclass(frozen=True)
class Span:
    """An action of a stage or, if `wire` is set, a transfer that the stage sends."""

    stage: int
    kind: str
    microbatch: int
    start_s: float
    end_s: float
    wire: str = ""

    @property
    def label(self) -> str:
        return f"{self.wire} {self.kind}{self.microbatch}".strip()


@dataclass(frozen=True)
class Timeline:
    """One iteration. `peak_activations` is the most micro-batches each stage keeps, `peak_bytes` their size."""

    spans: tuple[Span, ...]
    peak_activations: tuple[int, ...]
    peak_bytes: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Until the last stage has done its last action."""
        return max(span.end_s for span in self.spans if not span.wire)

    @property
    def num_stages(self) -> int:
        return len(self.peak_activations)

    def busy_share(self, stage: int) -> float:
        busy = sum(span.end_s - span.start_s for span in self.spans if span.stage == stage and not span.wire)
        return busy / self.seconds

    def draw(self) -> str:
        """One row per stage, to scale, at most 100 columns wide."""
        head = len(f"r{self.num_stages - 1} ")
        width = COLUMNS - head
        scale = width / self.seconds if self.seconds else 0.0
        rows = [f"{self.seconds:.4g} s.  {LEGEND}"]
        for stage in range(self.num_stages):
            row = [IDLE] * width
            for span in self.spans:
                if span.stage == stage and not span.wire:
                    begin, end = round(span.start_s * scale), min(round(span.end_s * scale), width)
                    text = span.label + FILLING[span.kind] * (end - begin)
                    row[begin:end] = text[: end - begin]
            rows.append(f"r{stage}".ljust(head) + "".join(row).rstrip())
        return "\n".join(rows)


def write_trace(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Write a trace for ui.perfetto.dev: a process per timeline (predicted, measured), a lane per stage and wire."""
    events: list[dict[str, Any]] = []
    for process, (name, timeline) in enumerate(timelines.items(), start=1):
        events.append({"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}})
        lanes: dict[str, int] = {f"r{stage}": stage + 1 for stage in range(timeline.num_stages)}
        for span in timeline.spans:
            away = "forward" if span.kind == FORWARD else "backward"
            lane = f"r{span.stage} sends {span.wire} {away}" if span.wire else f"r{span.stage}"
            events.append(
                {
                    "name": span.label,
                    "cat": "transfer" if span.wire else "compute",
                    "ph": "X",
                    "pid": process,
                    "tid": lanes.setdefault(lane, len(lanes) + 1),
                    "ts": span.start_s * 1e6,
                    "dur": (span.end_s - span.start_s) * 1e6,
                }
            )
        for lane, number in lanes.items():
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": number, "args": {"name": lane}})
    artifacts.write_json(path, {"traceEvents": events, "displayTimeUnit": "ms"})
