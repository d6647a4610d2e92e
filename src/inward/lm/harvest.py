"""From a pass's hooks to the completions that asked for its states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from inward.lm.attention import Decode, Prefill
from inward.lm.calls import Call
from inward.lm.capture import Taps
from inward.lm.device import send
from inward.types import Capture


def harvest(taps: Taps, device: torch.device, parts: Sequence[Prefill | Decode], owners: Sequence[Any]) -> None:
    """Hand this pass's states to the completions that asked for them, one gather per capture."""
    wanted: dict[Capture, list[tuple[int, Any, int | None]]] = {}
    for part, owner in zip(parts, owners, strict=True):
        for capture, row, target, index in _state_rows(part, owner):
            wanted.setdefault(capture, []).append((row, target, index))
    for capture, takers in wanted.items():
        rows = send([row for row, _, _ in takers], device)
        found = taps.gather(capture.site, capture.layers, rows)
        for state, (_, target, index) in zip(found, takers, strict=True):
            if isinstance(target, Call):
                target.prompt_state = state.cpu().numpy()
            elif index is None:
                target.end = state.clone()
            else:
                target.add(index, state[None])
    taps.clear()
    for part, owner in zip(parts, owners, strict=True):
        if isinstance(part, Prefill) and part.attention is not None:
            owner.attention.append(part.attention)


def _state_rows(part: Prefill | Decode, owner: Any) -> Iterator[tuple[Capture, int, Any, int | None]]:
    """Yield (capture, packed row, who takes it, token index or None for the end token)."""
    if isinstance(part, Decode):
        for row, live in enumerate(owner, part.rows.start):
            if live.states is None:
                continue
            if live.closing is not None and not live.closing and live.states.capture.pool == "eos":
                yield live.states.capture, row, live.states, None
            elif live.states.reads_tokens:
                yield live.states.capture, row, live.states, live.fed
        return
    first = part.segment.start + part.segment.filled
    for call in owner.calls:
        capture = call.request.capture
        if capture is None or not capture.layers:
            continue
        last = len(call.prompt_ids) - 1 - first
        if capture.over == "prompt_last" and 0 <= last < part.rows.stop - part.rows.start:
            yield capture, part.rows.start + last, call, None
        if not call.reads:
            continue
        for row in range(part.rows.start, part.rows.stop):
            index = first + row - part.rows.start - len(call.prompt_ids)
            if index == len(call.given) and capture.pool == "eos":
                yield capture, row, owner.states, None
            elif 0 <= index < len(call.given) and owner.states.reads_tokens:
                yield capture, row, owner.states, index
