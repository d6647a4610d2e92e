"""The product with the vocabulary, for few rows on a processor.

The head's weights are by far the largest matrix of a small model (two thirds of gemma-3-270m). For a few dozen rows the processor's
library spends much of its time rearranging them; in tiles that stay in its cache it takes about a quarter less (decision 0004).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_TILE = 1024
"""Rows of the weights multiplied at a time."""
_LARGE = 1 << 24
"""Weights from which on tiling is worth it."""
_FEW = 128
"""Rows up to which it is."""


def tile_head(model: Any) -> bool:
    """Let the model's head multiply few rows in tiles; return whether it does. The numbers are the same but for rounding.

    Left alone: heads on another device, in another number format, with a bias, of another class (quantised ones), or hooked.
    """
    head = model.get_output_embeddings()
    plain = type(head) is nn.Linear and head.bias is None and "forward" not in vars(head) and not hasattr(head, "_hf_hook")
    if not plain or head.weight.device.type != "cpu" or head.weight.dtype != torch.float32 or head.weight.numel() < _LARGE:
        return False
    head.forward = lambda hidden: tiled(hidden, head.weight)
    return True


def untile_head(model: Any) -> None:
    """Give the model its own head back."""
    vars(model.get_output_embeddings()).pop("forward", None)


def tiled(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return `hidden [..., d]` times the transpose of `weight [V, d]`."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    if not 1 < len(rows) <= _FEW or torch.is_grad_enabled():
        return F.linear(hidden, weight)
    out = rows.new_empty(len(rows), len(weight))
    for start in range(0, len(weight), _TILE):
        out[:, start : start + _TILE] = rows @ weight[start : start + _TILE].t()
    return out.view(*hidden.shape[:-1], len(weight))
