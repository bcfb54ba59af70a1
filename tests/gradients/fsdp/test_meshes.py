"""HSDP and tensor parallelism beside plain FSDP2: equal where nothing is lost, conserved where something is."""

from typing import Any, NamedTuple

import pytest
import torch.distributed as dist

from tests.gradients.fsdp import work
from thinwire import launch
from thinwire.gradients import fsdp
from thinwire.links import Door

PRELOAD = work.PRELOAD

STEPS = 10


def place_of(kind: str) -> int:
    """Whose data a rank has: ranks of a tensor-parallel group have the same."""
    return dist.get_rank() // 2 if kind == "tp" else dist.get_rank()


class Distances(NamedTuple):
    """To plain FSDP2: of what came, of that plus what is owed, and with a divide factor. And the door's channels."""

    alone: float
    both: float
    divided: float
    channels: list[str]


def on_meshes() -> dict[tuple[str, str, str], Distances]:
    """By mesh, slow dimension and codec."""
    outcomes = {}
    with Door() as door:
        for kind, slow in (("hsdp", "replicate"), ("hsdp", "shard"), ("tp", "shard")):
            place, mesh = place_of(kind), work.mesh_of(kind)
            plain, plain_none = work.summed(work.sharded(kind, mesh=mesh), place, STEPS, work.in_turn)
            for codec in ("none", "topk:0.05"):
                model = work.sharded(kind, mesh=mesh)
                fsdp.compress(model, codec, door, slow=slow)
                compression = fsdp.compression_of(model)
                came, none = work.summed(model, place, STEPS, work.in_turn)
                assert none == plain_none
                state = compression.state_dict()
                both = work.most([(came[name] + work.owed(state, name), plain[name]) for name in plain])
                alone = work.most([(came[name], plain[name]) for name in plain])
                divided = 0.0
                if codec == "none":
                    divided = _divided(model, place, work.summed(work.sharded(kind, mesh=mesh), place, 1, str)[0])
                outcomes[kind, slow, codec] = Distances(alone, both, divided, sorted(work.books_of(door)))
                compression.close()
    return outcomes


def _divided(model: Any, place: int, plain: dict[str, Any]) -> float:
    """With a factor: plain FSDP2's mean times 4 ranks with data (2 beside tensor parallelism), over the factor."""
    for unit in (model, model.one, model.two, model.first):
        unit.set_gradient_divide_factor(3.0)
        unit.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM for a reduce-scatter of its own
    ours, _ = work.summed(model, place, 1, str)
    ranks = 2 if next(iter(model.up.parameters())).device_mesh.mesh_dim_names[-1] == "tp" else 4
    return work.most([(ours[name], plain[name] * ranks / 3.0) for name in plain])


def test_hsdp_and_tensor_parallelism_give_plain_gradients_in_the_end() -> None:
    for outcomes in launch.run(on_meshes, workers=4):
        for (kind, slow, codec), (alone, both, divided, channels) in outcomes.items():
            assert both < 1e-5, (kind, slow, codec)
            assert (alone < 1e-5) == (codec == "none"), (kind, slow, codec)
            assert divided < 1e-5, (kind, slow, codec)
            assert not channels, "two ranks of four: not through the door of all"


def put_off() -> float:
    """Gradients of three batches, replicas summed in the last: the distance to plain HSDP."""
    summed = []
    for codec in ("", "none"):
        model: Any = work.sharded("hsdp")
        if codec:
            fsdp.compress(model, codec)
        for step in range(3):
            model.set_requires_all_reduce(step == 2)
            work.loss_of(model, dist.get_rank(), step).backward()
        summed.append(work.gradients_of(model))
    return work.most([(summed[1][name], summed[0][name]) for name in summed[0]])  # type: ignore[misc]


def test_replicas_may_be_summed_later() -> None:
    assert max(launch.run(put_off, workers=4)) < 1e-6


def refused() -> None:
    flat, hsdp = work.sharded(), work.sharded("flat")
    for model, more, match in (
        (flat, {"slow": "replicate"}, "has no replicas"),
        (flat, {"slow": "nodes"}, "slow is 'nodes'"),
        (flat, {"parameters": "sign"}, "uniform:8, uniform:4"),
        (flat, {"codec": "dgc:0.1"}, "keeps momentum"),
    ):
        with pytest.raises(ValueError, match=match):
            fsdp.compress(model, **{"codec": "sign", **more})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did not go through"):
        fsdp.compression_of(flat)
    fsdp.compress(hsdp, "sign")
    with pytest.raises(ValueError, match="compressed already"):
        fsdp.compress(hsdp, "sign")


def test_what_does_not_go_with_a_mesh_is_refused() -> None:
    launch.run(refused, workers=1)
    with pytest.raises(ValueError, match="no module of this model is sharded"):
        fsdp.compress(work.Branches(), "sign")


def other_codecs() -> list[str]:
    """What ranks that do not agree are told."""
    said = []
    for calls in (("sign", None), ("uniform:4", None)), (("sign", "uniform:8"), ("sign", None)):
        codec, parameters = calls[dist.get_rank()]
        with Door() as door, pytest.raises(ValueError, match="ranks have different") as refused:
            fsdp.compress(work.sharded(), codec, door, parameters=parameters)
        said.append(str(refused.value))
    return said


def test_ranks_with_different_codecs_are_named() -> None:
    for codec, parameters in launch.run(other_codecs, workers=2):
        assert "different codec: rank 0 has sign, rank 1 has uniform:4; call compress with the same on all" in codec
        assert "different parameters: rank 0 has uniform:8, rank 1 has none; call compress with the same" in parameters
