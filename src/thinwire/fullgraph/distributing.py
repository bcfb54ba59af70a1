"""Distributes a user's own PyG model: its layers compute on a shard, its weights are the same on all ranks.

Modules and the names of their weights stay as they are; only their forward functions are replaced.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch_geometric import nn as pyg
from torch_geometric.nn import MessagePassing

from thinwire.fullgraph.assign import obey
from thinwire.fullgraph.check import check as expect_same_in_parts
from thinwire.fullgraph.clock import Clock
from thinwire.fullgraph.dropout import NodeDropout
from thinwire.fullgraph.edges import Unsupported
from thinwire.fullgraph.form import Form
from thinwire.fullgraph.halo import Halo
from thinwire.fullgraph.layers import Sums
from thinwire.fullgraph.methods import METHODS, Method
from thinwire.fullgraph.norm import WholeBatchNorm
from thinwire.fullgraph.trial import Replaced
from thinwire.fullgraph.wire import Wire
from thinwire.graphs import Shard
from thinwire.links import Door
from thinwire.links.cost import CostModel
from thinwire.training.agreement import expect_same_start
from thinwire.training.gradients import GradientSum, check_codec, choosers
from thinwire.training.method import parse

# Modules that need all nodes at once.
WHOLE_GRAPH = (
    pyg.GPSConv,
    pyg.HeteroBatchNorm,
    pyg.HeteroLayerNorm,
    pyg.GraphNorm,
    pyg.InstanceNorm,
    pyg.PairNorm,
    pyg.DiffGroupNorm,
    pyg.MeanSubtractionNorm,
    pyg.GraphSizeNorm,
)
# Packages of pooling modules: they choose among all nodes, and return another graph.
POOLING = ("torch_geometric.nn.pool", "torch_geometric.nn.unpool")
# A halo's number is its layer's, plus this for each earlier call of the layer in a pass.
CALLS = 1000
# Epochs by which gradients' codec is chosen: after those that are traced, and before the usual first checkpoint. The
# first recorded one may wait for halo rows from before.
RECORDED = {"skipped": 4, "noted": 4, "unsettled": 1}


def distribute(
    model: nn.Module,
    shard: Shard,
    door: Door,
    method: Method | str = "exact",
    *,
    seed: int = 0,
    cost: CostModel | None = None,
    check: bool = False,
    gradients: str = "none",
) -> nn.Module:
    """Distribute a model, in place: its input and output rows are this shard's nodes, its gradients the whole graph's.

    All ranks get rank 0's weights. Compute the loss as the sum over this shard's training nodes, divided by
    `shard.num_train`. Each forward pass in training mode is an epoch. In evaluation mode messages are exact, whatever
    the method.

    `method` is one of `fullgraph.methods`, such as `Sylvie(bits=2)`, or its words, such as "sylvie --bits 2". Give
    layers `shard.edge_index` or None as edges, and `shard.edge_weight` or `shard.edge_attr` if they use them. `cost`
    is a profile's cost model of the links; without one, adaqp measures them itself.

    `gradients` says how weights' gradients are summed: "none" in float32, or by a codec that remembers what it lost,
    such as "topk:0.01" or "sign" (`gradients.algorithms`); "auto" chooses after a few epochs.

    With `check`, the model is tried on a tiny graph, whole and in parts, before its first pass in training mode and
    before its first in evaluation mode. A model that gives other rows or gradients in parts (a mean over nodes,
    attention over nodes, ...) is refused with an error that says where the difference begins. The check takes a
    fraction of a second and leaves the model as it is.
    """
    if shard.num_parts != door.world_size:
        raise ValueError(
            f"the shard is one of {shard.num_parts}, this run has {door.world_size} ranks; partition again"
        )
    if hasattr(model, "distributed"):
        raise ValueError(
            f"this {type(model).__name__} is distributed already; make a new one for another method or shard"
        )
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise Unsupported(f"{type(model).__name__} has weights without a shape yet; give layers their in_channels")
    if cost is not None and cost.world_size != door.world_size:
        raise ValueError(f"the profile is of {cost.world_size} ranks, this run has {door.world_size}; profile again")
    method = parse(method, METHODS) if isinstance(method, str) else method
    check_codec(gradients)
    expect_same_start(door, shard, method, seed, gradients)
    distributed = DistributedState(model, shard, door, method, seed, cost, gradients, checked=not check)
    if not distributed.layers:
        raise Unsupported(f"{type(model).__name__} has no PyG message passing layer: nothing to distribute")
    distributed.take_in(model)
    model.register_forward_pre_hook(distributed.before_pass, with_kwargs=True)
    model.register_forward_hook(distributed.after_pass, always_call=True)
    model.distributed = distributed  # type: ignore[assignment]
    return model


class Layer:
    """The forward of a message passing layer on a shard, with one halo for each call in a pass."""

    def __init__(self, conv: MessagePassing, name: str, distributed: "DistributedState", sums: Sums) -> None:
        self._conv, self._shard, self._distributed = conv, sums.shard, distributed
        self._form = Form(conv, name, sums)
        self.name = self._form.name
        self._number = len(distributed.layers)
        self.halos: list[Halo] = []
        self.calls = 0  # in this pass
        self.add_halo()

    def __call__(self, *arguments: Any, **named: Any) -> Tensor:
        if not self._distributed.within_pass:
            raise Unsupported(
                f"{self.name}: called by itself; call the model that was distributed, so that epochs are counted"
            )
        x, edges = self._form.read(*arguments, **named)
        if self.calls == len(self.halos):
            self.add_halo()
        halo = self.halos[self.calls]
        self.calls += 1
        halo.training = self._conv.training
        return self._form.rows(x, halo, edges)

    def add_halo(self) -> None:
        call = len(self.halos)
        name = self.name if call == 0 else f"{self.name}.{call}"
        number = self._number + CALLS * call
        self.halos.append(Halo(self._shard, self._distributed.door, self._distributed.clock, name=name, number=number))


class DistributedState:
    """What a distributed model holds beside its modules: its layers' halos, its dropouts, and their clock."""

    def __init__(
        self,
        model: nn.Module,
        shard: Shard,
        door: Door,
        method: Method,
        seed: int,
        cost: CostModel | None,
        gradients: str = "none",
        *,
        checked: bool = True,
    ) -> None:
        self.assigner = method.assigner(door, shard, cost, seed)
        self.clock = Clock(method, seed, shard, door.rank, self.assigner)
        self._began_s = 0.0
        self._loss: Tensor | float | None = None  # this rank's share in this pass, if it was noted
        self._is_open = False  # whether a training pass still waits for its gradients
        self._device = shard.x.device
        self._shard = shard
        self.door = door
        self.layers: list[Layer] = []
        self.within_pass = False
        self._dropouts: list[NodeDropout] = []
        self._known: dict[nn.Module | nn.Parameter, None] = {}  # those whose weights are the same on all ranks
        if gradients == "auto" and method.gentleness == 0:
            gradients = "none"  # exact stays equal to one process
        chooser = choosers(gradients, door=door, seed=seed, cost=cost, **RECORDED)
        self.gradients = GradientSum((), door, self.after_gradients, codec=gradients, seed=seed, chooser=chooser)
        # Modes (training or not) in which the model passed the check. One rank has the whole graph: nothing to check.
        self._checked = {True, False} if checked or door.world_size == 1 else set()
        self._is_checking = False
        self._replaced: list[Replaced] = []  # modules whose forward we replaced, and the forward they had
        sums = Sums(shard)
        forwards: list[tuple[nn.Module, Callable[..., Tensor]]] = []
        dropouts: list[nn.Dropout] = []
        for name, module in model.named_modules():
            if isinstance(module, MessagePassing):
                self.layers.append(Layer(module, name, self, sums))
                forwards.append((module, self.layers[-1]))
            elif isinstance(module, _BatchNorm):
                forwards.append((module, WholeBatchNorm(module, door, name)))
            elif isinstance(module, nn.Dropout):
                dropouts.append(module)
            elif type(module).__module__.startswith(POOLING):
                raise Unsupported(
                    f"{name}: {type(module).__name__} chooses among all nodes of the graph and is not distributed; "
                    "leave pooling out, or train on one rank"
                )
            elif isinstance(module, WHOLE_GRAPH) or (isinstance(module, pyg.LayerNorm) and module.mode == "graph"):
                raise Unsupported(
                    f"{name}: {type(module).__name__} looks at all nodes at once and is not distributed; use BatchNorm "
                    "or torch.nn.LayerNorm"
                )
            elif isinstance(module, pyg.BatchNorm):
                module.allow_single_element = False  # a rank with one row would leave the others waiting for its sums
        names = {module: name for name, module in model.named_modules()}
        self._replaced = [(names[module], module, module.forward) for module, _ in forwards]
        for module, forward in forwards:  # only now: a model that is refused stays as it is
            module.forward = forward
        for dropout in dropouts:
            self._add_dropout(dropout)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The method's choices so far, each as plan.N.json has it; empty for methods that choose nothing."""
        return [] if self.assigner is None else self.assigner.records

    @property
    def halos(self) -> list[Halo]:
        return [halo for layer in self.layers for halo in layer.halos]

    def note_loss(self, loss: Tensor | float) -> None:
        """Tell this rank's share of the loss, for a method that chooses by it: before each `loss.backward()`."""
        self._loss = loss.detach() if isinstance(loss, Tensor) else loss

    def take_in(self, model: nn.Module) -> None:
        """Copy rank 0's weights to all ranks, and have gradients summed. Finds weights added or unfrozen since too."""
        for name, module in model.named_modules():
            if module in self._known or not self._known:
                continue
            if isinstance(module, (MessagePassing, _BatchNorm, *WHOLE_GRAPH)):
                raise Unsupported(
                    f"{name}: {type(module).__name__} was added after the model was distributed, so it would see this "
                    "rank's nodes only; add it before"
                )
            if isinstance(module, nn.Dropout):
                self._add_dropout(module)
        tensors: list[Tensor] = []
        for module in model.modules():
            new = module not in self._known
            self._known[module] = None
            tensors += [weight for weight in module.parameters(recurse=False) if weight not in self._known]
            tensors += module.buffers(recurse=False) if new else ()
            self._known.update(dict.fromkeys(module.parameters(recurse=False)))
        for tensor in tensors:
            if tensor.numel():
                self.door.broadcast(tensor.data, 0, channel="weights").wait()
        self.gradients.follow(model.named_parameters())

    def _add_dropout(self, module: nn.Dropout) -> None:
        self._replaced.append(("", module, module.forward))
        self._dropouts.append(NodeDropout(module, self._shard, self.clock, len(self._dropouts)))
        module.forward = self._dropouts[-1]  # type: ignore[assignment]

    def before_pass(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_checking:
            return
        self.take_in(model)
        if model.training not in self._checked:
            self._is_checking = True
            try:
                expect_same_in_parts(model, self._replaced, (args, kwargs), self._shard, self.door)
            finally:
                self._is_checking = False
            self._checked.add(model.training)
        for layer in self.layers:
            layer.calls = 0
        for dropout in self._dropouts:
            dropout.calls = 0
        if model.training:
            self.gradients.step_begins()
            self.clock.begin_epoch()
            self.door.step = self.clock.epoch
            self._is_open, self._loss = True, None
        self.clock.lowest = None
        self.within_pass = True
        self._began_s = time.perf_counter()

    def after_pass(self, *_: object) -> None:
        if not self._is_checking:
            self.within_pass = False

    def after_gradients(self) -> None:
        """Let the method choose codecs, and send messages that were held back behind the weights' gradients."""
        if self.assigner is not None and self._is_open:
            seconds = time.perf_counter() - self._began_s
            loss = None if self._loss is None else float(self._loss)
            self.assigner.after_epoch(self.halos, self.clock.epoch, seconds, loss)
        self._is_open = False  # gradients in evaluation mode make no epoch
        for wire in self._wires():
            wire.release()

    def settle(self) -> None:
        """Receive all messages that are under way."""
        for wire in self._wires():
            wire.settle()

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint: tensors of past epochs that later ones need, by channel."""
        self.settle()
        tensors: dict[str, Tensor] = {}
        for wire in self._wires():
            if wire.held is not None:
                tensors[f"held/{wire.channel}"] = wire.held
            if wire.copies is not None:
                tensors |= {f"{name}/{wire.channel}": tensor for name, tensor in wire.copies.state().items()}
            if wire.bits is not None:
                tensors[f"bits/{wire.channel}/out"], tensors[f"bits/{wire.channel}/into"] = wire.bits
            if wire.trace is not None and wire.trace.early is not None:
                tensors[f"early/{wire.channel}"] = wire.trace.early
        return tensors

    def restore(self, epoch: int, state: dict[str, Tensor]) -> None:
        """Go on after this epoch, from what `state` returned. From an empty state, the next epoch is synchronous."""
        self.clock.epoch = epoch
        for layer in self.layers:  # a layer called several times in a pass needs its later halos before that pass
            while any(f"/{layer.name}.{len(layer.halos)}." in name for name in state):
                layer.add_halo()

        def on_device(name: str) -> Tensor | None:
            return state[name].to(self._device) if name in state else None

        for wire in self._wires():
            wire.held = on_device(f"held/{wire.channel}")
            if wire.copies is not None:
                wire.copies.restore(on_device(f"copies/{wire.channel}"), on_device(f"ages/{wire.channel}"))
            if (out := state.get(f"bits/{wire.channel}/out")) is not None:
                obey(wire, out, state[f"bits/{wire.channel}/into"])
            if wire.trace is not None:
                wire.trace.early = on_device(f"early/{wire.channel}")

    def _wires(self) -> Iterator[Wire]:
        for halo in self.halos:
            yield from halo.wires()
