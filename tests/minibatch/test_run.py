"""Minibatch training on real processes: equal to one process whatever cache and pipeline, as predicted, and robust."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.minibatch import work
from thinwire import graphs, launch
from thinwire.minibatch import Salient
from thinwire.training.job import Job
from thinwire.training.models import build

DATA = "synthetic:nodes=1200,degree=8,classes=5,features=12"
METHOD = Salient(batch=40, fanouts=(4, 3), cache=0.0)
JOB = Job(method=METHOD, data=DATA, layers=2, hidden=16, epochs=3)
THINWIRE = [sys.executable, "-m", "thinwire"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shards") / "shards"
    graphs.prepare(DATA, graphs.Settings(3), made)
    return made


def planned(job: Job[Salient] = JOB, **changed: Any) -> Job[Salient]:
    return replace(job, method=replace(job.method, **changed))


@pytest.mark.parametrize("model", ["sage", "gcn", "gin", "gat"])
def test_cache_and_pipeline_change_nothing_but_time(folder: Path, model: str) -> None:
    job = replace(JOB, model=model, dropout=0.2)
    variants: list[dict[str, Any]] = [
        {"depth": 0},
        {"cache": 0.1, "depth": 1},
        {"cache": 1.0, "depth": 4},
        {"cache": 9.0, "depth": 2},
    ]
    ranks = launch.run(work.jobs, str(folder), [planned(job, **variant) for variant in variants], workers=3)
    losses, weights = work.in_one(folder, job)
    plain = ranks[0][0]
    np.testing.assert_allclose(plain.losses, losses, rtol=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(plain.weights[name], value, rtol=1e-3, atol=1e-4)
    for result in ranks[0][1:]:  # to the bit
        assert result.losses == plain.losses
        assert all(torch.equal(result.weights[name], value) for name, value in plain.weights.items())
    remote = [result.rows[-1]["remote_rows"] for result in ranks[0]]
    assert remote[0] > remote[1] > remote[2] > remote[3] == 0


def test_a_rank_holds_what_was_asked_and_no_more(folder: Path) -> None:
    alphas = (0.0, 0.1, 0.5, 50.0)
    ranks = launch.run(work.jobs, str(folder), [planned(cache=alpha) for alpha in alphas], workers=3)
    manifest = graphs.read_manifest(folder)
    for rank, results in enumerate(ranks):
        for alpha, result in zip(alphas, results, strict=True):
            owned = manifest.parts[rank].num_owned
            assert result.held <= 1.01 * (1 + alpha) * 1200 / 3  # parts are of equal size but for a hundredth
            assert result.held == owned + result.cached
            assert result.cached <= int(alpha * 1200 / 3)
            assert result.cached <= 1200 - owned
        assert results[1].cached == 40


def test_bytes_are_as_predicted(folder: Path) -> None:
    """A larger graph in one epoch is less noise than a small one in many; rows are those that the door counted."""
    policies = ("vip", "degree", "halo", "paths", "simulation", "oracle")
    todo = [
        planned(cache=0.0),
        *(planned(cache=alpha, cache_policy=policy) for alpha in (0.2, 1.0) for policy in policies),
    ]
    for result in launch.run(work.jobs, str(folder), [replace(job, epochs=6) for job in todo], workers=3)[0]:
        for name, predicted in (("bytes", "predicted_bytes"), ("remote_rows", "predicted_rows")):
            counted = float(np.mean([row[name] for row in result.rows]))
            assert counted == pytest.approx(result.rows[0][predicted], rel=0.1), name
        # Rows as they are stored, with an id each, and who wants how many of whom, told once.
        assert result.filled == (result.all_cached * (12 * 2 + 4) + 3 * 2 * 3 * 8 if result.all_cached else 0)
        features, rows = (sum(row[name] for row in result.rows) for name in ("feature_bytes", "remote_rows"))
        sizes = 3 * 2 * 3 * 8  # who wants how many of the first batch, told by all to all around a ring
        # Stored as float16; an id; and of each message of ids how long the next one is.
        assert features == rows * (12 * 2 + 4) + 6 * result.predicted["steps"] * 6 * 8 + sizes


def test_gradients_by_a_codec_send_what_was_foretold_and_go_on_to_the_bit(folder: Path, tmp_path: Path) -> None:
    """By a codec that remembers, from a checkpoint in the middle of an epoch."""
    job = replace(JOB, shards=str(folder), gradients="topk:0.01", hidden=64, limit_s=60.0)
    kept = replace(job, out=str(tmp_path), checkpoint_steps=4)
    runs = [
        replace(job, gradients="none"),
        job,
        replace(kept, epochs=2),
        replace(kept, resume=True, resume_epoch="1:4"),
    ]
    none, coded, _, again = launch.run(work.results, runs, workers=3)[0]
    for result, rows in (none, coded):
        for row in rows[1:]:
            assert row["bytes"] - row["feature_bytes"] == result["predicted"]["gradient_bytes"]
    assert none[1][-1]["float32_bytes"] == coded[1][-1]["float32_bytes"]
    assert 2 * coded[0]["predicted"]["gradient_bytes"] < none[0]["predicted"]["gradient_bytes"]
    assert again[0]["losses"] == coded[0]["losses"] != none[0]["losses"]
    assert coded[0]["losses"][-1] < coded[0]["losses"][0]


@pytest.mark.parametrize("policy", ["degree", "halo", "paths", "simulation", "oracle", "none"])
def test_every_policy_trains(folder: Path, policy: str) -> None:
    job = replace(planned(cache=0.2, cache_policy=policy), epochs=1)
    result = launch.run(work.jobs, str(folder), [job, replace(planned(job, cache=0.0), epochs=1)], workers=3)[0]
    assert result[0].losses == result[1].losses
    if policy == "none":
        assert result[0].cached == 0
    else:
        assert result[0].rows[0]["remote_rows"] < result[1].rows[0]["remote_rows"]


def test_rows_in_fewer_bits(folder: Path) -> None:
    todo = [planned(rows=rows) for rows in ("float32", "float16", "uniform:8", "uniform:2", "uniform:1")]
    results = launch.run(work.jobs, str(folder), todo, workers=3)[0]
    sizes = [result.rows[1]["feature_bytes"] for result in results]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    for result, near in zip(results[1:3], (1e-9, 2e-2), strict=True):  # they are stored as float16
        np.testing.assert_allclose(result.losses, results[0].losses, rtol=near)
    for result in results:
        assert result.losses[-1] < result.losses[0]
        full, sent = (
            sum(row[name] for row in rows)
            for name, rows in (("float32_bytes", result.rows), ("bytes", results[0].rows))
        )
        assert full == sent


@pytest.mark.parametrize("features", ["float32", "float16"])
def test_a_loader_gives_every_seed_once_with_its_own_features(features: str, tmp_path: Path) -> None:
    graph = graphs.load(DATA)
    graph = replace(graph, x=graph.x.astype(features))
    parts = graphs.assign(graph, graphs.Settings(3))
    graphs.write_shards(tmp_path / "shards", graphs.split(graph, parts, 3))
    shards = [graphs.read_shard(tmp_path / "shards", part) for part in range(3)]
    x, y = torch.cat([shard.x for shard in shards]), torch.cat([shard.y for shard in shards])
    seen = []
    for batches in launch.run(work.batches, str(tmp_path / "shards"), replace(METHOD, cache=0.3), workers=3):
        for rows, labels, ids in batches:
            assert torch.equal(rows, x[ids].float())
            assert torch.equal(labels, y[ids[: len(labels)]])
            assert len(labels) <= METHOD.batch
            seen += ids[: len(labels)].tolist()
    split = torch.cat([shard.split for shard in shards])
    assert sorted(seen) == (split == graphs.TRAIN).nonzero().squeeze(1).tolist()


def test_uneven_parts_empty_peers_and_a_rank_without_seeds(tmp_path: Path) -> None:
    """Part 2 is apart from the rest and has no training nodes; part 0 has most of them."""
    graph = graphs.load("synthetic:nodes=300,degree=6,classes=3,features=4")
    parts = np.repeat([0, 1, 2], [200, 60, 40])
    apart = (parts[graph.edge_index[0]] == 2) == (parts[graph.edge_index[1]] == 2)
    split = np.where(parts == 2, graphs.TEST, graph.split).astype(np.uint8)
    graph = replace(graph, edge_index=graph.edge_index[:, apart], split=split)
    graphs.write_shards(tmp_path / "shards", graphs.split(graph, parts, 3))
    for model in ("sage", "gat"):  # with fewer seeds than steps on rank 1
        job = replace(JOB, method=Salient(batch=16, fanouts=(3, 3), cache=0.1), model=model)
        ranks = launch.run(work.jobs, str(tmp_path / "shards"), [job], workers=3)
        losses, _ = work.in_one(tmp_path / "shards", job)
        np.testing.assert_allclose(ranks[2][0].losses, losses, rtol=1e-4)


@pytest.mark.parametrize("workers", [1, 2])
def test_edge_weights_and_several_labels_a_node(workers: int, tmp_path: Path) -> None:
    """Trained on shards, evaluated exactly: the same as PyG says of the whole graph by these weights."""
    graph = graphs.load("synthetic:nodes=300,degree=6,classes=4,features=5,multilabel=true")
    weights = np.random.default_rng(0).uniform(0.2, 2.0, graph.num_edges).astype(np.float32)
    graph = replace(graph, edge_weight=weights)
    parts = np.arange(300) * workers // 300
    graphs.write_shards(tmp_path / "shards", graphs.split(graph, parts, workers))
    job = replace(planned(batch=32), model="gcn")
    ranks = launch.run(work.jobs, str(tmp_path / "shards"), [job], workers=workers)
    model = build(job, num_features=5, num_classes=4).eval()
    model.load_state_dict(ranks[0][0].weights)
    edges = torch.from_numpy(graph.edge_index).long()
    whole = model(torch.from_numpy(graph.x).float(), edges, torch.from_numpy(weights)).detach()
    for (outcome,) in ranks:
        torch.testing.assert_close(outcome.out, whole[outcome.original_ids], rtol=1e-4, atol=1e-4)
        assert outcome.losses[-1] < outcome.losses[0]


def test_inference_exact_and_sampled(folder: Path) -> None:
    """With all neighbours sampled inference is the exact one, with any cache; a cache planned for it fetches less."""
    whole = Salient(batch=50, fanouts=(-1, -1), cache=0.0)
    plans = [whole, replace(whole, cache=0.4), replace(whole, fanouts=(3, 3))]
    for model in ("sage", "gcn", "gin", "gat"):
        for outcomes in launch.run(work.sampled_inference, str(folder), replace(JOB, model=model), plans, workers=3):
            all_of_them, cached, some = outcomes
            torch.testing.assert_close(all_of_them.sampled, all_of_them.exact, rtol=1e-4, atol=1e-4)
            assert torch.equal(cached.sampled, all_of_them.sampled)
            assert cached.sent < 0.8 * all_of_them.sent
            assert not torch.allclose(some.sampled, some.exact, atol=1e-3)
            assert some.sampled.shape == some.exact.shape


def test_inference_by_a_model_of_ones_own(folder: Path) -> None:
    graph = graphs.load(DATA)
    model = work.Own(graph.x.shape[1], graph.num_classes).eval()
    edges = torch.from_numpy(graph.edge_index).long()
    x = model.convs[0](torch.from_numpy(graph.x).float(), edges).relu()
    whole = model.convs[1](x, edges).detach()
    method = Salient(batch=50, fanouts=(-1, -1), cache=0.2)
    for exact, sampled, ids, refused in launch.run(work.own_inference, str(folder), method, workers=3):
        torch.testing.assert_close(exact, whole[ids], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(sampled, exact, rtol=1e-4, atol=1e-4)
        assert "Own is a model of your own" in refused
        assert "list of functions (x, layer) -> x" in refused


def test_another_ranks_shard_is_refused(tmp_path: Path) -> None:
    graph = graphs.load("synthetic:nodes=300,degree=6,classes=4,features=5")
    graphs.write_shards(tmp_path / "shards", graphs.split(graph, np.arange(300) * 2 // 300, 2))
    said = launch.run(work.another_ranks_shard, str(tmp_path / "shards"), METHOD, workers=2)
    assert said[0].startswith("rank 0 was given the shard of nodes 150 to 300, the topology has 0 to 150 there")


def test_torchrun_trains_on_batches_like_our_own_ranks(tmp_path: Path) -> None:
    train = ["train", "--method", "salient", "--data", DATA, "--epochs", "2", "--hidden", "8", "--batch", "32"]
    losses = []
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for start, more in ((torchrun, []), ([], ["--workers", "2"])):
        target = tmp_path / "result.json"
        command = [sys.executable, *start, "-m", "thinwire", *train, *more, "--json", str(target)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        losses.append(json.loads(target.read_text())["losses"])
    assert losses[0] == losses[1]


def test_a_killed_rank_is_named_with_stage_and_batch(folder: Path, tmp_path: Path) -> None:
    where = r"rank 1 .* on channel 'batch\.(ids|rows)' in step (\d+)"
    with pytest.raises(launch.RankFailed, match=f"rank 1 of 3 failed: its process ended by SIGKILL; .*{where}"):
        launch.run(work.killed_in_the_middle, str(folder), str(tmp_path), METHOD, workers=3)
    for rank in (0, 2):
        named = re.match(where, (tmp_path / str(rank)).read_text())
        assert named
        assert 2 < int(named[2]) <= 3 + METHOD.depth  # rank 1 has had the third batch, and asked for those after it


@pytest.mark.parametrize("rows", ["auto", pytest.param("uniform:4", marks=pytest.mark.slow)])
def test_killed_and_resumed_the_losses_are_the_same_bits(rows: str, tmp_path: Path) -> None:
    options = f"--method salient --data {DATA} --layers 2 --hidden 16 --batch 40 --epochs 8".split()
    options += ["--checkpoint-every", "2", "--dropout", "0.3", "--rows", rows]
    subprocess.run([*THINWIRE, "train", *options, "--json", str(tmp_path / "whole.json")], check=True, timeout=120)
    out = tmp_path / "run"
    command = [*THINWIRE, "train", *options, "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        events = out / "events.jsonl"
        while running.poll() is None and (not events.exists() or len(events.read_text().splitlines()) < 5):
            time.sleep(0.05)
        running.kill()
    subprocess.run([*command, "--resume", "--json", str(tmp_path / "again.json")], check=True, timeout=120)
    whole, again = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "again"))
    assert again["losses"] == whole["losses"]
    assert again["test_score"] == whole["test_score"]
    assert again["predicted"]["bytes_per_epoch"] == pytest.approx(
        np.median([row["bytes"] for row in _events(out)]), rel=0.1
    )
    plan = json.loads((out / "plan.json").read_text())
    assert plan["predicted"] == again["predicted"]


def test_killed_within_an_epoch_it_goes_on_at_the_same_batch(tmp_path: Path) -> None:
    options = f"--mode minibatch --data {DATA} --layers 2 --hidden 16 --batch 5 --epochs 4".split()
    options += ["--checkpoint-steps", "3", "--dropout", "0.3", "--rows", "uniform:4"]
    subprocess.run([*THINWIRE, "train", *options, "--json", str(tmp_path / "whole.json")], check=True, timeout=120)
    out = tmp_path / "run"
    command = [*THINWIRE, "train", *options, "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while running.poll() is None and not list((out / "checkpoints").glob("epoch-000001.step-*.json")):
            time.sleep(0.01)
        running.kill()
    # Whenever the kill came: of what was kept by then, only points within epochs are left.
    for path in (out / "checkpoints").iterdir():
        if ".step-" not in path.name:
            path.unlink()
    subprocess.run([*command, "--resume", "--json", str(tmp_path / "again.json")], check=True, timeout=120)
    whole, again = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "again"))
    assert again["losses"] == whole["losses"]
    assert again["test_score"] == whole["test_score"]
    resumed_at = [row["first_step"] for row in _events(out) if "first_step" in row]
    assert len(resumed_at) == 1
    assert resumed_at[0] % 3 == 0


def _events(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "2", "--fanouts", "5"], "a fan-out for each layer"),
        (["--fanouts", "5,x,1"], "give whole numbers with"),
        (["--cache", "-1"], "give 0 (none) or more"),
        (["--norm", "batch"], "give layer or none"),
        (["--bits", "2"], "--bits is an option of sylvie; salient has --batch"),
        (["--mode", "fullgraph"], "leave --mode out"),
        (["--batch", "0"], "give 1 or more seeds"),
    ],
)
def test_what_can_not_be_is_refused_at_once(options: list[str], message: str, refused: Callable[..., str]) -> None:
    assert message in refused("train", "--method", "salient", *options)


def test_a_method_of_another_mode_is_refused_even_the_usual_one(refused: Callable[..., str]) -> None:
    assert "leave --mode out" in refused("train", "--mode", "minibatch", "--method", "exact")
