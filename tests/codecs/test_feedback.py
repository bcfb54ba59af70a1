"""What was sent plus what is remembered is what came in; memory is by name and can be saved."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.codecs.every import every_codec, normal
from thinwire.codecs import QSGD, BFloat16, Codec, ErrorFeedback, Identity, RandomK, Sign, TopK, Uniform

CODECS = [codec for codec in every_codec(9) if not isinstance(codec, ErrorFeedback) and "unbiased" not in str(codec)]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_nothing_is_lost(codec: Codec) -> None:
    memory = ErrorFeedback(codec)
    sent, wanted = torch.zeros(9, 33, dtype=torch.float64), torch.zeros(9, 33, dtype=torch.float64)
    for step in range(20):
        x = normal(9, 33, seed=step)
        data = memory.encode(x, name="w", seed=step)
        assert len(data) == memory.nbytes(x.shape) == codec.nbytes(x.shape)
        sent += memory.decode(data, x.shape, seed=step)
        wanted += x
    remembered = memory.state_dict()["w"]
    scale = float(wanted.abs().max() + remembered.abs().max())
    torch.testing.assert_close(sent + remembered, wanted, rtol=0, atol=scale * 20 * 2.0**-23)


@pytest.mark.parametrize(
    "codec", [Sign(), TopK(0.1), RandomK(0.1), Uniform(4), Uniform(8), QSGD(8), BFloat16()], ids=str
)
def test_memory_stays_bounded_around_a_contraction(codec: Codec) -> None:
    memory = ErrorFeedback(codec)
    norms = []
    for step in range(200):
        memory.encode(normal(1000, seed=step), seed=step)
        norms.append(float(memory.state_dict()[""].norm()))
    # E |m|^2 <= (1 - d) / d^2 |x|^2 for a d-contraction: 9.5 |x| at d = 0.1. A memory that grows would be far beyond.
    assert max(norms[100:]) <= 10 * 1000**0.5
    assert max(norms[150:]) <= 1.5 * max(norms[50:100]) + 1e-3


def test_memory_lets_small_values_through() -> None:
    memory = ErrorFeedback(TopK(0.1))
    x = torch.linspace(0.1, 1, 10)
    total = sum(memory.decode(memory.encode(x, seed=s), x.shape) for s in range(200))
    torch.testing.assert_close(torch.as_tensor(total) / 200, x, atol=0.06, rtol=0)


def test_names_are_apart_and_shapes_are_checked() -> None:
    memory = ErrorFeedback(TopK(0.5))
    memory.encode(torch.tensor([3.0, 1.0]), name="a")
    memory.encode(torch.tensor([1.0, 5.0]), name="b")
    assert memory.state_dict()["a"].tolist() == [0.0, 1.0]
    assert memory.state_dict()["b"].tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"name 'a' remembers shape \(2,\), x has \(3,\); give each tensor a name"):
        memory.encode(torch.zeros(3), name="a")


def test_memory_survives_a_file(tmp_path: Path) -> None:
    first = ErrorFeedback(TopK(0.3))
    first.encode(normal(40), name="layer.weight")
    save_file(first.state_dict(), tmp_path / "memory.safetensors")
    second = ErrorFeedback(TopK(0.3))
    second.load_state_dict(load_file(tmp_path / "memory.safetensors"))
    x = normal(40, seed=1)
    assert torch.equal(first.encode(x, name="layer.weight"), second.encode(x, name="layer.weight"))
    assert torch.equal(first.state_dict()["layer.weight"], second.state_dict()["layer.weight"])


def test_loading_replaces_copies_and_keeps_float32() -> None:
    memory = ErrorFeedback(TopK(0.5))
    memory.encode(torch.tensor([3.0, 1.0]), name="a")
    state = {"b": torch.tensor([0.0, 2.0])}
    memory.load_state_dict(state)
    state["b"].zero_()
    assert list(memory.state_dict()) == ["b"]
    assert memory.state_dict()["b"].tolist() == [0.0, 2.0]
    x = torch.tensor([1.0, 1e-3], dtype=torch.float16)
    memory.encode(x, name="c")
    assert memory.state_dict()["c"].dtype == torch.float32
    memory.encode(x, name="c")
    assert float(memory.state_dict()["c"][1]) == float(x[1].float() * 2)


def test_a_saved_state_is_a_copy() -> None:
    memory = ErrorFeedback(TopK(0.5))
    memory.encode(torch.tensor([3.0, 1.0]), name="a")
    memory.state_dict()["a"].zero_()
    assert memory.state_dict()["a"].tolist() == [0.0, 1.0]


def test_a_refused_message_changes_no_memory() -> None:
    memory = ErrorFeedback(TopK(0.5))
    memory.encode(torch.tensor([3.0, 1.0]), name="a")
    with pytest.raises(ValueError, match="not finite"):
        memory.encode(torch.tensor([float("nan"), 1.0]), name="a")
    assert memory.state_dict()["a"].tolist() == [0.0, 1.0]


def test_two_memories_are_refused() -> None:
    with pytest.raises(ValueError, match="one memory is enough"):
        ErrorFeedback(ErrorFeedback(Identity()))
