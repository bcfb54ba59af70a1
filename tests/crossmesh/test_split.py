"""Backward in two parts equals backward, and does no more."""

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from tests.crossmesh.work_pipeline import Block
from thinwire.crossmesh.pipelines import split
from thinwire.crossmesh.pipelines.stage import Stage


class Odd(nn.Module):
    """A weight used twice, one that is not used, and one that no way from the input passes."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.aside = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"h": self.twice(torch.relu(self.twice(x))), "constant": self.aside * 2}


def test_equal_to_one_backward() -> None:
    torch.manual_seed(0)
    blocks = nn.Sequential(Block(), Block())
    x, gradient = torch.randn(3, 6, 16), torch.randn(3, 6, 16)
    gradients = []
    for parts in (1, 2):
        blocks.zero_grad()
        stage = Stage(blocks, ["h"], None, splits=parts == 2)
        inputs = x.clone().requires_grad_()
        stage.forward(0, {"x": inputs}, {}, None, 1.0)
        if parts == 1:
            made = stage.backward(0, {"h": gradient})["x"]
        else:
            made = stage.backward_input(0, {"h": gradient})["x"]
            linear = [submodule for submodule in blocks.modules() if isinstance(submodule, nn.Linear)]
            assert len(linear) > 4
            assert all(
                layer.weight.grad is None and (layer.bias is None or layer.bias.grad is None) for layer in linear
            )
            stage.backward_weight(0)
        gradients.append([made, *(parameter.grad for parameter in blocks.parameters())])
    assert len(gradients[0]) == 1 + 2 * 11
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
        assert not two.requires_grad  # nothing is kept behind it


def test_parts_add_up_over_microbatches_in_any_order() -> None:
    """Weights used twice, not at all, and beside the input's way; W's come late and in another order."""
    torch.manual_seed(0)
    module = Odd()
    batches = [torch.randn(4, 8) for _ in range(3)]
    for x in batches:
        made = module(x)
        (made["h"].sum() + made["constant"].sum()).backward()
    expected = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    stage = Stage(module, ["h", "constant"], None, splits=True)
    for number, x in enumerate(batches):
        stage.forward(number, {"x": x.clone().requires_grad_()}, {}, None, 1.0)
        stage.backward_input(number, {"h": torch.ones(4, 8), "constant": torch.ones(3)})
    for number in (1, 0, 2):
        stage.backward_weight(number)
    assert expected["unused.weight"] is None
    assert module.unused.weight.grad is None
    assert expected["aside"] is not None
    for name, parameter in module.named_parameters():
        if parameter.grad is not None or expected[name] is not None:
            torch.testing.assert_close(parameter.grad, expected[name])
    assert stage.peak == 3


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_hooks_of_weights_run_once_in_each_backward(when: str) -> None:
    """Registered before the stage was made, before its first forward, or between forward and backward."""
    seen: list[tuple[str, Tensor]] = []

    def hook(module: nn.Sequential) -> None:
        def scaled(gradient: Tensor) -> Tensor:
            seen.append(("weight", gradient.clone()))
            return gradient * 3

        def clipped(weight: Tensor) -> None:
            assert weight.grad is not None
            seen.append(("bias", weight.grad.clone()))
            weight.grad.clamp_(max=0.1)

        module.get_parameter("0.weight").register_hook(scaled)
        module.get_parameter("2.bias").register_post_accumulate_grad_hook(clipped)
        module[3].register_full_backward_hook(lambda *_: seen.append(("module", torch.zeros(()))))

    x, gradient = torch.randn(4, 8), torch.randn(4, 8)
    gradients = []
    for splits in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 8))
        if when == "before":
            hook(module)
        stage = Stage(module, ["h"], None, splits=splits)
        if when == "between":
            hook(module)
        for number in range(2):
            stage.forward(number, {"x": x.clone().requires_grad_()}, {}, None, 1.0)
        if when == "after":
            hook(module)
        seen.clear()
        made = []
        for number in range(2):
            made.append(stage.backward_input(number, {"h": gradient})["x"])
            assert splits is False or module[3].weight.grad is None, "the last layer's weight has no hook"
        for number in range(2):
            stage.backward_weight(number)
        # A module's own are for those that are there in its forward.
        names = ["module", "bias", "weight"] if when != "after" else ["bias", "weight"]
        assert sorted(name for name, _ in seen) == sorted(2 * names)
        gradients.append(
            [*made, *(parameter.grad for parameter in module.parameters()), *(parameter for _, parameter in seen)]
        )
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_a_hook_that_was_removed_is_none() -> None:
    module = nn.Linear(4, 4)
    module.weight.register_hook(lambda gradient: gradient).remove()
    stage = Stage(module, ["h"], None, splits=True)
    stage.forward(0, {"x": torch.ones(2, 4, requires_grad=True)}, {}, None, 1.0)
    stage.backward_input(0, {"h": torch.ones(2, 4)})
    assert module.weight.grad is None
    stage.backward_weight(0)
    assert module.weight.grad is not None


def test_an_input_that_nothing_depends_on_gets_zeros() -> None:
    module = nn.Bilinear(4, 4, 4)
    stage = Stage(Ignores(module), ["h"], None, splits=True)
    a, b = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    stage.forward(0, {"a": a, "b": b}, {}, None, 1.0)
    input_gradients = stage.backward_input(0, {"h": torch.ones(2, 4)})
    assert input_gradients["a"].abs().sum() > 0
    torch.testing.assert_close(input_gradients["b"], torch.zeros(2, 4))


class Ignores(nn.Module):
    def __init__(self, inner: nn.Bilinear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = self.inner(a, a)
        return out


def test_one_tensor_for_two_edges_is_refused() -> None:
    stage = Stage(nn.Linear(4, 4), ["h", "skip"], None)
    with pytest.raises(ValueError, match=r"its edges are \['h', 'skip'\]; return a dict"):
        stage.forward(0, {"x": torch.ones(2, 4)}, {}, None, 1.0)


def test_an_edge_without_a_tensor_is_refused() -> None:
    stage = Stage(Odd(), ["h", "skip"], None)
    with pytest.raises(ValueError, match="no 'skip'"):
        stage.forward(0, {"x": torch.ones(2, 8)}, {}, None, 1.0)


def test_what_is_no_parameter_or_frozen_or_in_another_thread_is_not_deferred() -> None:
    rest = split.Rest()
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    frozen = nn.Linear(4, 5).requires_grad_(False)
    with split.deferring(rest):
        functional.linear(x, weight).sum().backward()
        assert weight.grad is not None
        frozen(x).sum().backward()
        thread = threading.Thread(target=lambda: nn.Linear(4, 5)(x).sum().backward())
        thread.start()
        thread.join()
        with torch.no_grad():
            nn.Linear(4, 5)(x)
    rest.finish()
    assert frozen.weight.grad is None
    later = nn.Linear(4, 5)
    later(x).sum().backward()  # outside: as ever
    assert later.weight.grad is not None


def test_what_follows_a_linear_layer_may_work_in_place() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
    x, gradient = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    gradients = []
    for splits in (False, True):
        module.zero_grad()
        stage = Stage(module, ["h"], None, splits=splits)
        stage.forward(0, {"x": x.clone().requires_grad_()}, {}, None, 1.0)
        made = stage.backward(0, {"h": gradient})["x"]
        gradients.append([made, *(parameter.grad for parameter in module.parameters())])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_parts_do_what_one_backward_does_and_no_more() -> None:
    """In floating-point operations; seconds are in docs/pipelines.md."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*[nn.TransformerEncoderLayer(32, 4, 128, 0.0, batch_first=True) for _ in range(2)])
    x = torch.randn(4, 8, 32)
    counts = []
    for splits in (False, True):
        blocks.zero_grad()  # what is added to a gradient in place is not counted
        stage = Stage(blocks, ["h"], None, splits=splits)
        stage.forward(0, {"x": x.clone().requires_grad_()}, {}, None, 1.0)
        with FlopCounterMode(display=False) as first:
            stage.backward_input(0, {"h": torch.ones_like(x)})
        with FlopCounterMode(display=False) as second:
            stage.backward_weight(0)
        counts.append((first.get_total_flops(), second.get_total_flops()))
    (whole, nothing), (inputs, weights) = counts
    assert nothing == 0
    assert inputs + weights == whole
    assert 0.3 * whole < weights < 0.6 * whole


def test_what_a_micro_batch_keeps_is_counted() -> None:
    """Two linear layers and a relu: the input, the first's output (which relu and the second share) and no weights."""
    module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    stage = Stage(module, ["h"], None)
    stage.forward(0, {"x": torch.randn(5, 8, requires_grad=True)}, {}, None, 1.0)
    assert stage.activation_bytes == 4 * (5 * 8 + 5 * 32)
    before = stage.activation_bytes
    stage.forward(1, {"x": torch.randn(9, 8, requires_grad=True)}, {}, None, 1.0)
    assert stage.activation_bytes == before
    assert stage.peak == 2
