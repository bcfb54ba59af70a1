"""The model's predicted labels for all nodes, in the order of the input graph: one file, written by rank 0."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thinwire import artifacts
from thinwire.graphs import Shard
from thinwire.links import Door

CHANNEL = "predictions"


def write(path: Path, labels: Tensor, shard: Shard, door: Door) -> None:
    """Gather the labels of all shards and write them. `labels` has one label, or a row of several, for each node."""
    labelled = torch.cat((shard.original_ids[:, None], labels.view(len(labels), -1).long()), dim=1).cpu().contiguous()
    counts = torch.zeros(door.world_size, dtype=torch.int64)
    counts[door.rank] = labelled.nbytes
    sizes = door.all_reduce(counts, channel=CHANNEL).wait().tolist()
    parts = door.all_gather(labelled, sizes, channel=CHANNEL).wait()
    if door.rank == 0:
        rows = torch.cat([part.clone().view(torch.int64).view(-1, labelled.shape[1]) for part in parts])
        label = np.zeros((shard.num_nodes, labelled.shape[1] - 1), dtype=np.int32)
        label[rows[:, 0].numpy()] = rows[:, 1:].numpy()
        with artifacts.new_file(path) as file:
            np.savez(file, label=label if labels.ndim == 2 else label[:, 0])
