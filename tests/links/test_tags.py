"""Tags: the same on all ranks, no two names' alike, and never two messages with one at a time."""

import pytest
import torch.distributed as dist

from thinwire.links import tags
from thinwire.links.tags import SPAN, Tags


def test_ranks_agree_whoever_asks_first_and_names_never_share() -> None:
    store = dist.HashStore()
    mine, yours = Tags(store), Tags(store)
    names = [f"channel {number}" for number in range(500)]
    ours = [mine.take(name, 7) for name in names]
    assert [yours.take(name, 7) for name in reversed(names)] == ours[::-1]
    assert len(set(ours)) == len(names)
    messages = {mine.of_messages(name) for name in names}
    assert messages == {yours.of_messages(name) for name in names}
    assert not messages & set(ours)


def test_a_tag_in_use_is_refused_until_it_is_given_back() -> None:
    ours = Tags(dist.HashStore())
    tag = ours.take("x", 3)
    with pytest.raises(RuntimeError, match="'x': number 3 is still under way"):
        ours.take("x", 3)
    ours.give_back(tag)
    assert ours.take("x", 3) == tag


def test_different_ends_may_share_a_tag_and_the_same_may_not() -> None:
    ours = Tags(dist.HashStore())
    tag = ours.take("x", 0, [("from", 1)])
    assert ours.take("x", 0, [("from", 2)]) == tag
    with pytest.raises(RuntimeError, match="still under way"):
        ours.take("x", 0, [("to", 0), ("from", 2)])
    assert ours.take("x", 0, [("to", 0)]) == tag, "a refused one took an end"


def test_a_name_with_more_numbers_than_a_block_has_several() -> None:
    ours = Tags(dist.HashStore())
    taken = [ours.take("x", number) for number in (0, SPAN - 1, SPAN, 2 * SPAN)] + [ours.take("y", 0)]
    assert len(set(taken)) == len(taken)


def test_names_that_continue_each_other_share_no_tag() -> None:
    ours = Tags(dist.HashStore())
    taken = [ours.take("x", SPAN), ours.take("x 1", 0), ours.take("1 x", 0), ours.take("1 x", SPAN)]
    taken += [ours.take("x message", 0), ours.take("messages x", 0), ours.of_messages("x")]
    assert len(set(taken)) == len(taken)


def test_more_channels_than_tags_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "BLOCKS", 2)
    ours = Tags(dist.HashStore())
    ours.take("first", 0)
    with pytest.raises(RuntimeError, match="'second' would be channel number 2; use fewer than 2 channels"):
        ours.take("second", 0)
