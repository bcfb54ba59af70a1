"""A PyG model and a training loop of one's own on sampled batches: examples/own_loop.py, or under torchrun."""

import tempfile
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv

import thinwire
from thinwire import graphs, launch
from thinwire.minibatch import Loader, Salient, Topology


class Net(torch.nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(num_features, 64), SAGEConv(64, num_classes)])

    def forward(self, x, layers):
        for number, (conv, layer) in enumerate(zip(self.convs, layers, strict=True)):
            x = conv((x, x[: layer.num_targets]), layer.edge_index)  # just what later layers read
            x = x.relu() if number + 1 < len(self.convs) else x
        return x


def train(folder: Path) -> float:
    with thinwire.init() as door:
        shard = graphs.read_shard(folder, door.rank)
        model = DistributedDataParallel(Net(shard.x.shape[1], shard.num_classes))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        loader = Loader(shard, door, Salient(batch=256, fanouts=(10, 5), cache=0.2), Topology.read(folder))
        for _ in range(5):
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.layers)
                # The mean over all ranks' seeds, of which DDP takes the mean over ranks; a batch may be empty.
                share = door.world_size / batch.total
                loss = torch.nn.functional.cross_entropy(out, batch.y.long(), reduction="sum") * share
                loss.backward()
                optimizer.step()
    return loss.item()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        shards = Path(made) / "shards"
        graphs.prepare("synthetic:nodes=5000", graphs.Settings(parts=2), shards)
        print("loss of each rank's last batch:", launch.run(train, shards, workers=2))
