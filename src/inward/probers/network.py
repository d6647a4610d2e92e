"""The probes of all layers as one batch of networks: one product a step however many layers there are.

Each layer has a probe of its own, `LayerNorm(d) -> [Linear(d, h) -> SiLU -> LayerNorm -> Dropout] x depth -> Linear(h, 2)`
(Probing-RAG's released network: depth 2, h = 512, dropout 0.1). Depth 0 is a linear probe. Class 1 is "the draft is right".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KNOWS = 1
"""Index of the class "the draft is right, nothing need be looked up"."""
HIDDEN, DEPTH, DROPOUT = 512, 2, 0.1
"""Of the released network."""


class Probes(nn.Module):
    """`L` probes side by side: `[B, L, d]` -> logits `[B, L, 2]`."""

    def __init__(self, num_layers: int, width: int, *, hidden: int = HIDDEN, depth: int = DEPTH, dropout: float = DROPOUT) -> None:
        """Make probes with fresh weights for `num_layers` layers of states `width` wide."""
        super().__init__()
        self.hidden, self.depth, self.dropout = hidden, depth, dropout
        sizes = [width, *[hidden] * depth]
        self.norms = nn.ModuleList(_Norm(num_layers, size) for size in sizes)
        self.inner = nn.ModuleList(_Linear(num_layers, a, b) for a, b in pairwise(sizes))
        self.out = _Linear(num_layers, sizes[-1], 2)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits `[B, L, 2]` for pooled states `[B, L, d]`."""
        x: Tensor = self.norms[0](states)
        for linear, norm in zip(self.inner, list(self.norms)[1:], strict=True):
            x = F.dropout(norm(F.silu(linear(x))), self.dropout, self.training)
        logits: Tensor = self.out(x)
        return logits


class _Linear(nn.Module):
    """A linear map a layer, initialised as `nn.Linear` is."""

    def __init__(self, num_layers: int, width: int, size: int) -> None:
        super().__init__()
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(num_layers, width, size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_layers, size).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, L, d]` -> `[B, L, h]`."""
        return torch.baddbmm(self.bias[:, None], x.transpose(0, 1), self.weight).transpose(0, 1)


class _Norm(nn.Module):
    """A LayerNorm a layer."""

    def __init__(self, num_layers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_layers, width))
        self.bias = nn.Parameter(torch.zeros(num_layers, width))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, L, d]` -> `[B, L, d]`."""
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


def split(probes: Probes, layers: Sequence[int]) -> dict[str, Tensor]:
    """Return the weights by name, one entry a layer and tensor, so that a file can be read a layer at a time."""
    return {
        f"layer_{layer}.{name}": tensor[place].contiguous()
        for name, tensor in probes.state_dict().items()
        for place, layer in enumerate(layers)
    }


def join(weights: dict[str, Tensor], layers: Sequence[int]) -> dict[str, Tensor]:
    """Put the weights of `layers` together again."""
    names = {name.partition(".")[2] for name in weights}
    return {name: torch.stack([weights[f"layer_{layer}.{name}"] for layer in layers]) for name in sorted(names)}
