"""Who a model is: not a path and not a name, but what it computes with."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

_SAMPLE = 64
"""Entries looked at in every weight tensor, spread evenly."""
_VOLATILE = (
    "_name_or_path",
    "transformers_version",
    "_attn_implementation",
    "_attn_implementation_internal",
    "dtype",
    "torch_dtype",
    "use_cache",
)
"""Configuration entries that say where a model came from or how it runs, not what it is."""


def model_fingerprint(model: Any, tokenizer_fingerprint: str) -> str:
    """Hash configuration, tokenizer (with its chat template) and a sample of every weight tensor.

    Weights enter rounded to bfloat16: the same model in float32, float16 or bfloat16 has the same fingerprint, quantised it has
    another. (Casts between them keep what bfloat16 holds, as long as the checkpoint was made in one of the 16-bit formats.)
    """
    digest = hashlib.sha256(tokenizer_fingerprint.encode())
    config = {k: v for k, v in model.config.to_dict().items() if k not in _VOLATILE}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        flat = tensor.detach().reshape(-1)
        if flat.numel():
            places = torch.linspace(0, flat.numel() - 1, min(_SAMPLE, flat.numel()), device=flat.device, dtype=torch.float64).long()
            sample = flat[places].cpu()
            sample = sample.to(torch.bfloat16) if sample.is_floating_point() else sample
            digest.update(sample.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
