"""Where keys and values live.

A *segment* holds the keys and values of a run of tokens that several rows may share: a prompt prefix, or a
prompt whose samples fork from it. A *slab* holds the own tokens of rows that share a chain of segments, one
slot a row, so that a step reads them as one tensor. Everything is kept whole, for sliding-window layers too:
a window is a matter of the mask, so nothing that was shared is ever cropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

FIRST_COLUMNS = 64
"""Width of the narrowest slab; a row that outgrows its slab moves to one twice as wide."""


def columns_for(tokens: int) -> int:
    """Width of the slab that a row of so many own tokens sits in."""
    columns = FIRST_COLUMNS
    while columns < tokens:
        columns *= 2
    return columns


@dataclass(slots=True, eq=False)
class Segment:
    """Keys and values of a run of tokens, `[H_kv, capacity, D]` per layer."""

    ids: tuple[int, ...]
    """The tokens of this run alone."""
    parent: Segment | None = None
    filled: int = 0
    users: int = 0
    """How many prompts have continued it."""
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """Position of the first token."""
        return self.parent.end if self.parent else 0

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.ids)

    @property
    def ready(self) -> bool:
        """Whether every token has been fed."""
        return self.filled == len(self.ids)

    @property
    def chain(self) -> tuple[Segment, ...]:
        """Ancestors and the segment itself, oldest first."""
        return (*(self.parent.chain if self.parent else ()), self)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write `[H_kv, n, D]` after what is filled (the caller advances `filled` when the pass is over)."""
        if layer not in self.keys:
            self.keys[layer] = keys.new_empty(keys.shape[0], len(self.ids), keys.shape[2])
            self.values[layer] = values.new_empty(values.shape[0], len(self.ids), values.shape[2])
        place = slice(self.filled, self.filled + keys.shape[1])
        self.keys[layer][:, place] = keys
        self.values[layer][:, place] = values

    def borrow(self, other: Segment) -> None:
        """Copy the keys and values of these very tokens from a segment that holds them among its own."""
        place = slice(self.start - other.start, self.end - other.start)
        self.keys = {layer: keys[:, place].clone() for layer, keys in other.keys.items()}
        self.values = {layer: values[:, place].clone() for layer, values in other.values.items()}
        self.filled = len(self.ids)

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of all ancestors and the first `length` own tokens, `[H_kv, S, D]`."""
        own = self.keys[layer][:, :length], self.values[layer][:, :length]
        if self.parent is None:
            return own
        chain = self.parent.chain
        keys = torch.cat([*(s.keys[layer] for s in chain), own[0]], dim=1)
        return keys, torch.cat([*(s.values[layer] for s in chain), own[1]], dim=1)


@dataclass(slots=True, eq=False)
class Seat:
    """A row's place in a slab."""

    slab: Slab
    slot: int
    length: int
    """Own tokens that are there, `length <= slab.columns`."""
    owner: Any = None
    """Whoever decodes here."""

    @property
    def position(self) -> int:
        """Position of the next token."""
        return self.slab.start + self.length


@dataclass(slots=True, eq=False)
class Slab:
    """Own keys and values of rows with one chain, `[rows, H_kv, columns, D]` per layer."""

    chain: tuple[Segment, ...]
    columns: int
    seats: list[Seat] = field(default_factory=list)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    capacity: int = 0
    used: int = 0
    """Slots from here on were never written and hold zeros."""

    @property
    def start(self) -> int:
        """Position of the rows' first own token."""
        return self.chain[-1].end if self.chain else 0

    def sit(self) -> Seat:
        """Give a new row the next slot, cleared: columns ahead of a row are masked, but a stray nan survives a mask."""
        slot = len(self.seats)
        if slot == self.capacity:
            self._resize(max(1, 2 * self.capacity))
        if slot < self.used:
            for store in (self.keys, self.values):
                for tensor in store.values():
                    tensor[slot] = 0
        self.used = max(self.used, slot + 1)
        seat = Seat(self, slot, 0)
        self.seats.append(seat)
        return seat

    def leave(self, seat: Seat) -> None:
        """Free a slot; the last row moves into it, so that the rows stay together."""
        last = self.seats.pop()
        if last is not seat:
            for store in (self.keys, self.values):
                for tensor in store.values():
                    tensor[seat.slot] = tensor[last.slot]
            last.slot = seat.slot
            self.seats[last.slot] = last
        if len(self.seats) * 4 <= self.capacity and self.capacity > 4:
            self._resize(self.capacity // 2)

    def write(self, layer: int, slots: Tensor, columns: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write one token a row, `[R, H_kv, D]`, at `columns [R]`."""
        if layer not in self.keys:
            self._allocate(layer, keys, values)
        slots, columns = slots.to(keys.device), columns.to(keys.device)  # layers may lie on several devices
        self.keys[layer][slots, :, columns] = keys
        self.values[layer][slots, :, columns] = values

    def fill(self, seat: Seat, keys: dict[int, Tensor], values: dict[int, Tensor], length: int) -> None:
        """Copy the first `length` tokens of `[H_kv, n, D]` per layer into a row's slot."""
        for layer in keys:
            if layer not in self.keys:
                self._allocate(layer, keys[layer].transpose(0, 1), values[layer].transpose(0, 1))
            self.keys[layer][seat.slot, :, :length] = keys[layer][:, :length]
            self.values[layer][seat.slot, :, :length] = values[layer][:, :length]
        seat.length = length

    def row(self, seat: Seat) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Return a row's keys and values, `[H_kv, columns, D]` per layer."""
        return {n: t[seat.slot] for n, t in self.keys.items()}, {n: t[seat.slot] for n, t in self.values.items()}

    def _allocate(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self.keys[layer] = keys.new_zeros(self.capacity, keys.shape[1], self.columns, keys.shape[2])
        self.values[layer] = values.new_zeros(self.capacity, values.shape[1], self.columns, values.shape[2])

    def _resize(self, capacity: int) -> None:
        rows = len(self.seats)
        for store in (self.keys, self.values):
            for layer, old in store.items():
                store[layer] = old.new_zeros(capacity, *old.shape[1:])
                store[layer][:rows] = old[:rows]
        self.capacity, self.used = capacity, rows


class Slabs:
    """All slabs, by chain and width."""

    def __init__(self) -> None:
        self._slabs: dict[tuple[tuple[Segment, ...], int], Slab] = {}

    def __iter__(self) -> Iterator[Slab]:
        """Iterate over slabs that hold rows."""
        return iter([slab for slab in self._slabs.values() if slab.seats])

    def seat(self, chain: tuple[Segment, ...], length: int) -> Seat:
        """Seat a row that brings `length` own tokens and is about to get one more."""
        columns = columns_for(length + 1)
        key = (chain, columns)
        if key not in self._slabs:
            self._slabs[key] = Slab(chain, columns)
        return self._slabs[key].sit()

    def leave(self, seat: Seat) -> None:
        """Take a row out; an empty slab is freed."""
        slab = seat.slab
        slab.leave(seat)
        if not slab.seats:
            del self._slabs[(slab.chain, slab.columns)]

    def widen(self, seat: Seat) -> Seat:
        """Move a row that has filled its slot to a slab twice as wide."""
        if seat.length < seat.slab.columns:
            return seat
        new = self.seat(seat.slab.chain, seat.length)
        new.owner = seat.owner
        keys, values = seat.slab.row(seat)
        new.slab.fill(new, keys, values, seat.length)
        self.leave(seat)
        return new
