"""Runs a model on one part of the tiny graph and compares each step with the run on the whole graph.

The whole graph runs first, and every tensor that crosses between nodes is recorded, forward and backward. A part then
runs alone. Where it would receive halo rows, statistics or gradients from other parts, it gets the recorded values of
the whole graph. So the first difference shows where the model looks at more than nodes and their neighbours.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves
from torch_geometric.nn import MessagePassing

from thinwire.fullgraph.edges import Unsupported
from thinwire.fullgraph.form import Form
from thinwire.fullgraph.halo import Halo
from thinwire.fullgraph.layers import Sums
from thinwire.fullgraph.tiny import NUM_NODES, Given, Part
from thinwire.fullgraph.untouched import NoDropout, untouched

# A module of ours in a model: its path, itself, and its own forward.
Replaced = tuple[str, nn.Module, Callable[..., Any]]
CALLS = 2  # the second call shows whether the first one left some state behind
SLACK = 10.0
RELATIVE = 1e-3


class Differs(Exception):
    """A part gives another result than the whole graph. `at` is the number of steps before that."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at


@dataclass
class _Crossing:
    """Rows that other parts read, or that statistics are computed from."""

    name: str
    rows: Tensor
    gradient: Tensor | None = None


@dataclass
class _Step:
    """A module was entered, or left."""

    module: str
    enters: bool
    values: list[Tensor]


