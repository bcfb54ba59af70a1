"""Models that are the same in parts are let through as they are; others are refused, and where it begins is said."""

import json
import os
import random
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from tests.fullgraph import work_check
from tests.fullgraph.models import EDGE, RIGHT, WRONG, D, Jumping
from thinwire import launch
from thinwire.cli import main
from thinwire.fullgraph import tiny
from thinwire.fullgraph.check import difference
from thinwire.fullgraph.tiny import Given
from thinwire.fullgraph.trial import Replaced
from thinwire.graphs import Shard


@pytest.fixture(scope="module")
def shard() -> Shard:
    part = tiny.parts(torch.device("cpu"))[1].shard
    count = len(part.indices)
    return replace(part, edge_weight=torch.rand(count), edge_attr=torch.rand(count, EDGE))


def given(name: str, shard: Shard) -> Given:
    x, edges = torch.rand(shard.num_owned, D), shard.edge_index
    if name == "DeepGCNLayer":
        return (x, edges, shard.edge_attr), {}
    if name == "JumpingKnowledge":
        return (x, edges), {"edge_attr": shard.edge_attr, "kinds": torch.randint(4, (len(x),)), "scale": 0.5}
    if name == "data":
        return (Data(x=x, edge_index=edges, edge_weight=shard.edge_weight),), {}
    return (x, edges), {}


def tried(model: nn.Module, name: str, shard: Shard) -> str:
    return difference(model, replaced_in(model), given(name, shard), shard)


def replaced_in(model: nn.Module) -> list[Replaced]:
    known = (MessagePassing, _BatchNorm)
    return [(path, module, module.forward) for path, module in model.named_modules() if isinstance(module, known)]


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_what_is_the_same_in_parts_is_let_through(name: str, mode: str, shard: Shard) -> None:
    torch.manual_seed(0)
    assert tried(RIGHT[name]().train(mode == "train"), name, shard) == ""


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_is_refused_and_where_it_begins_is_said(name: str, shard: Shard) -> None:
    torch.manual_seed(0)
    make, where = WRONG[name]
    said = tried(make(), name, shard)
    assert where in said
    assert "check=False (--no-check) trains it as it is" in said


@pytest.mark.slow
@pytest.mark.timed
def test_a_fraction_of_a_second(shard: Shard) -> None:
    tried(RIGHT["GCN"](), "GCN", shard)  # what is done once in a process
    begun_s = time.process_time()
    tried(RIGHT["GAT"](), "GAT", shard)
    assert time.process_time() - begun_s < 2  # 0.2 on an idle core


def _numpy_state() -> object:
    return str(np.random.get_state())  # noqa: NPY002 (what users draw from)


@pytest.mark.parametrize("train", [True, False])
def test_the_model_stays_as_it_is(train: bool, shard: Shard) -> None:
    torch.manual_seed(0)
    model = Jumping().train(train)
    model.norms[0].eval()
    model.first.weight.grad = torch.ones_like(model.first.weight)
    seen: list[int] = []
    model.first.weight.register_hook(lambda gradient: seen.append(1))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    versions = {name: tensor._version for name, tensor in tensors.items()}
    modes = [module.training for module in model.modules()]
    facts = [{**vars(module)} for module in model.modules()]
    call, replaced = given("JumpingKnowledge", shard), replaced_in(model)
    states = torch.get_rng_state(), random.getstate(), _numpy_state()
    assert difference(model, replaced, call, shard) == ""
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        assert after[name] is tensor
        assert torch.equal(tensor, before[name]), name
        assert tensor._version == versions[name]
    assert modes == [module.training for module in model.modules()]
    for module, kept in zip(model.modules(), facts, strict=True):
        assert vars(module).keys() == kept.keys()
        assert all(vars(module)[name] is value for name, value in kept.items())
        assert not module._forward_hooks
    assert model.seen == 0
    assert not seen
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), _numpy_state())
    assert torch.equal(model.first.weight.grad, torch.ones_like(model.first.weight))


def test_ranks_refuse_with_one_voice_and_train_as_without_it() -> None:
    ranks = launch.run(work_check.on_shards, work_check.DATA, workers=2)
    for result in ranks:
        torch.testing.assert_close(result.checked, result.unchecked, rtol=0, atol=0)
        assert result.said == ranks[0].said
        assert "Wrong is another model in parts" in result.said["mean"]
        assert "Fits could not be tried on a graph of 29 nodes" in result.said["warned"]
        assert "Split is another model in parts" in result.said["one rank"]
        for kind in ("GraphNorm", "PairNorm", "LayerNorm"):
            assert f"between: {kind} looks at all nodes at once" in result.said[kind]
        assert "PNAConv takes one set of nodes only" in result.said["PNA"]


def test_train_takes_a_model_of_the_users_own_and_checks_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--data", work_check.DATA, "--epochs", "2", "--json", str(tmp_path / "result.json"), "--model"]
    main([*words, "tests.fullgraph.models:make"])
    assert len(json.loads((tmp_path / "result.json").read_text())["losses"]) == 2
    with pytest.raises(SystemExit):
        main([*words, "tests.fullgraph.models:make_wrong"])
    assert "after 'lin' and before 'conv2'" in " ".join(capsys.readouterr().err.split())
    main([*words, "tests.fullgraph.models:make_wrong", "--no-check"])


def test_under_torchrun_a_refusal_is_a_line_too() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "thinwire"]
    command += ["train", "--data", work_check.DATA, "--epochs", "2", "--model", "tests.fullgraph.models:make_wrong"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    said = done.stderr.splitlines()
    assert any(line.startswith("thinwire: Wrong is another model in parts") for line in said), done.stderr
    assert not any("thinwire.fullgraph.edges.Unsupported" in line for line in said), done.stderr


def test_train_says_what_a_model_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in {
        "--model sag": "or package.module:function. Did you mean 'sage'?",
        "--model a:b --hidden 3": "--hidden is of thinwire's own models",
        "--model a:b --method salient": "your own goes with exact, pipe, sylvie, sylvie3d, adaqp, bns",
    }.items():
        with pytest.raises(SystemExit):
            main(["train", *words.split()])
        assert said in " ".join(capsys.readouterr().err.split())


def test_an_argument_of_another_kind_is_left_alone(shard: Shard) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = RIGHT["GCN"]()

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, **more: Any) -> torch.Tensor:
            assert more["word"] == "a"
            assert more["table"].shape == (2, 2)
            assert more["num_nodes"] == len(x)
            out: torch.Tensor = self.conv(x, edge_index)
            return out

    args, _ = given("", shard)
    model = Net()
    more = {"word": "a", "table": torch.ones(2, 2), "num_nodes": shard.num_owned}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert difference(model, replaced_in(model), (args, more), shard) == ""
