"""A user's own PyG model, on a shard: its layers compute their distributed form, its weights are shared by all ranks.

Modules stay where they are, with the names of their weights; only what their forward does is another.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch_geometric import nn as pyg
from torch_geometric.nn import MessagePassing

from thinwire.fullgraph.clock import Clock
from thinwire.fullgraph.dropout import NodeDropout
from thinwire.fullgraph.edges import Call, Unsupported
from thinwire.fullgraph.gradients import GradientSum
from thinwire.fullgraph.halo import Halo, Wire
from thinwire.fullgraph.layers import LAYERS, Rule, Sums
from thinwire.fullgraph.norm import WholeBatchNorm
from thinwire.fullgraph.plan import Plan
from thinwire.fullgraph.split_rows import SplitRows
from thinwire.graphs import Shard
from thinwire.links import Door

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


def distribute(model: nn.Module, shard: Shard, door: Door, plan: Plan | None = None) -> nn.Module:
    """The same model, changed in place: rows in are this shard's nodes, rows out too, gradients are the whole graph's.

    Weights are rank 0's. The loss is yours: the sum over this shard's training nodes, over `shard.num_train`. An epoch
    is a forward pass in training mode; in evaluation mode messages are exact whatever the plan. Layers are given
    `shard.edge_index`, or None, and where they use them `shard.edge_weight` or `shard.edge_attr`.
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
    places = Places(model, shard, door, plan or Plan())
    if not places.layers:
        raise Unsupported(f"{type(model).__name__} has no PyG message passing layer: nothing to distribute")
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.numel():
                door.broadcast(tensor.data, 0, channel="weights").wait()
    GradientSum(model.parameters(), door, places.release)  # lives in the weights' hooks
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

    def __init__(self, model: nn.Module, shard: Shard, door: Door, plan: Plan) -> None:
        self.clock = Clock(plan)
        self.door = door
        self.layers: list[Layer] = []
        self.within_pass = False
        self._dropouts: list[NodeDropout] = []
        sums = Sums(shard)
        forwards: list[tuple[nn.Module, Callable[..., Tensor]]] = []
        for name, module in model.named_modules():
            if isinstance(module, MessagePassing):
                self.layers.append(Layer(module, name, self, sums))
                forwards.append((module, self.layers[-1]))
            elif isinstance(module, _BatchNorm):
                forwards.append((module, WholeBatchNorm(module, door, name)))
            elif isinstance(module, nn.Dropout):
                self._dropouts.append(NodeDropout(module, shard, self.clock, len(self._dropouts)))
                forwards.append((module, self._dropouts[-1]))
            elif isinstance(module, WHOLE_GRAPH) or (isinstance(module, pyg.LayerNorm) and module.mode == "graph"):
                raise Unsupported(
                    f"{name}: {type(module).__name__} looks at all nodes at once and is not distributed; use BatchNorm "
                    "or torch.nn.LayerNorm"
                )
            elif isinstance(module, pyg.BatchNorm):
                module.allow_single_element = False  # a rank with one row would leave the others waiting for its sums
        for module, forward in forwards:  # only now that nothing was refused
            module.forward = forward

    @property
    def halos(self) -> list[Halo]:
        return [halo for layer in self.layers for halo in layer.halos]

    def before_pass(self, model: nn.Module, _: object) -> None:
        for layer in self.layers:
            layer.calls = 0
        for dropout in self._dropouts:
            dropout.calls = 0
        if model.training:
            self.clock.epoch += 1
            self.door.step = self.clock.epoch
        self.clock.lowest = None
        self.within_pass = True

    def after_pass(self, *_: object) -> None:
        self.within_pass = False

    def release(self) -> None:
        """Send what has let the weights' gradients pass."""
        for wire in self._wires():
            wire.release()

    def stale_rows(self) -> dict[str, Tensor]:
        """What the next epochs will read of this one, by channel; for a checkpoint."""
        for wire in self._wires():
            wire.settle()
        return {wire.channel: wire.held for wire in self._wires() if wire.held is not None}

    def restore(self, epoch: int, rows: dict[str, Tensor]) -> None:
        """Go on after this epoch, with those rows; without any the next epoch is synchronous."""
        self.clock.epoch = epoch
        for layer in self.layers:  # one called several times gets all its halos at its first pass
            while any(channel.startswith(f"{layer.name}.{len(layer.halos)}.") for channel in rows):
                layer.add_halo()
        for wire in self._wires():
            wire.held = rows.get(wire.channel)

    def _wires(self) -> Iterator[Wire]:
        for halo in self.halos:
            yield from (halo.forward, halo.backward)
