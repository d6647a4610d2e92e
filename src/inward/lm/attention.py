"""Attention of a packed step: every row's new tokens side by side, each looking at its own keys.

A step feeds the new tokens of all rows as one sequence `[1, N]`, with no padding. Positions are absolute.
The model's own mask rule (causal, sliding window, chunked) is evaluated at those positions, so a shared
prefix is exact for every layer type. transformers calls `attend` in place of its own attention kernels and
`_mask` in place of its mask builders, both registered under the name `IMPLEMENTATION`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface

from inward.errors import Unsupported
from inward.lm.kv import Segment, Slab

IMPLEMENTATION = "inward"
_IGNORED = frozenset(
    {
        "cache_position",
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "use_cache",
    }
)
"""Arguments of a layer that change nothing here; any other one sends the model to the cold path."""


LONG = 256
"""Keys from which on it is worth a look which of them a window leaves."""
BLOCK = 128
"""Queries of a prompt that look at their keys together: blocks leave out what lies beyond all of theirs."""


@dataclass(slots=True)
class Block:
    """Queries of a prompt, and the keys that at least one of them looks at."""

    queries: slice
    first: int
    last: int
    """Keys `first` up to `last`."""
    mask: Tensor
    """`[queries, last - first]`, true where a query may look."""


@dataclass(slots=True, eq=False)
class Prefill:
    """New tokens of a segment, `rows` of the packed step."""

    segment: Segment
    rows: slice
    attention_layer: int | None = None
    """A layer whose attention rows are kept."""
    attention: Tensor | None = None
    """`[H, n, S]` of that layer."""

    @property
    def length(self) -> int:
        """Own tokens once this step is over."""
        return self.segment.filled + int(self.rows.stop - self.rows.start)

    def mask(self, rule: MaskRule, positions: Tensor) -> list[Block]:
        """Return the queries in blocks, each with the keys between the first and the last that it may look at."""
        keys = torch.arange(self.segment.start + self.length, device=positions.device)
        mask = rule.allows(positions[self.rows], keys)
        count, total = mask.shape
        if total < LONG or mask.device.type != "cpu":  # elsewhere the host would have to wait for the device
            return [Block(slice(0, count), 0, total, mask)]
        blocks = []
        for start in range(0, count, BLOCK):
            part = mask[start : start + BLOCK]
            seen = part.any(0).byte()
            first, last = int(seen.argmax()), total - int(seen.flip(0).argmax())
            blocks.append(Block(slice(start, start + len(part)), first, last, part[:, first:last]))
        return blocks

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: list[Block], scale: float, softcap: float | None) -> Tensor:
        """Return `[n, H, D_v]` for `q [H, n, D]`, `k` and `v [H_kv, n, D]`."""
        self.segment.write(layer, k, v)
        keys, values = self.segment.read(layer, self.length)
        heads, kv_heads = q.shape[0], keys.shape[0]
        out = q.new_empty(q.shape[1], heads, values.shape[-1])
        kept = []
        for block in mask:
            own_keys, own_values = keys[:, block.first : block.last], values[:, block.first : block.last]
            queries = q[:, block.queries]
            folded = queries.reshape(kv_heads, -1, q.shape[-1])  # queries of one key head together: keys are not repeated
            allowed = block.mask.to(q.device).repeat(heads // kv_heads, 1)
            if softcap is None and self.attention_layer != layer:
                found = F.scaled_dot_product_attention(folded[None], own_keys[None], own_values[None], attn_mask=allowed, scale=scale)[0]
            else:
                weights = _softmax(folded @ own_keys.transpose(1, 2), allowed, scale, softcap)
                if self.attention_layer == layer:
                    kept.append(F.pad(weights.view(heads, queries.shape[1], -1).float(), (block.first, keys.shape[1] - block.last)))
                found = weights @ own_values
            out[block.queries] = found.view(heads, queries.shape[1], -1).transpose(0, 1)
        if kept:
            self.attention = torch.cat(kept, 1)
        return out


@dataclass(slots=True, eq=False)
class Decode:
    """One new token for every row of a slab, `rows` of the packed step in slot order."""

    slab: Slab
    rows: slice
    slots: Tensor
    columns: Tensor
    """`[R]` where each row's new token is written."""
    width: int
    """Columns in use once this step is over."""

    def mask(self, rule: MaskRule, positions: Tensor) -> Tensor:
        """Return `[R, S]`, true where a query may look, over the last `S` keys; columns beyond a row's own tokens are its future."""
        keys = torch.arange(self.slab.start + self.width, device=positions.device)
        mask = rule.allows(positions[self.rows], keys)
        if len(keys) < LONG or mask.device.type != "cpu":  # elsewhere the host would have to wait for the device at every step
            return mask
        return mask[:, int(mask.any(0).byte().argmax()) :]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
        """Return `[R, H, D_v]` for `q [H, R, D]`, `k` and `v [H_kv, R, D]`."""
        slab, rows = self.slab, self.rows.stop - self.rows.start
        slab.write(layer, self.slots, self.columns, k.transpose(0, 1), v.transpose(0, 1))
        kv_heads = k.shape[0]
        grouped = q.reshape(kv_heads, -1, rows, q.shape[-1])  # [H_kv, G, R, D]
        folded = grouped.reshape(kv_heads, -1, q.shape[-1])  # [H_kv, G * R, D]
        mask = mask.to(q.device)
        first = slab.start + self.width - mask.shape[1]  # keys before it have left every row's window
        begin = max(0, first - slab.start)
        own_keys = slab.keys[layer][:rows, :, begin : self.width]
        own_values = slab.values[layer][:rows, :, begin : self.width]
        seen = [s for s in slab.chain if s.end > first]
        by_row = grouped.permute(2, 0, 1, 3)  # [R, H_kv, G, D]
        scores = [
            (folded @ s.keys[layer][:, max(0, first - s.start) :].transpose(1, 2)).view(*grouped.shape[:3], -1).permute(2, 0, 1, 3)
            for s in seen
        ]
        scores.append(by_row @ own_keys.transpose(2, 3))
        weights = _softmax(torch.cat(scores, -1), mask[:, None, None], scale, softcap)  # [R, H_kv, G, S]
        out = weights[..., slab.start + begin - first :] @ own_values
        for s in seen:
            values = s.values[layer][:, max(0, first - s.start) :]
            place = max(0, s.start - first)
            part = weights[..., place : place + values.shape[1]].permute(1, 2, 0, 3).reshape(kv_heads, -1, values.shape[1])
            out += (part @ values).view(*grouped.shape[:3], -1).permute(2, 0, 1, 3)
        return out.reshape(rows, q.shape[0], -1)


