"""Folders as `thinwire train --out` leaves them, with figures that tests can work out in their heads."""

import json
import math
from pathlib import Path
from typing import Any

from thinwire import artifacts

CHANNELS = ("convs.1.forward", "convs.1.backward", "convs.2.forward", "convs.2.backward")
THINNER = {"exact": 1.0, "sylvie": 16.0, "adaqp": 4.0, "salient": 2.0}
MODEL = {"model": "sage", "layers": 3, "hidden": 128, "dropout": 0.5, "norm": "layer", "lr": 0.01, "messages": []}
FLOAT32_BYTES, GRADIENT_BYTES = 1_600_000, 200_000

# Those of a method that a plan has.
OPTIONS: dict[str, dict[str, Any]] = {
    "sylvie": {"bits": 1, "staleness": 1, "sync_every": 10},
    "adaqp": {"bits_choice": [0, 2, 8], "assign_every": 5, "sync_every": 10},
}


def run(
    folder: Path,
    *,
    method: str = "sylvie",
    epochs: int = 20,
    asked: int | None = None,
    ranks: int = 2,
    data: str = "synthetic",
    links: bool = True,
    prediction: bool = False,
    complete: bool = True,
    error: str = "",
    tail: str = "",
) -> Path:
    """A run with everything in its events; `tail` is what a kill left of a last line."""
    folder.mkdir(parents=True)
    plan: dict[str, Any] = {
        **artifacts.stamp(seed=7, world_size=ranks),
        "data": data,
        "method": method,
        "plan": {"method": method, **OPTIONS.get(method, {})},
        **MODEL,
        "epochs": asked or epochs,
        "machine": {"torch": "2.13.0", "python": "3.11", "cpu": "a processor", "cores": 2, "native": "avx2"},
        "launch": {"kind": "lab", "hosts": ranks, "rate": "100mbit"},
    }
    if links:
        plan["links"] = [link(src, dst) for src in range(ranks) for dst in range(ranks) if src != dst]
    if prediction:
        plan["prediction"] = PREDICTION
    artifacts.write_json(folder / "plan.json", plan)
    lines = [json.dumps(event(number, method, ranks)) for number in range(epochs)]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines) + tail)
    for number, from_epoch in enumerate(range(5, epochs, 5) if method == "adaqp" else (), start=1):
        artifacts.write_json(folder / f"plan.{number}.json", assignment(number, from_epoch))
    if complete:
        artifacts.write_json(folder / "result.json", {"method": method, "epochs": epochs})
    if error:
        artifacts.write_json(folder / "failed.json", {"error": error})
    return folder


def link(src: int, dst: int) -> dict[str, Any]:
    rate = 11.9e6 if dst else 6.0e6
    return {"src": src, "dst": dst, "latency_s": 2e-4, "fixed_s": 1e-4, "bytes_per_s": rate}


def event(number: int, method: str, ranks: int) -> dict[str, Any]:
    thinner = THINNER[method]
    seconds = (0.4 if method == "exact" else 0.2) + (0.1 if number == 0 else 0.0)
    halo = int(FLOAT32_BYTES / thinner)
    evaluated = (number + 1) // 5 * 5  # the last evaluation, of every fifth epoch
    score = None if evaluated == 0 else 0.9 * (1 - math.exp(-evaluated / 8)) - (0.01 if method == "sylvie" else 0.0)
    row: dict[str, Any] = {
        "epoch": number,
        "loss": 2.5 * math.exp(-number / 6) + 0.05,
        "seconds": seconds,
        "exposed_s": seconds / 4,
        "bytes": halo + GRADIENT_BYTES,
        "float32_bytes": FLOAT32_BYTES + GRADIENT_BYTES,
        "halo_bytes": halo,
        "val_score": None if score is None else score - 0.02,
        "test_score": score,
        "stale": method == "sylvie" and number % 10 != 0,
        "channels": {
            **{name: {"bytes": halo // 4, "float32_bytes": FLOAT32_BYTES // 4} for name in CHANNELS},
            "gradients": {"bytes": GRADIENT_BYTES},
        },
    }
    if method == "adaqp" and number > 5:
        row |= {"predicted_s": 0.19, "predicted_halo_bytes": halo, "assign_s": 0.01 if number % 5 == 0 else 0.0}
    if number % 4 == 1:
        row["ranks"] = [times(rank, seconds, ranks) for rank in range(ranks)]
    if number == 5:
        row["spans"] = [spans(seconds, stale=bool(row["stale"])) for _ in range(ranks)]
    return row


def times(rank: int, seconds: float, ranks: int) -> dict[str, Any]:
    """Rank 0 waits a quarter, others less."""
    exposed = seconds / 4 / (rank + 1)
    return {
        "seconds": seconds,
        "compute_s": seconds - exposed - seconds / 10,
        "codec_s": seconds / 10,
        "exposed_s": exposed,
        "hidden_s": seconds / 2,
        "bytes_to": {str(peer): 1000 * (rank + 1) for peer in range(ranks) if peer != rank},
    }


def spans(seconds: float, *, stale: bool) -> list[list[Any]]:
    """Two transfers that overlap, a wait for the second of them."""
    return [
        ["codec", "convs.1.forward", 0.0, 0.1 * seconds, 0],
        ["transfer", "convs.1.forward", 0.1 * seconds, 0.6 * seconds, 100_000],
        ["transfer", "convs.2.forward", 0.3 * seconds, (0.7 if stale else 0.8) * seconds, 100_000],
        ["wait", "convs.2.forward", 0.55 * seconds, 0.8 * seconds, 0],
    ]


def assignment(number: int, from_epoch: int) -> dict[str, Any]:
    """Ever more rows at two bits, of 100 a channel."""
    few = min(100, 20 * number)
    rows = {"0": 10, "2": few * 0.9, "8": 90 - few * 0.9}
    messages = [{"channel": name, "rows_at_bits": rows, "predicted_bytes": 1000} for name in CHANNELS]
    stamp = artifacts.stamp(seed=7, world_size=2)
    return {**stamp, "from_epoch": from_epoch, "messages": messages, "predicted_epoch_s": 0.19, "assign_s": 0.01}


PREDICTION = {
    "rows": [
        {"method": "exact", "epoch_s": 0.42, "bytes_per_epoch": 1_800_000, "memory_bytes": 5e7, "speedup": 1.0},
        {"method": "sylvie", "epoch_s": 0.22, "bytes_per_epoch": 300_000, "memory_bytes": 6e7, "speedup": 1.9},
        {"method": "adaqp", "epoch_s": 0.18, "bytes_per_epoch": 600_000, "memory_bytes": 6e7, "speedup": 2.3},
    ],
    "recommended": "adaqp",
    "rates": [
        {
            "rate": rate,
            "bits_per_s": bits,
            "epoch_s": {"exact": 0.1 + 3e7 / bits, "sylvie": 0.2, "adaqp": 0.12 + 6e6 / bits},
        }
        for rate, bits in (("10mbit", 1e7), ("100mbit", 1e8), ("1gbit", 1e9), ("10gbit", 1e10))
    ],
}
