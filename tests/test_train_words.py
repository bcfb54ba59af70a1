"""`thinwire train [METHOD]`: options beside each method's own, a help for each, and whose an option is."""

from collections.abc import Callable

import pytest

from thinwire.bench.methods import METHODS
from thinwire.cli.commands import parsed
from thinwire.cli.train import Train
from thinwire.cli.train_words import train_from
from thinwire.fullgraph import AdaQP, Exact, Sylvie
from thinwire.minibatch import Salient
from thinwire.training.method import dashed, options_of


@pytest.mark.parametrize(
    "words",
    [
        "sylvie --bits 2 --epochs 3",
        "--method sylvie --bits 2 --epochs 3",
        "--bits 2 --epochs 3 --method=sylvie",
        "--epochs 3 --bits=2 --method sylvie",
        "sylvie --method sylvie --bits 2 --epochs 3",
    ],
)
def test_the_first_word_and_the_option_are_the_same(words: str) -> None:
    train = train_from(words.split())
    assert train.method == Sylvie(bits=2)
    assert train.epochs == 3


def test_without_a_method_it_is_exact_or_that_of_the_mode() -> None:
    assert train_from([]) == Train()
    assert train_from(["--epochs", "3"]).method == Exact()
    assert train_from(["--mode", "minibatch", "--cache", "0.5"]).method == Salient(cache=0.5)
    assert train_from(["--mode=minibatch"]).method == Salient()
    assert train_from(["auto"]).method is train_from(["--method", "auto", "--epochs", "3"]).method is None
    assert parsed(["train", "adaqp", "--bits-choice", "8,2"]).method == AdaQP(bits_choice=(2, 8))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_help_with_its_own_options_first(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        train_from([name, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    positions = [shown.index(f"{dashed(option)} ") for option in options_of(METHODS[name])]
    assert max(positions, default=0) < shown.index("--data ")
    others = {option for kind in METHODS.values() for option in options_of(kind)} - set(options_of(METHODS[name]))
    assert not [option for option in others if f"│ {dashed(option)} " in shown]


def test_the_help_lists_the_methods(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train_from(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n{name}: " in shown for name in (*METHODS, "auto"))
    assert "│ --bits " not in shown
    assert "--epochs " in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--bits 2", "--bits is an option of sylvie; exact has no options. Give `thinwire train sylvie --bits ...`"),
        (
            "sylvie --cache 1",
            "--cache is an option of salient; sylvie has --bits, --code, --budget, --staleness, --sync-every",
        ),
        ("auto --sync-every 5", "auto compares methods as they usually are: leave --sync-every out"),
        ("sylvie --method adaqp", "sylvie and --method adaqp; give one method"),
        ("--method", "--method has no value; give one of exact"),
        (
            "silvie",
            "there is no method 'silvie'; give one of exact, pipe, sylvie, sylvie3d, adaqp, bns, salient, auto. ",
        ),
        ("sylvie --epoch 3", "train has no option --epoch. Did you mean '--epochs'?"),
        ("--against silvie", "Did you mean 'sylvie'?"),
        ("salient --rows few", "--rows few; give one of auto, float32"),
        ("bns --share 2", "share is 2.0; give more than 0"),
        ("sylvie --profile nowhere.json", "--profile goes with adaqp"),
        ("exact --checkpoint-steps 5", "--checkpoint-steps goes with salient"),
    ],
)
def test_whose_an_option_is(words: str, said: str, refused: Callable[..., str]) -> None:
    assert said in refused("train", *words.split())
