"""A user's own PyG model, on a shard: its layers compute their distributed form, its weights are shared by all ranks.

Modules stay where they are, with the names of their weights; only what their forward does is another.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch_geometric import nn as pyg
from torch_geometric.nn import MessagePassing

from thinwire.fullgraph.assign import Assigner, obey
from thinwire.fullgraph.clock import Clock
from thinwire.fullgraph.dropout import NodeDropout
from thinwire.fullgraph.edges import Call, Unsupported
from thinwire.fullgraph.halo import Halo
from thinwire.fullgraph.layers import LAYERS, Rule, Sums
from thinwire.fullgraph.norm import WholeBatchNorm
from thinwire.fullgraph.pace import Pace
from thinwire.fullgraph.plan import Plan
from thinwire.fullgraph.split_rows import SplitRows
from thinwire.fullgraph.wire import Wire
from thinwire.graphs import Shard
from thinwire.links import Door
from thinwire.links.cost import CostModel
from thinwire.links.sketch import sketch
from thinwire.training.gradients import GradientSum

# These look at all nodes at once, each in a way of its own.
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
# Places are numbered by layer, and by call of a layer in steps of this.
CALLS = 1000


def distribute(
    model: nn.Module, shard: Shard, door: Door, plan: Plan | None = None, cost: CostModel | None = None
) -> nn.Module:
    """The same model, changed in place: rows in are this shard's nodes, rows out too, gradients are the whole graph's.

    Weights are rank 0's. The loss is yours: the sum over this shard's training nodes, over `shard.num_train`. An epoch
    is a forward pass in training mode; in evaluation mode messages are exact whatever the plan. Layers are given
    `shard.edge_index`, or None, and where they use them `shard.edge_weight` or `shard.edge_attr`. `cost` is what a
    profile says of the wires; adaqp measures them itself where none is given.
    """
    if shard.num_parts != door.world_size:
        raise ValueError(
            f"the shard is one of {shard.num_parts}, this run has {door.world_size} ranks; partition again"
        )
    if hasattr(model, "places"):
        raise ValueError(
            f"this {type(model).__name__} is distributed already; make a new one for another plan or shard"
        )
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise Unsupported(f"{type(model).__name__} has weights without a shape yet; give layers their in_channels")
    if cost is not None and cost.world_size != door.world_size:
        raise ValueError(f"the profile is of {cost.world_size} ranks, this run has {door.world_size}; profile again")
    places = Places(model, shard, door, plan or Plan(), cost)
    if not places.layers:
        raise Unsupported(f"{type(model).__name__} has no PyG message passing layer: nothing to distribute")
    places.take_in(model)
    model.register_forward_pre_hook(places.before_pass)
    model.register_forward_hook(places.after_pass, always_call=True)
    model.places = places  # type: ignore[assignment]
    return model


class Layer:
    """A message passing layer's forward on a shard. Called several times in a pass, it has as many halos."""

    def __init__(self, conv: MessagePassing, name: str, places: "Places", sums: Sums) -> None:
        shard = sums.shard
        self._conv, self._shard, self._places = conv, shard, places
        self.name = name or type(conv).__name__
        self._number = len(places.layers)
        if conv.flow != "source_to_target":
            raise Unsupported(f"{self.name}: {type(conv).__name__}(flow={conv.flow!r}); give 'source_to_target'")
        self._call = Call(self.name, conv.forward, shard)
        make = LAYERS.get(type(conv))
        matrix = make(conv, sums) if make is not None else None
        self._rule: Rule = matrix or SplitRows(conv, self.name, shard)
        self._is_matrix = matrix is not None
        self.halos: list[Halo] = []
        self.calls = 0  # in this pass
        self.add_halo()

    def __call__(self, *arguments: Any, **named: Any) -> Tensor:
        if not self._places.within_pass:
            raise Unsupported(
                f"{self.name}: called by itself; call the model that was distributed, so that epochs are counted"
            )
        x, edges = self._call.read(*arguments, **named)
        if self._is_matrix and edges.learned:
            raise Unsupported(
                f"{self.name}: {type(self._conv).__name__} with learned edge weights is not distributed; detach them, "
                "or use a layer that learns from edge features (GATv2Conv, GINEConv, NNConv)"
            )
        if self.calls == len(self.halos):
            self.add_halo()
        halo = self.halos[self.calls]
        self.calls += 1
        halo.training = self._conv.training
        return self._rule(x, halo, edges)

    def add_halo(self) -> None:
        call = len(self.halos)
        name = self.name if call == 0 else f"{self.name}.{call}"
        number = self._number + CALLS * call
        self.halos.append(Halo(self._shard, self._places.door, self._places.clock, name=name, number=number))


