"""Keys and values stay with their rows, whoever joins, leaves, grows or moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from identities import Case, alone, check_same, run, together
from inward.lm import BatchedLM
from inward.lm.kv import FIRST_COLUMNS, Seat, Segment, Slabs
from inward.testing import tiny_lm
from inward.types import Capture, Sampling

HEADS, WIDTH = 2, 3


def token(value: float) -> Tensor:
    return torch.full((HEADS, 1, WIDTH), float(value))


class Ledger:
    """Slabs, and beside them a plain list of what each row has written."""

    def __init__(self) -> None:
        self.slabs = Slabs()
        self.rows: dict[int, list[float]] = {}
        self.seats: dict[int, Seat] = {}
        self.names = 0

    def join(self, length: int, chain: tuple[Segment, ...] = ()) -> None:
        self.names += 1
        seat = self.slabs.seat(chain, length)
        values = [1000.0 * self.names + i for i in range(length)]
        if length:
            own = torch.cat([token(v) for v in values], 1)
            seat.slab.fill(seat, {0: own, 1: -own}, {0: own + 0.5, 1: -own - 0.5}, length)
        seat.owner = _Owner(self, self.names)
        self.rows[self.names], self.seats[self.names] = values, seat

    def leave(self, name: int) -> None:
        self.slabs.leave(self.seats.pop(name))
        del self.rows[name]

    def step(self) -> None:
        """Write one token a row, as a decoding step does."""
        for slab in self.slabs:
            for seat in list(slab.seats):
                seat.owner.seat = self.slabs.widen(seat)
        for slab in self.slabs:
            names = [seat.owner.name for seat in slab.seats]
            values = [1000.0 * name + len(self.rows[name]) for name in names]
            new = torch.stack([token(v)[:, 0] for v in values])
            columns = torch.tensor([seat.length for seat in slab.seats])
            for layer, sign in ((0, 1), (1, -1)):
                slab.write(layer, torch.arange(len(names)), columns, sign * new, sign * (new + 0.5))
            for seat, name, value in zip(slab.seats, names, values, strict=True):
                self.rows[name].append(value)
                seat.length += 1

    def check(self) -> None:
        """Every row's keys and values are what it wrote, and rows of a slab stand side by side."""
        for name, seat in self.seats.items():
            written = torch.tensor(self.rows[name])
            assert seat.length == len(written) <= seat.slab.columns
            assert seat.slab.seats[seat.slot] is seat
            if not len(written):
                continue
            keys, values = seat.slab.row(seat)
            for layer, sign in ((0, 1), (1, -1)):
                assert torch.equal(keys[layer][1, : len(written), 2], sign * written)
                assert torch.equal(values[layer][0, : len(written), 0], sign * (written + 0.5))
        for slab in self.slabs:
            assert len(slab.seats) <= slab.capacity


class _Owner:
    def __init__(self, ledger: Ledger, name: int) -> None:
        self.ledger, self.name = ledger, name

    @property
    def seat(self) -> Seat:
        return self.ledger.seats[self.name]

    @seat.setter
    def seat(self, seat: Seat) -> None:
        self.ledger.seats[self.name] = seat


JOIN, STEP, LEAVE = (st.tuples(st.just(name), st.integers(0, most)) for name, most in (("join", 140), ("step", 0), ("leave", 99)))
OPERATIONS = st.lists(st.one_of(JOIN, STEP, LEAVE), max_size=60)


@given(OPERATIONS)
@settings(max_examples=80, deadline=None)
def test_rows_keep_what_they_wrote(operations):
    ledger = Ledger()
    for what, number in operations:
        if what == "join":
            ledger.join(number)
        elif what == "step":
            ledger.step()
        elif ledger.rows:
            ledger.leave(list(ledger.rows)[number % len(ledger.rows)])
        ledger.check()


def test_rows_that_outgrow_their_slot_move_with_everything():
    ledger = Ledger()
    for length in (0, FIRST_COLUMNS - 1, FIRST_COLUMNS, 3):
        ledger.join(length)
    for _ in range(2 * FIRST_COLUMNS + 3):
        ledger.step()
    ledger.check()
    assert {seat.slab.columns for seat in ledger.seats.values()} == {4 * FIRST_COLUMNS}


def test_slots_that_nobody_needs_are_given_back():
    ledger = Ledger()
    for _ in range(64):
        ledger.join(5)
    (slab,) = ledger.slabs
    assert slab.capacity == 64
    for name in list(ledger.rows)[:-1]:
        ledger.leave(name)
        ledger.check()
    assert slab.capacity <= 4
    ledger.leave(*ledger.rows)
    assert not list(ledger.slabs)
    assert not ledger.slabs._slabs


def segment(ids: tuple[int, ...], parent: Segment | None = None) -> Segment:
    made = Segment(ids, parent)
    for place, value in enumerate(ids):
        made.write(0, token(value), token(-value))
        made.filled = place + 1
    return made


def test_a_segment_reads_its_ancestors_in_order():
    a = segment((1, 2, 3))
    b = segment((4,), a)
    c = segment((5, 6), b)
    assert (c.start, c.end, c.ready, c.chain) == (4, 6, True, (a, b, c))
    keys, values = c.read(0, 1)
    assert keys[0, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert values[1, :, 2].tolist() == [-1, -2, -3, -4, -5]


def test_a_pass_that_was_cut_short_is_written_again():
    """`filled` moves when a pass is over: what a failed one left behind is overwritten."""
    half = Segment((7, 8))
    half.write(0, token(99), token(99))
    half.write(0, token(7), token(-7))
    half.filled = 1
    half.write(0, token(8), token(-8))
    half.filled = 2
    assert half.read(0, 2)[0][0, :, 0].tolist() == [7, 8]


def nan_lm(**options) -> BatchedLM:
    """A model for which the letter Z is no number, as an overflow in fp16 makes it."""
    lm = tiny_lm("llama", **options)
    with torch.no_grad():
        lm.backend.model.get_input_embeddings().weight[ord("Z")] = float("nan")
    return lm


@pytest.mark.parametrize("prefix_reuse", [True, False])
def test_a_row_that_is_no_number_harms_no_other(prefix_reuse: bool):
    """Its slot is taken over by other rows, beside longer ones: zero times what is no number would be none."""
    lm = nan_lm(prefix_reuse=prefix_reuse)
    sampling, capture = Sampling(max_tokens=12), Capture(layers=(0, 1), pool="none")
    good = [Case(prompt="x" * n, sampling=replace(sampling, max_tokens=4 + n), capture=capture) for n in (2, 30, 5, 9, 21, 3)]
    expected = run(alone(nan_lm(), good))
    bad = [Case(prompt="Z" * n, sampling=replace(sampling, max_tokens=5)) for n in (40, 50, 45)]
    found = run(together(lm, [bad[0], good[0], bad[1], *good[1:], bad[2]]))
    check_same(good, expected, [found[1], *found[3:8]])
    check_same(good, expected, run(together(lm, good)))
