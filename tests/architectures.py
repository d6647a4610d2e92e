"""Tiny random models of architectures that have no row in `inward.testing_models`, with the same byte tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inward.lm import BatchedLM
from inward.lm.loading import Loaded
from inward.lm.transformers import TransformersBackend
from inward.testing_models import BOS, EOS, PAD, VOCAB, tiny_tokenizer
from oracle import Oracle

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "tie_word_embeddings": False,
}
_GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024}
_LLAMA4: dict[str, Any] = {"num_local_experts": 2, "intermediate_size_mlp": 64, "head_dim": 8, "no_rope_layers": [0, 1]}
_LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 64,
    "factor": 16.0,
}
SPECIFIC: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 8},
    "gpt2": _GPT2,
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mamba": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 8},
    "cohere2": {"sliding_window": 8, "head_dim": 8},
    "llama4_text": _LLAMA4,
    "phi3": {"rope_parameters": _LONG, "original_max_position_embeddings": 64},
}


def build(kind: str, **fields: Any) -> Any:
    """Build the model of a kind; equal calls give equal weights."""
    config = AutoConfig.for_model(kind, **{**_COMMON, **SPECIFIC[kind], **fields})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=draw)
            if weight.dim() < 2 or "norm" in name:
                weight.add_(0.1 * noise)
            else:
                weight.copy_(noise / (1 if "embed" in name or "wte" in name else weight.shape[-1] ** 0.5 / 1.5))
    return model


def serve(model: Any, **options: Any) -> BatchedLM:
    """Put a model behind the runtime."""
    name = f"tiny-{model.config.model_type}"
    loaded = Loaded(model=model, tokenizer=tiny_tokenizer(), generation_config=model.generation_config, name=name)
    return BatchedLM(TransformersBackend(loaded, **options))


def lm_and_oracle(kind: str, **fields: Any) -> tuple[BatchedLM, Oracle]:
    """Build a model twice: behind the runtime, and plain."""
    return serve(build(kind, **fields)), Oracle(build(kind, **fields))
