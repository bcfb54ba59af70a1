"""A model of your own on a graph in parts: GATv2, jumping knowledge, batch norms; your own training loop.

thinwire partition synthetic --parts 2 --out shards
python examples/own_model.py shards                                  # ranks on this machine, one for each part
torchrun --nproc-per-node 2 examples/own_model.py shards sylvie      # or as a job of torchrun's
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import BatchNorm, GATv2Conv, JumpingKnowledge

import thinwire
from thinwire import graphs, launch
from thinwire.fullgraph import METHODS, QHAdam, distribute

EPOCHS = 30


class Net(nn.Module):
    """Nothing in it knows that the graph is in parts."""

    def __init__(self, num_features: int, num_classes: int, hidden: int = 64, layers: int = 3) -> None:
        super().__init__()
        widths = [num_features] + [hidden] * layers
        self.convs = nn.ModuleList([GATv2Conv(a, hidden // 4, heads=4) for a in widths[:-1]])
        self.norms = nn.ModuleList([BatchNorm(hidden) for _ in range(layers)])
        self.dropout = nn.Dropout(0.3)
        self.jump = JumpingKnowledge("cat")
        self.out = nn.Linear(hidden * layers, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        outputs = []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.dropout(functional.elu(norm(conv(x, edge_index))))
            outputs.append(x)
        out: Tensor = self.out(self.jump(outputs))
        return out


def train(folder: str, method: str) -> None:
    with thinwire.init() as door:
        shard = graphs.read_shard(Path(folder), door.rank)
        x, y = shard.x.float(), shard.y.long()
        used, tested = shard.split == graphs.TRAIN, shard.split == graphs.TEST
        torch.manual_seed(0)
        # The line that makes it distributed: the model, this rank's part, the way to the others, the method.
        model = distribute(Net(x.shape[1], shard.num_classes), shard, door, method)
        # Gradients that are an epoch old want another momentum than fresh ones.
        optimizer = (QHAdam if METHODS[method]().may_be_stale else torch.optim.Adam)(model.parameters(), lr=0.01)
        for epoch in range(EPOCHS):
            model.train()
            optimizer.zero_grad()
            out = model(x, shard.edge_index)
            # This part's share of the mean over the whole graph's training nodes; gradients are summed for you.
            loss = functional.cross_entropy(out[used], y[used], reduction="sum") / shard.num_train
            loss.backward()
            optimizer.step()
            if (epoch + 1) % 5 == 0:
                total = door.all_reduce(loss.detach().clone().view(1), channel="loss").wait()
                if door.rank == 0:
                    print(f"epoch {epoch + 1}: loss {float(total):.4f}", flush=True)
        model.eval()  # messages are exact here, whatever the method
        with torch.no_grad():
            right = model(x, shard.edge_index).argmax(1)[tested] == y[tested]
        counts = torch.tensor([right.sum(), len(right)], dtype=torch.float64)
        hits, tries = door.all_reduce(counts, channel="score").wait().tolist()
        sent = sum(book.bytes_sent for book in door.books.take().values())
        if door.rank == 0:
            print(f"{method}: test accuracy {hits / tries:.2%}, {sent / EPOCHS / 1e6:.2f} MB an epoch from this rank")


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "shards"
    method = sys.argv[2] if len(sys.argv) > 2 else "exact"
    launch.run(train, folder, method, workers=graphs.read_manifest(Path(folder)).num_parts)
