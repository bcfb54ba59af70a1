"""Methods and words: each makes the other; options stand in one place, and mistakes name the option."""

from typing import Any

import pytest

from thinwire import fullgraph, minibatch
from thinwire.bench.methods import COMPARED, METHODS, STANDS_FOR, job_of
from thinwire.training.method import Method, about, options_of, parse, split

# Of every option a value that is not the usual one.
OTHER: dict[str, Any] = {
    "bits": 4,
    "base": 4,
    "clock": "seconds",
    "staleness": 0,
    "sync_every": 7,
    "bits_choice": (2, 4, 8),
    "assign": "hide",
    "assign_every": 20,
    "balance": 0.25,
    "weigh": "gradient",
    "only": "overlap",
    "share": 0.3,
    "batch": 64,
    "fanouts": (4, -1),
    "cache": 0.32,
    "code": "difference",
    "budget": 0.5,
    "cache_policy": "degree",
    "rows": "uniform:8",
    "depth": 0,
    "threads": 3,
}


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_words_make_a_method_and_it_makes_the_words_again(kind: type[Method]) -> None:
    assert METHODS[kind.name] is kind
    assert kind().words() == kind.name
    assert set(options_of(kind)) <= set(OTHER)
    for option in options_of(kind):
        method = kind(**{option: OTHER[option]})
        assert len(method.words().split()) == 3
        assert parse(method.words(), METHODS) == method
        assert parse(method.words().replace(" ", "=").replace("=", " ", 1), METHODS) == method
    whole = kind(**{option: OTHER[option] for option in options_of(kind)})
    assert parse(whole.words(), METHODS) == whole
    assert whole.to_json() == {"method": kind.name, **{option: OTHER[option] for option in options_of(kind)}}


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_every_method_and_option_says_what_it_is(kind: type[Method]) -> None:
    assert 10 < len(about(kind)) < 90
    assert all(parse(words, METHODS).name == kind.name for words in kind.compared)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "there is no method ''; give one of exact"),
        ("exact --bits 2", "there is no --bits; exact has no options"),
        ("sylvie --share 2", "there is no --share; sylvie has --bits, --code, --budget, --staleness, --sync-every"),
        ("sylvie --sync-every often", "--sync-every often; give a whole number"),
        ("sylvie --bits", "--bits has no value"),
        ("sylvie --bits --staleness 1", "--bits has no value"),
        ("sylvie 2", "2 follows no option"),
        ("adaqp --balance some", "--balance some; give a number"),
        ("salient --rows few", "--rows few; give one of auto, float32"),
        ("salient --fanouts 4;3", "--fanouts 4;3; give whole numbers with commas between"),
    ],
)
def test_mistakes_name_the_option_and_what_would_work(words: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(words, METHODS)


def test_methods_that_only_cases_have_are_others_by_another_name() -> None:
    for name, words in STANDS_FOR.items():
        assert job_of(name, {}, 0).method == parse(words, METHODS)
    assert job_of("replicated --rows uniform:8", {}, 0).method.rows == "uniform:8"
    assert {split(words)[0] for words in COMPARED} == {"exact", "pipe", "sylvie", "adaqp", "salient"}


def test_a_case_gives_each_method_the_settings_that_it_has() -> None:
    settings = {"sync_every": 5, "cache": 0.5, "fanouts": "4,3", "layers": 2, "data": "here"}
    assert job_of("sylvie --bits 2", settings, 3).method == fullgraph.Sylvie(bits=2, sync_every=5)
    salient = job_of("salient", settings, 3)
    assert salient.method == minibatch.Salient(cache=0.5, fanouts=(4, 3))
    assert (salient.layers, salient.seed, salient.data) == (2, 3, "here")


def test_the_usual_fanouts_are_as_many_as_there_are_layers() -> None:
    usual = minibatch.Salient()
    assert [usual.for_layers(layers).fanouts for layers in (1, 3, 5)] == [(15,), (15, 10, 5), (15, 10, 5, 5, 5)]
    with pytest.raises(ValueError, match="2 layers and fan-outs 4; give a fan-out for each layer"):
        minibatch.Salient(fanouts=(4,)).for_layers(2)
