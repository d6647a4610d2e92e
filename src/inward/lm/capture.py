"""Where a model's internal states are read, and how they are pooled.

A site is a place in a decoder block. `attn_out` and `mlp_out` are the vectors that are *added to the residual
stream* (after the post-norms of Gemma and OLMo 2), so `resid_pre + attn_out = resid_mid` and
`resid_mid + mlp_out = resid_post` in every block; `mlp_raw` is what the MLP module itself returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from inward.errors import Unsupported
from inward.types import F32, Capture, Site

Tap: TypeAlias = tuple[Site, int]
"""A site of a 0-based block."""


class Place(NamedTuple):
    """A submodule of a decoder block ("" is the block itself) and which end of it."""

    module: str
    end: Literal["in", "out"]


_LLAMA: Mapping[Site, Place] = {
    "resid_post": Place("", "out"),
    "resid_mid": Place("post_attention_layernorm", "in"),
    "attn_out": Place("self_attn", "out"),
    "mlp_out": Place("mlp", "out"),
    "mlp_raw": Place("mlp", "out"),
}
_GEMMA: Mapping[Site, Place] = {
    "resid_post": Place("", "out"),
    "resid_mid": Place("pre_feedforward_layernorm", "in"),
    "attn_out": Place("post_attention_layernorm", "out"),
    "mlp_out": Place("post_feedforward_layernorm", "out"),
    "mlp_raw": Place("mlp", "out"),
}
_OLMO2: Mapping[Site, Place] = {**_GEMMA, "resid_mid": Place("mlp", "in")}
_NEOX: Mapping[Site, Place] = {**_LLAMA, "attn_out": Place("attention", "out")}

FAMILIES: Mapping[str, Mapping[Site, Place]] = {
    "gemma": _LLAMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "gpt_neox": _NEOX,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "olmo2": _OLMO2,
    "phi3": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": _LLAMA,
}
"""`config.model_type` -> where its sites are. A family enters with its row in tests/lm/test_capture.py."""


class Taps:
    """Hooks on a model's blocks; after a forward pass each wanted site holds its `[N, d]`."""

    def __init__(self, model: Any) -> None:
        """Know the sites of `model`, a transformers decoder; nothing is hooked until `want`."""
        config = model.config.get_text_config()
        self.model_type: str = config.model_type
        self._places = FAMILIES.get(self.model_type)
        self._blocks: nn.ModuleList | None = getattr(model.get_decoder(), "layers", None) if self._places else None
        self._parallel = bool(getattr(config, "use_parallel_residual", False))
        self._handles: dict[Tap, RemovableHandle] = {}
        self._seen: dict[Tap, Tensor] = {}
        self.num_layers: int = config.num_hidden_layers

    @property
    def known(self) -> bool:
        """Whether this architecture's sites are known."""
        return self._blocks is not None

    def check(self, capture: Capture) -> None:
        """Refuse a capture that this model cannot give.

        Raises:
            Unsupported: the architecture's sites are unknown, the site does not exist in it, or a layer is
                beyond its depth.
        """
        if self._places is None or self._blocks is None:
            raise Unsupported(
                f"capture on architecture {self.model_type!r} is refused: where its sites are is not known. "
                f"Known: {', '.join(sorted(FAMILIES))}"
            )
        if self._parallel and capture.site == "resid_mid":
            raise Unsupported(
                f"{self.model_type!r} adds attention and MLP in parallel: there is no site 'resid_mid'; use resid_post, attn_out or mlp_out"
            )
        wanted = (*capture.layers, *(() if capture.attention is None else (capture.attention,)))
        if beyond := [layer for layer in wanted if layer >= self.num_layers]:
            raise Unsupported(f"layers {beyond} do not exist: {self.model_type!r} has {self.num_layers} blocks, 0 to {self.num_layers - 1}")

    def want(self, taps: Iterable[Tap]) -> None:
        """Keep hooks on exactly these sites."""
        wanted = set(taps)
        for tap in self._handles.keys() - wanted:
            self._handles.pop(tap).remove()
        for tap in wanted - self._handles.keys():
            self._handles[tap] = self._hook(tap)

    def _hook(self, tap: Tap) -> RemovableHandle:
        assert self._places is not None
        assert self._blocks is not None
        site, layer = tap
        place = self._places[site]
        module = self._blocks[layer].get_submodule(place.module)
        seen = self._seen

        def after(_: nn.Module, __: Any, output: Any) -> None:
            seen[tap] = output[0] if isinstance(output, tuple) else output

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[tap] = args[0] if args else next(iter(kwargs.values()))

        if place.end == "out":
            return module.register_forward_hook(after)
        return module.register_forward_pre_hook(before, with_kwargs=True)

    def gather(self, site: Site, layers: tuple[int, ...], rows: Tensor) -> Tensor:
        """Return `[R, L, d]` in fp32 for packed rows `[R]` of the last pass."""
        found = [self._seen[(site, layer)] for layer in layers]
        device = found[0].device
        flat = [x.reshape(-1, x.shape[-1]) for x in found]
        return torch.stack([x.index_select(0, rows.to(x.device)).to(device, torch.float32) for x in flat], 1)

    def clear(self) -> None:
        """Let go of the last pass's tensors."""
        self._seen.clear()


@dataclass(slots=True, eq=False)
class States:
    """The states of one completion's tokens, pooled as they come, on the device.

    A token's state counts once no stop string can cut the token off any more; until then it waits.
    """

    capture: Capture
    total: Tensor | None = None
    counted: int = 0
    last: Tensor | None = None
    every: list[Tensor] = field(default_factory=list)
    waiting: list[tuple[int, Tensor]] = field(default_factory=list)
    end: Tensor | None = None

    @property
    def reads_tokens(self) -> bool:
        """Whether states of generated tokens are wanted at all."""
        return bool(self.capture.layers) and self.capture.pool != "eos" and self.capture.over == "generated"

    def add(self, first: int, states: Tensor) -> None:
        """Take the states `[n, L, d]` of the tokens from number `first` on."""
        self.waiting.extend((first + i, state) for i, state in enumerate(states))

    def settle(self, safe: int) -> None:
        """Count the states of the first `safe` tokens."""
        while self.waiting and self.waiting[0][0] < safe:
            _, state = self.waiting.pop(0)
            self.counted += 1
            if self.capture.pool == "mean":
                # cloned: a row of a step's states would keep the whole step's alive
                self.total = state.clone() if self.total is None else self.total.add_(state)
            elif self.capture.pool == "last":
                self.last = state.clone()
            else:
                self.every.append(state.clone())

    def result(self, kept: int, shape: tuple[int, int]) -> F32 | None:
        """Return `[L, d]` (pooled) or `[L, T, d]` (`pool="none"`) over the first `kept` tokens."""
        if not self.capture.layers or self.capture.over == "prompt_last":
            return None
        self.settle(kept)
        if self.capture.pool == "none":
            if not self.every:
                return np.zeros((shape[0], 0, shape[1]), np.float32)
            return torch.stack(self.every, 1).cpu().numpy()
        if self.capture.pool == "eos":
            pooled = self.end
        elif self.capture.pool == "last":
            pooled = self.last
        else:
            pooled = None if self.total is None else self.total / self.counted
        if pooled is None:
            return np.full(shape, np.nan, np.float32)
        return pooled.cpu().numpy()