class Places:
    """All that a model has of us: its layers' halos, its dropouts, and the clock they look at."""

    def __init__(self, model: nn.Module, shard: Shard, door: Door, plan: Plan, cost: CostModel | None) -> None:
        self.clock = Clock(plan)
        if plan.adapts and cost is None and door.world_size > 1:
            cost = sketch(door, shard.x.device)  # before the first epoch, so that every checkpoint has it
        self.assigner = Assigner(door, plan, cost)
        self.pace = Pace()
        self._began_s = 0.0
        self._is_open = False  # a training pass whose gradients are to come
        self._device = shard.x.device
        self._shard = shard
        self.door = door
        self.layers: list[Layer] = []
        self.within_pass = False
        self._dropouts: list[NodeDropout] = []
        self._known: dict[nn.Module | nn.Parameter, None] = {}  # whose weights are the same on all ranks
        self._gradients: GradientSum | None = None
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
            elif isinstance(module, WHOLE_GRAPH) or (isinstance(module, pyg.LayerNorm) and module.mode == "graph"):
                raise Unsupported(
                    f"{name}: {type(module).__name__} looks at all nodes at once and is not distributed; use BatchNorm "
                    "or torch.nn.LayerNorm"
                )
            elif isinstance(module, pyg.BatchNorm):
                module.allow_single_element = False  # a rank with one row would leave the others waiting for its sums
        for module, forward in forwards:  # only now that nothing was refused
            module.forward = forward
        for dropout in dropouts:
            self._add_dropout(dropout)

    @property
    def halos(self) -> list[Halo]:
        return [halo for layer in self.layers for halo in layer.halos]

    def take_in(self, model: nn.Module) -> None:
        """Weights are rank 0's, and their gradients are summed; those that were added or unfrozen since, too."""
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
        if self._gradients is None:
            self._gradients = GradientSum((), self.door, self.after_gradients)
        tensors: list[Tensor] = []
        for module in model.modules():
            new = module not in self._known
            self._known[module] = None
            tensors += [each for each in module.parameters(recurse=False) if each not in self._known]
            tensors += module.buffers(recurse=False) if new else ()
            self._known.update(dict.fromkeys(module.parameters(recurse=False)))
        for tensor in tensors:
            if tensor.numel():
                self.door.broadcast(tensor.data, 0, channel="weights").wait()
        self._gradients.follow(model.parameters())

    def _add_dropout(self, module: nn.Dropout) -> None:
        self._dropouts.append(NodeDropout(module, self._shard, self.clock, len(self._dropouts)))
        module.forward = self._dropouts[-1]  # type: ignore[assignment]

    def before_pass(self, model: nn.Module, _: object) -> None:
        self.take_in(model)
        for layer in self.layers:
            layer.calls = 0
        for dropout in self._dropouts:
            dropout.calls = 0
        if model.training:
            self.clock.epoch += 1
            self.door.step = self.clock.epoch
            self._is_open = True
        self.clock.lowest = None
        self.within_pass = True
        self._began_s = time.perf_counter()

    def after_pass(self, *_: object) -> None:
        self.within_pass = False

    def after_gradients(self) -> None:
        """Send what has let the weights' gradients pass; and where a period ends, choose bits for the next one."""
        plan, epoch = self.clock.plan, self.clock.epoch
        for wire in self._wires():
            wire.release()
        if not plan.adapts or not self._is_open:  # gradients of an evaluation are no epoch
            return
        self._is_open = False
        self.pace.add(time.perf_counter() - self._began_s, list(self._wires()), looked=plan.traces(epoch))
        if plan.assigns(epoch):
            self.assigner.assign(self.halos, epoch + 1, self.pace)
            self.pace.clear()

    def settle(self) -> None:
        """Take in all that is under way."""
        for wire in self._wires():
            wire.settle()

    def state(self) -> dict[str, Tensor]:
        """What the next epochs will need of those before, by channel; for a checkpoint."""
        self.settle()
        found: dict[str, Tensor] = {}
        for wire in self._wires():
            if wire.held is not None:
                found[f"held/{wire.channel}"] = wire.held
            if wire.bits is not None:
                found[f"bits/{wire.channel}/out"], found[f"bits/{wire.channel}/into"] = wire.bits
            if wire.trace is not None and wire.trace.early is not None:
                found[f"early/{wire.channel}"] = wire.trace.early
        return found

    def restore(self, epoch: int, state: dict[str, Tensor]) -> None:
        """Go on after this epoch, from such a state; without any the next epoch is synchronous."""
        self.clock.epoch = epoch
        for layer in self.layers:  # one called several times gets all its halos at its first pass
            while any(f"/{layer.name}.{len(layer.halos)}." in name for name in state):
                layer.add_halo()

        def on_device(name: str) -> Tensor | None:
            return state[name].to(self._device) if name in state else None

        for wire in self._wires():
            wire.held = on_device(f"held/{wire.channel}")
            if (out := state.get(f"bits/{wire.channel}/out")) is not None:
                obey(wire, out, state[f"bits/{wire.channel}/into"])
            if wire.trace is not None:
                wire.trace.early = on_device(f"early/{wire.channel}")

    def _wires(self) -> Iterator[Wire]:
        for halo in self.halos:
            yield from halo.wires()
