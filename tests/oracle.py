"""What a model computes, by other means than ours: a second copy with its own attention, and states worked out by hand.

Nothing here reads the table of sites. The residual stream comes from the blocks' own inputs and outputs, the
attention from its output projection, the rest from arithmetic and from calling a block's modules one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from inward.testing_models import tiny_model
from inward.types import F32, Site

SANDWICHED = {"gemma2", "gemma3_text"}
"""Families that put a norm behind attention and MLP, and one before each."""


class Oracle:
    """A causal model run plainly: one whole sequence at a time, no cache of ours, attention of its own."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        config = model.config.get_text_config()
        self.kind: str = config.model_type
        self.parallel = bool(getattr(config, "use_parallel_residual", False))
        self.depth: int = config.num_hidden_layers

    @classmethod
    def tiny(cls, family: Any, *, attention: str | None = None, **options: Any) -> Oracle:
        """Build the tiny model of a family once more, with its default attention or the one named."""
        model = tiny_model(family, **options).model
        if attention is not None:
            model.set_attn_implementation(attention)
        return cls(model)

    @classmethod
    def copy_of(cls, model: Any, *, attention: str = "sdpa") -> Oracle:
        """Build a second model around the weights of one that runs already."""
        config = copy.deepcopy(model.config)  # the running model's own names its attention
        other = AutoModelForCausalLM.from_config(config, dtype=model.dtype, attn_implementation=attention)
        other.load_state_dict(model.state_dict(), assign=True)
        other.tie_weights()
        return cls(other)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return raw logits `[N, V]`."""
        return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()

    @torch.inference_mode()
    def greedy(self, ids: Sequence[int], count: int, eos: Sequence[int]) -> list[int]:
        """Continue by `model.generate`; what comes before the end token."""
        prompt = torch.tensor([ids])
        eos_ids = list(eos) or None
        options = {"do_sample": False, "max_new_tokens": count, "eos_token_id": eos_ids, "pad_token_id": 0, "top_k": None, "top_p": None}
        out = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, len(ids) :].tolist()
        return out[: next((i for i, token in enumerate(out) if token in eos), len(out))]

    @torch.inference_mode()
    def attention(self, ids: Sequence[int], layer: int) -> Tensor:
        """Return attention rows `[H, N, N]` of a block; the copy must have been made with eager attention."""
        return self.model(input_ids=torch.tensor([ids]), use_cache=False, output_attentions=True).attentions[layer][0].float()

    @torch.inference_mode()
    def streams(self, ids: Sequence[int], wanted: Sequence[int] | None = None) -> dict[str, F32]:
        """Return every site of the `wanted` blocks (all of them if None), `resid_pre` included: name -> `[blocks, N, d]`."""
        seen: dict[tuple[str, int], Tensor] = {}
        body = self.model.get_decoder()
        blocks = body.layers
        handles = []
        for number, block in enumerate(blocks):
            projection = block.attention.dense if self.kind == "gpt_neox" else block.self_attn.o_proj
            handles.append(projection.register_forward_hook(lambda _, __, out, n=number: seen.__setitem__(("projected", n), out[0])))
            handles.append(block.register_forward_hook(lambda _, __, out, n=number: seen.__setitem__(("post", n), _first(out)[0])))
        try:
            out = body(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        finally:
            for handle in handles:
                handle.remove()
        found: dict[str, list[Tensor]] = {name: [] for name in ("resid_pre", "attn_out", "resid_mid", "mlp_raw", "mlp_out", "resid_post")}
        for number in range(len(blocks) - 1):  # transformers' own record of the residual stream; the last entry is normed
            torch.testing.assert_close(seen["post", number], out.hidden_states[number + 1][0], rtol=0, atol=0)
        for number in range(len(blocks)) if wanted is None else wanted:
            pre, post = out.hidden_states[number][0], seen["post", number]
            for name, value in self._sites(blocks[number], pre, post, seen["projected", number]).items():
                found[name].append(value)
        return {name: torch.stack(values).float().numpy() for name, values in found.items() if values}

    def _sites(self, block: Any, pre: Tensor, post: Tensor, projected: Tensor) -> dict[str, Tensor]:
        behind = self.kind in SANDWICHED or self.kind == "olmo2"
        attn = block.post_attention_layernorm(projected) if behind else projected
        if self.parallel:
            raw = block.mlp(block.post_attention_layernorm(pre))
            return {"resid_pre": pre, "attn_out": attn, "mlp_raw": raw, "mlp_out": post - pre - attn, "resid_post": post}
        mid = pre + attn
        if self.kind == "olmo2":
            before = mid
        elif self.kind in SANDWICHED:
            before = block.pre_feedforward_layernorm(mid)
        else:
            before = block.post_attention_layernorm(mid)
        raw = _first(block.mlp(before[None]))[0]
        return {"resid_pre": pre, "attn_out": attn, "resid_mid": mid, "mlp_raw": raw, "mlp_out": post - mid, "resid_post": post}


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def relative(got: F32, expected: F32) -> float:
    """Largest relative L2 error of rows along the last axis."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape, f"shapes differ: {got.shape} and {expected.shape}"
    if not got.size:
        return 0.0
    error = np.linalg.norm(got - expected, axis=-1) / np.maximum(np.linalg.norm(expected, axis=-1), 1e-12)
    return float(error.max()) if np.isfinite(error).all() else float("inf")


SITES_OF_ALL: tuple[Site, ...] = ("resid_post", "attn_out", "mlp_out", "mlp_raw")
"""Sites that every family has; those whose residual is not parallel have `resid_mid` too."""
