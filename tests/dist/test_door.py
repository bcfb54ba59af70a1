"""The door: every collective brings what was sent, the books say so, and a lost rank is named, never waited for."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.dist import work
from thinwire import launch
from thinwire.launch import RankSpec, meeting, ranks
from thinwire.launch.meeting import meet
from thinwire.links.flat import bundle

COLLECTIVES = ["all_to_all", "all_gather", "all_reduce", "broadcast", "send", "receive"]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_collective(workers: int) -> None:
    results = launch.run(work.every_collective, workers=workers)
    assert_all_came(results, workers)


def test_every_collective_in_two_groups_side_by_side() -> None:
    results = launch.run(work.every_collective_in_two_groups, workers=4)
    assert_all_came(results[::2], 2)
    assert_all_came(results[1::2], 2)


def test_a_rank_lost_in_one_group_is_named_by_its_number_in_the_job_and_the_other_goes_on(tmp_path: Path) -> None:
    with pytest.raises(launch.RankFailed, match="rank 3 of 4"):
        launch.run(work.die_in_a_group, str(tmp_path), workers=4)
    said = {int(note.name): note.read_text() for note in tmp_path.iterdir()}
    assert said[1].startswith("rank 3 gone")
    assert "alive: [1]" in said[1]
    assert said[0] == said[2] == "went on"


def test_a_door_over_a_group_this_rank_is_not_in_is_refused() -> None:
    assert "rank 1 is not in the process group" in launch.run(work.door_to_others, workers=2)[1]


def assert_all_came(results: list[dict[str, Any]], workers: int) -> None:
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


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_rank_killed_in_the_middle_is_named_on_every_other_long_before_the_limit(collective: str, tmp_path: Path) -> None:
    with pytest.raises(launch.RankFailed, match="rank 1 of 4 failed: its process ended by SIGKILL"):
        launch.run(work.lose_a_rank, collective, "killed", 600.0, str(tmp_path), workers=4)
    assert_named(tmp_path, {0, 2, 3})


@pytest.mark.parametrize(
    ("collective", "how"),
    [
        ("all_to_all", "stopped"),
        pytest.param("broadcast", "stuck", marks=pytest.mark.slow),
        pytest.param("receive", "stuck", marks=pytest.mark.slow),
    ],
)
def test_a_stuck_rank_is_named_after_the_limit(
    collective: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "GRACE_S", 3.0)  # the stuck one will not end by itself
    with pytest.raises(launch.RankFailed, match="PeerLost: rank 1 (silent|alive but stuck) for"):
        launch.run(work.lose_a_rank, collective, how, 4.0, str(tmp_path), workers=3)
    assert_named(tmp_path, {0, 2}, least_s=3)


def assert_named(folder: Path, ranks: set[int], *, least_s: float = 0.0) -> None:
    """Where a rank is dead and the limit longer than the test may last, being told at all shows that nobody waited."""
    notes = {int(note.name): note.read_text().split(maxsplit=1) for note in folder.iterdir()}
    assert set(notes) == ranks
    for seconds, said in notes.values():
        assert float(seconds) >= least_s
        assert said.startswith("rank 1 ")
        assert "on channel 'test' in step 7" in said


def test_a_pause_longer_than_the_limit_is_nobodys_loss() -> None:
    assert launch.run(work.pause_then_exchange, 2.0, 4.0, workers=2) == [2, 2]


@pytest.mark.slow
def test_an_error_does_not_wait_for_a_rank_that_opens_late(tmp_path: Path) -> None:
    was_open, _ = launch.run(work.open_late, 8.0, str(tmp_path), workers=2)
    assert was_open is False


def test_a_rank_killed_before_its_door_is_named(tmp_path: Path) -> None:
    with pytest.raises(launch.RankFailed, match="rank 2 of 4 failed: its process ended by SIGKILL"):
        launch.run(work.die_before_the_door, str(tmp_path), workers=4)
    notes = {int(note.name): note.read_text() for note in tmp_path.iterdir()}
    assert set(notes) == {0, 1, 3}
    assert all(said.startswith("0 rank 2 ") for said in notes.values())


def test_a_rank_that_has_left_is_missed_only_where_it_is_needed() -> None:
    assert launch.run(work.leave_early, 3.0, workers=3) == [True, True, 0]


def test_channels_and_doors_do_not_mix() -> None:
    assert launch.run(work.cross_channels_and_doors, workers=2) == [[[1, 1], [2, 2], [3, 3]]] * 2


def test_sizes_that_do_not_match_end_in_an_error() -> None:
    said = launch.run(work.mismatched_sizes, 2.0, workers=2)[0]
    assert "10 bytes have not arrived" in said
    assert "do both ends expect the same sizes?" in said


def test_every_type_travels_and_mistakes_are_said_at_once() -> None:
    for received in launch.run(work.small_kinds, workers=2):
        assert received[:6] == [1.0] * 6
        assert [str(said).split(":")[0] for said in received[6:]] == [
            "data of shape (4, 4) is not contiguous; give data.contiguous()",
            "broadcast from rank 2",
            f"all_to_all",
            f"send to rank {str(received[9])[13]}",
        ]


def test_parts_of_one_buffer_are_sent_from_where_they_are() -> None:
    buffer = torch.arange(20, dtype=torch.uint8)
    parts = [buffer[2:5], buffer[5:5], buffer[5:11], buffer[11:20]]
    bundled = bundle(parts)
    assert bundled.data_ptr() == buffer.data_ptr() + 2
    assert torch.equal(bundled, buffer[2:])
    apart = [buffer[2:5], buffer[6:9]]
    assert torch.equal(bundle(apart), torch.cat(apart))
    same = [buffer[:4], buffer[:4]]
    assert torch.equal(bundle(same), torch.cat(same))


def test_loading_has_no_limit_and_all_leave_it_together() -> None:
    took_s = launch.run(work.load_slowly, 2.0, 7.0, workers=3)
    assert min(took_s) >= 6


@pytest.mark.parametrize(("how", "said"), [("killed", "rank 1 silent for"), ("raised", "rank 1 has left")])
def test_a_rank_that_is_lost_while_it_loads_is_named(how: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(launch.RankFailed):
        launch.run(work.load_until_lost, how, str(tmp_path), workers=3)
    notes = {int(note.name): note.read_text() for note in tmp_path.iterdir()}
    assert set(notes) == {0, 2}
    for words in notes.values():
        assert words.startswith(said)
        assert "on channel 'loading'" in words


def test_a_limit_above_the_process_groups_own_counts() -> None:
    assert launch.run(work.wait_longer_than_the_backend, 61.0, workers=2) == [0, 1]


def test_ranks_that_do_not_come_or_came_for_something_else_are_named() -> None:
    store = dist.HashStore()
    rank_specs = [RankSpec(rank, 3, rank, "", 0) for rank in range(3)]
    with pytest.raises(launch.StartFailed, match=r"ranks 1, 2 of 3 did not come within 0 s; look at their own output"):
        meet(store, rank_specs[0], "train", limit_s=0.2)
    with ThreadPoolExecutor() as threads:
        works = ["train", "train", "plan"]
        meetings = [threads.submit(meet, store, rank_spec, word, limit_s=9) for rank_spec, word in zip(rank_specs, works, strict=True)]
    for meeting in meetings:
        with pytest.raises(launch.StartFailed, match=r"rank 0 has come for train, rank 2 has come for plan; start all"):
            meeting.result()


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(meet, store, RankSpec(0, 2, 0, "", 0), "train", limit_s=9)
        monkeypatch.setattr(meeting, "__version__", "9.9")
        with pytest.raises(launch.StartFailed, match=r"rank 0 has thinwire .*, rank 1 has thinwire 9\.9; install"):
            meet(store, RankSpec(1, 2, 1, "", 0), "train", limit_s=9)
        with pytest.raises(launch.StartFailed, match="install the same version on all machines"):
            first.result()
