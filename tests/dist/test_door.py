"""The door: every collective brings what was sent, the books say so, and a lost rank is named, never waited for."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.dist import work
from thinwire import launch
from thinwire.links.exchange import _bundle

COLLECTIVES = ["all_to_all", "all_gather", "all_reduce", "broadcast", "receive"]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_collective(workers: int) -> None:
    results = launch.run(work.every_collective, workers=workers)
    for me, result in enumerate(results):
        assert result["halo"] == [[10 * peer + me] * (3 * peer + me) for peer in range(workers)]
        assert result["ids"] == [list(range(peer + 1)) for peer in range(workers)]
        assert result["even"] == list(range(workers))
        assert result["gradients"] == sum(range(1, workers + 1))
        assert result["weights"] == workers - 1
        if workers > 1:
            assert result["ring"] == [(me - 1) % workers] * 7
        assert_books(result["books"], me, workers)


def assert_books(books: dict[str, Any], me: int, workers: int) -> None:
    others = [peer for peer in range(workers) if peer != me]
    halo = {peer: 3 * me + peer for peer in others}
    assert books["halo"]["bytes_to"] == {peer: size for peer, size in halo.items() if size}
    assert books["ids"]["bytes_to"] == dict.fromkeys(others, me + 1)
    assert sum(books["even"]["bytes_to"].values()) == 8 * (workers - 1)
    assert sum(books["gradients"]["bytes_to"].values()) == -(-2 * (workers - 1) * 4000 // workers)
    for channel, book in books.items():
        assert book["operations"] == (2 if channel == "ring" else 1)
        assert book["in_flight_s"] > 0
        assert 0 <= book["exposed_s"] < 60


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_killed_rank_is_named_on_every_other_within_ten_seconds(collective: str, tmp_path: Path) -> None:
    with pytest.raises(launch.RankFailed, match="rank 1 of 4 failed: its process ended by SIGKILL"):
        launch.run(work.lose_a_rank, collective, "killed", 60.0, str(tmp_path), workers=4)
    assert_told(tmp_path, least_s=0, most_s=10)


@pytest.mark.parametrize("how", ["stopped", "stuck"])
def test_a_stuck_rank_is_named_after_the_limit(how: str, tmp_path: Path) -> None:
    with pytest.raises(launch.RankFailed, match="PeerLost: rank 1 (silent|alive but stuck) for"):
        launch.run(work.lose_a_rank, "all_to_all", how, 5.0, str(tmp_path), workers=3)
    assert_told(tmp_path, least_s=4, most_s=12)


def assert_told(folder: Path, *, least_s: float, most_s: float) -> None:
    notes = {int(note.name): note.read_text().split(maxsplit=1) for note in folder.iterdir()}
    assert 0 in notes
    assert 2 in notes
    assert 1 not in notes
    for seconds, said in notes.values():
        assert least_s <= float(seconds) <= most_s
        assert said.startswith("rank 1 ")
        assert "on channel 'test' in step 7" in said


def test_parts_of_one_buffer_are_sent_from_where_they_are() -> None:
    buffer = torch.arange(20, dtype=torch.uint8)
    parts = [buffer[2:5], buffer[5:5], buffer[5:11], buffer[11:20]]
    bundled = _bundle(parts)
    assert bundled.data_ptr() == buffer.data_ptr() + 2
    assert torch.equal(bundled, buffer[2:])
    apart = [buffer[2:5], buffer[6:9]]
    assert torch.equal(_bundle(apart), torch.cat(apart))
    same = [buffer[:4], buffer[:4]]
    assert torch.equal(_bundle(same), torch.cat(same))