@dataclass
class Run:
    """The forward passes and the backward pass of one part, compared with those of `whole`. `None`: it is the whole."""

    model: nn.Module
    part: Part
    whole: "Run | None" = None
    nudged: "Run | None" = None  # the whole graph again, with slightly changed features
    crossings: list[_Crossing] = field(default_factory=list)
    # Rows that layers fetch once: degrees, node numbers.
    answers: list[Tensor] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    found: Differs | None = None  # the first difference
    is_wrong: bool = False  # a difference reaches the output, or rows that other parts read
    goes_back: bool = False
    _open: list[str] = field(default_factory=list)  # modules whose forward is running
    _done: dict[str, str] = field(default_factory=dict)  # by such a module: the last submodule whose forward ended

    def go(self, replaced: Sequence[Replaced], arguments: Given, seed: int) -> "Run":
        device = self.part.rows.device
        with untouched(self.model, seed=seed, device=device), self._watched(replaced), NoDropout():
            losses = []
            for _ in range(CALLS):
                for output in tree_leaves(self.model(*arguments[0], **arguments[1])):
                    if isinstance(output, Tensor):
                        losses += [] if (loss := self._loss(output)) is None else [loss]
                        self.outputs.append(output.detach().clone())
            if losses:
                self.goes_back = True
                torch.stack(losses).sum().backward()
            for name, weight in self.model.named_parameters():
                if weight.grad is not None:
                    self.gradients[name] = weight.grad
            self.buffers = dict(self.model.named_buffers())
        return self

    def _loss(self, out: Tensor) -> Tensor | None:
        """A random weighted sum over the rows of training nodes; None if the output has no rows by node."""
        full = out if self.whole is None else self.whole.outputs[len(self.outputs)]
        if not out.requires_grad or not out.is_floating_point() or NUM_NODES not in full.shape:
            return None
        weights = torch.randn(full.shape, generator=torch.Generator().manual_seed(9)).to(out)
        if len(full) == NUM_NODES:
            trained = self.training_nodes.view(-1, *[1] * (full.ndim - 1))
            weights = weights * trained
        part_weights = self.part.of(weights, tuple(out.shape))
        return None if part_weights is None else (out * part_weights).sum()

    @property
    def training_nodes(self) -> Tensor:
        shard = (self.whole or self).part.shard
        return (shard.split == 0).to(shard.x)

    @contextmanager
    def _watched(self, replaced: Sequence[Replaced]) -> Iterator[None]:
        """Layers and norms get their remote rows from this run; all other modules record inputs and outputs."""
        for _, module, forward in replaced:
            module.forward = forward
        sums = Sums(self.part.shard)
        convs = [(name, module) for name, module, _ in replaced if isinstance(module, MessagePassing)]
        forms = [Form(module, name, sums) for name, module in convs]
        for form, (_, conv) in zip(forms, convs, strict=True):
            conv.forward = partial(self._conv, form)
        for name, module, _ in replaced:
            if isinstance(module, _BatchNorm):
                module.forward = partial(self._norm, module, name)  # type: ignore[method-assign]
        inside = {inner for _, conv in convs for inner in conv.modules() if inner is not conv}
        hooks = []
        for name, module in self.model.named_modules():
            if module not in inside and not isinstance(module, torch.jit.ScriptModule):
                hooks.append(module.register_forward_pre_hook(partial(self._enters, name), with_kwargs=True))
                hooks.append(module.register_forward_hook(partial(self._leaves, name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _conv(self, form: Form, *arguments: Any, **named: Any) -> Tensor:
        x, edges = form.read(*arguments, **named)
        # An alias of x, so that the gradient hooks see the gradient of this layer only.
        return form.rows(x.view_as(x), cast(Halo, _KnownHalo(self, form.name)), edges)

    def _norm(self, norm: _BatchNorm, name: str, x: Tensor) -> Tensor:
        if not norm.training and norm.running_mean is not None:
            return _BatchNorm.forward(norm, x)
        x = x.view_as(x)
        at, rows = self.crosses(name, x)
        if self.whole is None:
            return _BatchNorm.forward(norm, x)
        all_places = torch.arange(len(rows), device=x.device)
        places = self.part.of(all_places, (len(x),))
        if places is None:
            raise self.differs(f"{name} ({type(norm).__name__}) is given {len(x)} rows of {len(all_places)}")
        rows = rows.index_copy(0, places, x)
        if rows.requires_grad:
            rows.register_hook(partial(self._comes_back, at, all_places))
            x.register_hook(partial(self._hand, at))
        out: Tensor = _BatchNorm.forward(norm, rows)
        return out.index_select(0, places)

    def halo(self, name: str, x: Tensor) -> Tensor:
        """The halo rows of a layer, from the rows of the whole graph."""
        at, rows = self.crosses(name, x)
        if self.whole is None:
            return x.new_empty((0, x.shape[1]))
        halo_rows = rows[self.part.halo]
        if x.requires_grad:
            halo_rows.requires_grad_().register_hook(partial(self._comes_back, at, self.part.halo))
            x.register_hook(partial(self._comes_back, at, self.part.rows))
            x.register_hook(partial(self._hand, at))
        return halo_rows

    def crosses(self, name: str, x: Tensor) -> tuple[int, Tensor]:
        """Record a crossing of these rows. Returns its number and the rows of the whole graph."""
        if self.goes_back:
            raise Unsupported(
                f"{name}: computed again on the way back, for a checkpoint, where ranks don't exchange rows; leave the "
                "checkpoint around it out"
            )
        at = len(self.crossings)
        self.crossings.append(_Crossing(name, x.detach().clone()))
        if self.whole is None:
            if x.requires_grad:
                x.register_hook(partial(_note, self.crossings[at]))
            return at, x
        known = self.whole.crossings[at] if at < len(self.whole.crossings) else None
        if known is None or known.name != name or known.rows.shape[1:] != x.shape[1:]:
            raise self.differs(f"{name} is called at another moment, or with rows of another kind")
        if not self._same(known.rows, x.detach(), self.nudged.crossings[at].rows if self.nudged else None):
            self.is_wrong = True
        return at, known.rows

    def _comes_back(self, at: int, places: Tensor, gradient: Tensor) -> None:
        """Add this part's share to the gradient of a crossing."""
        assert self.whole is not None
        whole = self.whole.crossings[at].rows
        crossing = self.crossings[at]
        crossing.gradient = torch.zeros_like(whole) if crossing.gradient is None else crossing.gradient
        crossing.gradient.index_add_(0, places, gradient)

    def _hand(self, at: int, gradient: Tensor) -> Tensor:
        """Replace the gradient of a crossing by that of the whole graph."""
        assert self.whole is not None
        known = self.whole.crossings[at].gradient
        part_gradient = None if known is None else self.part.of(known, tuple(gradient.shape))
        return torch.zeros_like(gradient) if part_gradient is None else part_gradient

    def answer(self, rows: Tensor) -> Tensor:
        self.answers.append(rows.detach().clone())
        if self.whole is None:
            return rows.new_empty((0, rows.shape[1]))
        return self.whole.answers[len(self.answers) - 1][self.part.halo]

    def _enters(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._step(name, True, (args, kwargs))
        self._open.append(name)

    def _leaves(self, name: str, module: nn.Module, _: Any, out: Any) -> None:
        if self._open and self._open[-1] == name:
            self._step(name, False, out)
            self._open.pop()
            if self._open:
                self._done[self._open[-1]] = name

    def _step(self, name: str, enters: bool, values: Any) -> None:
        if self.goes_back or (self.found is not None and (name or enters)):
            return
        ends = name == "" and not enters
        leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
        # Node numbers differ between parts, and the model's own inputs are right by construction.
        if not ends:
            leaves = [leaf for leaf in leaves if leaf.is_floating_point() and name]
        step = _Step(name, enters, [leaf.detach().clone() for leaf in leaves])
        at = len(self.steps)
        self.steps.append(step)
        if self.whole is None:
            return
        ends = name == "" and not enters
        steps = (
            [other for other in self.whole.steps if other.module == "" and not other.enters]
            if ends
            else self.whole.steps
        )
        if ends:
            at = sum(other.module == "" and not other.enters for other in self.steps) - 1
        known = steps[at] if at < len(steps) else None
        if known is None or (known.module, known.enters, len(known.values)) != (name, enters, len(step.values)):
            raise self.differs("other modules are called, or in another order")
        place = next(place for place, other in enumerate(self.whole.steps) if other is known)
        nudged = self.nudged.steps[place].values if self.nudged else [None] * len(step.values)
        for whole_value, value, nudged_value in zip(known.values, step.values, nudged, strict=True):
            if not self._same(whole_value, value, nudged_value):
                self.found = self.found or self.differs(self._where(name, enters), at)
                self.is_wrong = self.is_wrong or ends
                return

    def differs(self, text: str, at: int | None = None) -> Differs:
        return Differs(text, len(self.steps) if at is None else at)

    def _where(self, name: str, enters: bool) -> str:
        """Text for an error: where a difference begins that was seen when this module was entered or left."""
        inner = self._done.get(name)
        if not enters and (inner is None or isinstance(self._module(name), MessagePassing)):
            return f"{self._called(name)} gives other rows"
        outer = (self._open[-1] if self._open else "") if enters else name
        before = self._done.get(outer)
        begins = f"after {before!r}" if before else "before its first module"
        ends = f"before {name!r}" if enters else "at its end"
        return f"it happens in the forward of {self._called(outer)} itself, {begins} and {ends}"

    def _called(self, name: str) -> str:
        kind = type(self._module(name)).__name__
        return f"{name} ({kind})" if name else kind

    def _module(self, name: str) -> nn.Module:
        return self.model.get_submodule(name)

    def where_it_stopped(self) -> str:
        return f"{self._called(self._open[-1] if self._open else '')} fails"

    def _same(self, whole: Tensor, value: Tensor, nudged: Tensor | None) -> bool:
        right = self.part.of(whole, tuple(value.shape))
        if right is None:
            return False
        moved = 0.0 if nudged is None or nudged.shape != whole.shape else furthest(nudged, whole)
        return alike(value, right, moved)

    def buffer_that_differs(self) -> str | None:
        assert self.whole is not None
        for name, right in self.whole.buffers.items():
            nudged = self.nudged.buffers.get(name) if self.nudged else None
            if name in self.buffers and not self._same(right, self.buffers[name], nudged):
                return name
        return None


class _KnownHalo:
    """Stands in for a layer's `Halo`; its rows are those of the whole graph."""

    reads: Any = None
    training = True

    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name = run, name
        self._is_layer = False

    def travels(self, x: Tensor) -> bool:
        return False

    def is_features(self, x: Tensor) -> bool:
        return False

    def most(self, counts: Tensor) -> int:
        return int((self._run.whole or self._run).part.shard.indptr.diff().max())

    def once(self, x: Tensor, make: Callable[[], Tensor], by: object = None) -> Tensor:
        self._is_layer = True
        try:
            return make()
        finally:
            self._is_layer = False

    def ask(self, x: Tensor) -> Tensor:
        run = self._run
        if not self._is_layer:
            return run.answer(x)
        return run.halo(self._name, x)


def alike(value: Tensor, right: Tensor, moved: float) -> bool:
    """Whether both are equal up to float32 rounding. `moved`: how far a small change of the features moves them."""
    if not right.numel() or not (right.is_floating_point() or right.is_complex()):
        return bool(torch.equal(value, right))
    sizes = right.abs()
    slack = SLACK * moved + RELATIVE * float(sizes[sizes.isfinite()].max() if sizes.isfinite().any() else 0)
    return torch.allclose(value, right, rtol=RELATIVE, atol=slack, equal_nan=True)


def furthest(a: Tensor, b: Tensor) -> float:
    """The largest absolute difference that is finite."""
    if not a.numel() or not a.is_floating_point():
        return 0.0
    apart = (a - b).abs()
    return float(apart[apart.isfinite()].max()) if apart.isfinite().any() else 0.0


def _note(crossing: _Crossing, gradient: Tensor) -> None:
    crossing.gradient = gradient.detach().clone()
