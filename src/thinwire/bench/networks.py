"""Networks to measure gradients with: a deep narrow ResNet of many small tensors, a small GPT, a small Llama."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

STAGES = 3
CONTEXT = 64


class Block(nn.Module):
    """Two convolutions and a shortcut (arXiv 1512.03385)."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(into, out, 1, stride, bias=False) if into != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """Three stages of `blocks` blocks, with 1, 2 and 4 times `width` channels. For images of one channel."""

    def __init__(self, blocks: int = 7, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        stages: list[nn.Module] = []
        into = width
        for stage in range(STAGES):
            for block in range(blocks):
                out = width << stage
                stages.append(Block(into, out, 2 if stage and not block else 1))
                into = out
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))
        return out


class Layer(nn.Module):
    """Attention and an MLP, each after a norm and with a shortcut (GPT-2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(b, t, d))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class GPT(nn.Module):
    """Takes characters, returns logits of the next character."""

    def __init__(self, vocabulary: int, layers: int = 4, width: int = 192, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        out: Tensor = self.head(self.norm(self.layers(self.embedding(x) + self.places(places))))
        return out


class Llama(nn.Module):
    """The Llama of transformers, made from a configuration; nothing is downloaded. `blocks` are the layers to shard."""

    def __init__(self, symbols: int, layers: int = 4, width: int = 256) -> None:
        super().__init__()
        try:
            from transformers import LlamaConfig, LlamaForCausalLM
        except ImportError:
            raise ValueError("the Llama comes with transformers; pip install transformers") from None
        heads = width // 32
        config = LlamaConfig(
            vocab_size=symbols,
            hidden_size=width,
            intermediate_size=8 * width // 3,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=max(1, heads // 2),
            max_position_embeddings=CONTEXT,
            use_cache=False,
        )
        self.inner = LlamaForCausalLM(config)

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.inner.model.layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(input_ids=x).logits
        return out
