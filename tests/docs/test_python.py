"""The Python that pages show runs as it stands: a page's blocks one after the other, in a folder, on ranks."""

import io
import os
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, of_page, pages_with
from thinwire import graphs, launch

RANKS = {"docs/crossmesh.md": 4, "docs/pipelines.md": 4}
# What a page's reader has already: a model, a batch, a graph in parts.
HAS = {
    "docs/gradients.md": """
import torch
model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
batch = torch.randn(64, 32), torch.randint(2, (64,))
def loss_fn(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
}
WITH_SHARDS = {"docs/fullgraph.md", "docs/minibatch.md", "docs/links.md", "README.md"}


def run_page(folder: str) -> str:
    """On each rank, in this folder: its page.py. What it printed."""
    os.chdir(folder)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(Path("page.py").read_text(), "page.py", "exec"), {"__name__": "page"})
    return printed.getvalue()


@pytest.mark.parametrize("page", pages_with("python"))
def test_a_page_runs(page: str, tmp_path: Path) -> None:
    num_ranks = RANKS.get(page, 2)
    if page in WITH_SHARDS:
        settings = graphs.Settings(parts=num_ranks)
        graphs.prepare("synthetic:nodes=1000,classes=4,features=16", settings, tmp_path / "shards")
    # Each block stands where it stands in the page, so that an error names the page's line.
    lines = [""] * len((ROOT / page).read_text().splitlines())
    for block in of_page(page, "python"):
        code = block.text.splitlines()
        lines[block.line : block.line + len(code)] = code
    lines[0] = f"exec({HAS.get(page, '')!r})"
    (tmp_path / "page.py").write_text("\n".join(lines) + "\n")
    printed = launch.run(run_page, str(tmp_path), workers=num_ranks)
    assert len(printed) == num_ranks