def _softmax(scores: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    scores = scores * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32).to(scores.dtype)


@dataclass(slots=True, eq=False)
class Plan:
    """What one step feeds."""

    parts: list[Prefill | Decode]
    positions: Tensor
    """`[N]` absolute."""
    masks: dict[tuple[int, int, int | None], Tensor | list[Block]] = field(default_factory=dict)
    rules: list[MaskRule] = field(default_factory=list)
    """Kept alive for the step: masks are filed under their identity."""

    def mask(self, place: int, rule: MaskRule, window: int | None) -> Tensor | list[Block]:
        """Return the mask of a part under a rule, built once a step however many layers share the rule."""
        key = (place, id(rule), window)
        if key not in self.masks:
            self.masks[key] = self.parts[place].mask(rule.within(window), self.positions)
        return self.masks[key]


@dataclass(slots=True, eq=False)
class MaskRule:
    """A model's own rule of who may look at whom."""

    rule: Callable[[Any, Any, Tensor, Tensor], Tensor]
    window: int | None = None
    """A window that the layer states beside the rule."""

    def within(self, window: int | None) -> MaskRule:
        """Narrow the rule to a layer's window; a rule that holds the window already stays as it is."""
        return self if window is None else MaskRule(self.rule, window)

    def allows(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return `[n, S]` for absolute positions of queries `[n]` and keys `[S]`."""
        zero = torch.zeros((), dtype=torch.long, device=queries.device)
        q, k = queries[:, None], keys[None, :]
        allowed = self.rule(zero, zero, q, k)
        if self.window is not None:
            allowed = allowed & (k > q - self.window)
        return allowed.expand(len(queries), len(keys))


class PackedCache(Cache):  # type: ignore[misc]  # transformers is untyped here
    """Stands where a model expects its cache and hands new keys and values straight on: `attend` files them."""

    def __init__(self) -> None:
        """Hold nothing."""
        super().__init__(layers=[])

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return what came."""
        return key_states, value_states

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        """Return 0: positions are given explicitly. A layer that asks for its own length would count them from it."""
        if args or kwargs:
            raise Unsupported("a layer counts positions from the length of its cache, and rows of a packed step have many lengths")
        return 0

    def get_query_offset(self, *args: Any, **kwargs: Any) -> int:
        """Return 0: the mask rule is evaluated at absolute positions."""
        return 0

    def get_mask_sizes(self, query_length: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Return the packed length."""
        return int(query_length), 0


_plan: ContextVar[Plan | None] = ContextVar("inward_plan", default=None)


@contextmanager
def planned(plan: Plan) -> Iterator[None]:
    """Make `plan` the one that attention layers called within follow."""
    token = _plan.set(plan)
    try:
        yield
    finally:
        _plan.reset(token)


def _build_mask(*args: Any, mask_function: Callable[..., Tensor], **kwargs: Any) -> MaskRule:
    """Keep the model's rule instead of a tensor; transformers calls this once a step and mask kind."""
    rule = MaskRule(mask_function)
    if (plan := _plan.get()) is not None:
        plan.rules.append(rule)
    return rule


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend for one layer of a packed step; `query [1, H, N, D]` -> `[1, N, H, D_v]`. transformers calls this."""
    plan = _plan.get()
    unknown = sorted(name for name, value in kwargs.items() if value is not None and name not in _IGNORED)
    if plan is None or unknown or not isinstance(attention_mask, MaskRule):
        raise Unsupported(
            f"{type(module).__name__} asks for attention in a way that packed steps do not know ({', '.join(unknown) or 'its mask'})"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])  # [N, H, D_v]
    for place, part in enumerate(plan.parts):
        mask: Any = plan.mask(place, attention_mask, sliding_window)
        rows = part.rows
        out[rows] = part.attend(module.layer_idx, query[0, :, rows], key[0, :, rows], value[0, :, rows], mask, scale, softcap)
    return out[None], None


AttentionInterface.register(IMPLEMENTATION, _attend)
AttentionMaskInterface.register(IMPLEMENTATION, _build_mask)
