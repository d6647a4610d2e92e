"""How much memory a batch may take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_SHARE = 0.5
"""Of the memory that is free when the model is loaded; the rest is for activations and everybody else."""
_UNKNOWN = 4 << 30
"""Bytes taken for free where the system does not say."""
_LEAST = 1024
"""Tokens of the smallest budget: one long prompt must fit."""


def token_budget(model: Any) -> int:
    """Tokens whose keys and values fit a share of the memory that is free now."""
    device = model.get_input_embeddings().weight.device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_memory()
    return max(_LEAST, int(free * _SHARE) // bytes_per_token(model))


def bytes_per_token(model: Any) -> int:
    """Bytes of keys and values that one token takes in all blocks."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 1)
    size = getattr(config, "head_dim", None) or config.hidden_size // max(1, getattr(config, "num_attention_heads", 1))
    weight = model.get_input_embeddings().weight
    return int(2 * config.num_hidden_layers * heads * size * weight.element_size())


def free_host_memory(proc: Path = Path("/proc"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be had: what the kernel calls available (file caches give way), within the container's own limit."""
    lines = _read(proc / "meminfo").splitlines()
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), _UNKNOWN)
    limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if not (limit.isdigit() and used.isdigit()):
        return available
    stat = dict(line.split() for line in _read(group / "memory.stat").splitlines() if line.count(" ") == 1)
    return max(0, min(available, int(limit) - int(used) + int(stat.get("inactive_file", 0))))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
