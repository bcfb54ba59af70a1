"""The books: what was posted is what they say, and keeping them costs next to nothing."""

import time

import pytest

from thinwire.links.books import Books


def test_entries_add_up_by_channel_and_peer() -> None:
    books = Books()
    books.posted("halo", {1: 100, 2: 0})
    books.posted("halo", {1: 10, 2: 5})
    books.posted("gradients", {1: 7})
    books.finished("halo", 0.5)
    books.waited("halo", 0.25)
    taken = books.take()
    assert taken["halo"].to_json() == {
        "operations": 2,
        "bytes_to": {1: 110, 2: 5},
        "messages_to": {1: 2, 2: 1},
        "in_flight_s": 0.5,
        "exposed_s": 0.25,
        "codec_s": 0.0,
        "values": 0,
    }
    assert (taken["gradients"].bytes_sent, taken["gradients"].messages_sent) == (7, 1)
    assert books.take() == {}


def test_busy_is_while_anything_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("thinwire.links.books.time.perf_counter", lambda: now_s)
    books = Books()
    books.posted("a", {1: 1})
    books.posted("b", {1: 1})  # side by side: counted once
    now_s = 105.0
    books.finished("a", 5.0)
    books.finished("b", 5.0)
    now_s = 110.0
    books.posted("c", {1: 1})
    now_s = 112.0
    books.take()
    assert books.busy_s == 7.0
    now_s = 115.0  # still under way: it goes on into the next books
    books.finished("c", 5.0)
    now_s = 120.0
    books.take()
    assert books.busy_s == 3.0


@pytest.mark.slow
@pytest.mark.timed
def test_an_operation_costs_microseconds() -> None:
    """An epoch has some ten operations: at 50 us each (2 to 5 measured) the books stay below 1 % of one of 50 ms."""
    books = Books()
    sizes = dict.fromkeys(range(8), 1000)
    rounds = 2000
    start = time.process_time()
    for _ in range(rounds):
        books.posted("halo", sizes)
        books.finished("halo", 0.1)
        books.waited("halo", 0.1)
    assert (time.process_time() - start) / rounds < 50e-6
