"""Content of files as values: strict readers name what is wrong, lenient ones keep what fits."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field

from thinwire import artifacts
from thinwire.checked import Count, Number, leniently, strictly
from thinwire.gradients import Plan
from thinwire.links.cost import read_cost


@dataclass(frozen=True)
class Wire:
    rate: float


@dataclass(frozen=True)
class Network:
    hosts: int
    names: tuple[str, ...]
    wires: dict[str, Wire]
    rate: str = "1gbit"


GOOD: dict[str, Any] = {"hosts": 2, "names": ["a", "b"], "wires": {"a": {"rate": 3}}}


def test_what_fits_is_read_and_what_is_newer_is_passed_over() -> None:
    assert strictly({**GOOD, "colour": 1}, Network) == Network(2, ("a", "b"), {"a": Wire(3.0)})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hosts": "two"}, "hosts is 'two'; give a whole number"),
        ({"hosts": True}, "hosts is True; give a whole number"),
        ({"names": "ab"}, "names is 'ab'; give a list"),
        ({"names": ["a", 5]}, r"names\[1\] is 5; give a string"),
        ({"wires": [1]}, r"wires is \[1\]; give a table"),
        ({"wires": {"a": {}}}, r"wires\[...\] has no 'rate'"),
        ({"wires": {"a": {"rate": "fast"}}}, r"wires\[...\].rate is of another kind; give a number"),
        ({"rate": list(range(100))}, r"rate is \[0, 1, .*\.\.\.; give a string"),
    ],
)
def test_a_strict_reader_names_the_key_what_was_there_and_what_fits(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        strictly(GOOD | change, Network)


def test_a_strict_reader_names_what_is_missing() -> None:
    for key in ("hosts", "names", "wires"):
        with pytest.raises(ValueError, match=f"it has no '{key}'"):
            strictly({name: value for name, value in GOOD.items() if name != key}, Network)
    with pytest.raises(ValueError, match="it is 3; give a table"):
        strictly(3, Network)


class Span(Struct, frozen=True, array_like=True):
    name: str
    end_s: Number
    bytes: Number = 0.0


class Epoch(Struct, frozen=True):
    number: Count = field(name="epoch")
    loss: Number | None = None
    spans: tuple[tuple[Span, ...], ...] = ()
    sent: dict[Count, Number] = {}


@pytest.mark.parametrize("loss", ["low", True, None, float("nan"), float("inf"), 10**400, [1]])
def test_what_does_not_fit_counts_as_missing(loss: Any) -> None:
    assert leniently({"epoch": 3, "loss": loss, "newer": 1}, Epoch) == Epoch(3)


def test_items_and_entries_that_do_not_fit_are_left_out() -> None:
    content = {"epoch": 0, "spans": [[["a", 1], ["b", None], 5, ["c", 2, "x"]], 7], "sent": {"1": 5, "x": 1, "2": "y"}}
    read = leniently(content, Epoch)
    assert read == Epoch(0, spans=((Span("a", 1.0), Span("c", 2.0)), ()), sent={1: 5.0})


@pytest.mark.parametrize("content", [{}, {"epoch": -1}, {"epoch": True}, {"epoch": "0"}, [], 3, None])
def test_without_what_it_needs_there_is_no_value(content: Any) -> None:
    assert leniently(content, Epoch) is None


def test_a_profile_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for content, said in (
        ("{", r"Expecting property name"),
        ("[]", r"it is \[\]; give a table"),
        ('{"world_size": 2, "links": [{"src": 0}], "collectives": {}}', r"links\[0\] has no 'dst'"),
        ('{"world_size": "2", "links": [], "collectives": {}}', r"world_size is '2'; give a whole number"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"profile\.json is no profile \({said}.*\); make one with"):
            read_cost(str(path))


def test_a_plan_of_another_shape_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    Plan(2, {"w": 3}, ()).write(path)
    content = json.loads(path.read_text())
    assert Plan.read(path) == Plan(2, {"w": 3}, ())
    del content["checksum"]
    artifacts.write_sealed(path, {**content, "groups": [{"names": "w"}]})
    with pytest.raises(ValueError, match=r"plan\.json: groups\[0\]\.names is 'w'; give a list; profile and plan again"):
        Plan.read(path)
