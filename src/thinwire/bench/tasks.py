"""Real data for the networks: handwritten digits, and the characters of Python's own reference."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from thinwire.bench.networks import CONTEXT, GPT, Llama, ResNet


@dataclass(frozen=True)
class Task:
    """A network and its data. A rank's batch in a step depends only on size, rank, step and seed."""

    build: Callable[[], nn.Module]
    batch: Callable[[int, int, int, int], tuple[Tensor, Tensor]]  # (size, rank, step, seed)
    lr: float
    label_smoothing: float = 0.0  # keeps losses comparable if all examples can be memorised

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        logits = model(x)
        return F.cross_entropy(logits.flatten(0, -2), y.flatten(), label_smoothing=self.label_smoothing)


def digits(settings: dict[str, Any]) -> Task:
    """scikit-learn's digits: 1,797 images of 8 x 8."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError("the digits come with scikit-learn; pip install scikit-learn") from None
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target)

    def batch(size: int, rank: int, step: int, seed: int) -> tuple[Tensor, Tensor]:
        chosen = _draw(len(images), size, rank, step, seed)
        return images[chosen], labels[chosen]

    blocks, width = int(settings.get("blocks", 7)), int(settings.get("width", 32))
    return Task(lambda: ResNet(blocks, width), batch, float(settings.get("lr", 0.05)), label_smoothing=0.1)


def characters(settings: dict[str, Any]) -> Task:
    """Windows of the reference that comes with Python (half a million characters), or of a folder's Markdown files."""
    if "text" in settings:
        folder = Path(str(settings["text"]))
        text = "".join(path.read_text() for path in sorted(folder.glob("*.md")))
        if len(text) <= CONTEXT:
            raise ValueError(f"text: no Markdown in {folder}; name a folder with *.md files, or leave text out")
    else:
        text = "".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(text))
    places = {letter: place for place, letter in enumerate(alphabet)}
    stream = torch.tensor([places[letter] for letter in text])

    def batch(size: int, rank: int, step: int, seed: int) -> tuple[Tensor, Tensor]:
        starts = _draw(len(stream) - CONTEXT, size, rank, step, seed)
        windows = stream[starts[:, None] + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]

    if settings["task"] == "llama":
        layers, width = int(settings.get("layers", 4)), int(settings.get("width", 256))
        return Task(lambda: Llama(len(alphabet), layers, width), batch, float(settings.get("lr", 0.002)))
    layers, width = int(settings.get("layers", 4)), int(settings.get("width", 192))
    return Task(lambda: GPT(len(alphabet), layers, width), batch, float(settings.get("lr", 0.1)))


TASKS: dict[str, Callable[[dict[str, Any]], Task]] = {"resnet": digits, "gpt": characters, "llama": characters}
SETTINGS: dict[str, type] = {"task": str, "batch": int, "blocks": int, "width": int, "layers": int, "text": str}


def check(settings: Mapping[str, Any], more: Mapping[str, type]) -> None:
    """Raise if a setting is unknown. `more` are the workload's own settings."""
    known = {**SETTINGS, **more}
    for name, value in settings.items():
        if name not in known or type(value) is not known[name]:
            raise ValueError(f"settings: {name} = {value!r}; known are {', '.join(known)}")
    if settings.get("task", "resnet") not in TASKS:
        raise ValueError(f"settings: task is {settings['task']!r}; give one of {', '.join(TASKS)}")


def task_of(settings: Mapping[str, Any]) -> Task:
    return TASKS[settings.get("task", "resnet")](dict(settings))


def batch_size(settings: Mapping[str, Any]) -> int:
    return int(settings.get("batch", 32))


def _draw(count: int, size: int, rank: int, step: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 1_009 + rank)
    return torch.randint(0, count, (size,), generator=generator)
