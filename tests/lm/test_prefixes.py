"""Shared prefixes: found when they save something, never longer than what is shared, and never more of them than there is room for."""

from __future__ import annotations

import random
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inward.lm import prefixes
from inward.lm.kv import Segment
from inward.lm.prefixes import MIN_TOKENS, Ids, Prefixes, common

DEMOS = tuple(range(100))
OTHER = tuple(range(500, 580))


def text_of(segment: Segment | None) -> Ids:
    return tuple(i for s in segment.chain for i in s.ids) if segment else ()


def held(store: Prefixes) -> set[Segment]:
    """Return every segment that the store keeps alive."""
    return {s for segment in store._stored.values() for s in segment.chain}


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_is_the_length_of_the_common_prefix(a, b):
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common(tuple(a), tuple(b)) == expected


def test_one_segment_for_what_many_share():
    store = Prefixes(1000)
    found = store.assign([(*DEMOS, 900 + i, 7) for i in range(16)])
    assert len(set(map(id, found))) == 1
    assert text_of(found[0]) == DEMOS
    assert found[0] is not None
    assert found[0].users == 16
    assert not found[0].ready


def test_short_prefixes_are_not_worth_it():
    store = Prefixes(1000)
    assert store.assign([(*DEMOS[: MIN_TOKENS - 1], i) for i in (900, 901)]) == [None, None]
    assert store.assign([(*OTHER[:MIN_TOKENS], i) for i in (900, 901)])[0] is not None


def test_a_lone_prompt_has_none_until_another_begins_like_it():
    store = Prefixes(1000)
    assert store.assign([(*DEMOS, 900)]) == [None]
    (found,) = store.assign([(*DEMOS, 901)])
    assert text_of(found) == DEMOS
    assert store.assign([(*DEMOS, 902)]) == [found]


def test_the_last_token_is_always_left_to_feed():
    store = Prefixes(1000)
    prompt = (*DEMOS, 900)
    store.assign([prompt])
    (found,) = store.assign([prompt])
    assert text_of(found) == prompt[:-1]
    assert store.assign([prompt]) == [found]
    assert store.assign([(*prompt, 901)]) == [found]


def test_one_prompt_asked_twice_at_once_is_one_prompt():
    """The decode loop feeds equal prompts once: a segment for them would cost a pass more."""
    assert Prefixes(1000).assign([DEMOS, DEMOS]) == [None, None]


def test_segments_continue_each_other():
    store = Prefixes(1000)
    (first, _) = store.assign([(*DEMOS, 900), (*DEMOS, 901)])
    found = store.assign([(*DEMOS, *OTHER, i) for i in range(902, 905)])
    assert found[0] is not None
    assert found[0].parent is first
    assert text_of(found[0]) == DEMOS + OTHER
    assert first is not None
    assert (first.users, found[0].users) == (5, 3)


def test_what_a_longer_segment_holds_is_not_computed_again():
    """Two questions begin alike by chance: the prefix is too long for the next one, which shares the demonstrations alone."""
    store = Prefixes(1000)
    (long, _) = store.assign([(*DEMOS, *OTHER, 900), (*DEMOS, *OTHER, 901)])
    assert long is not None
    (unfilled,) = store.assign([(*DEMOS, 902)])
    assert unfilled is not None
    assert not unfilled.ready, "nothing was there yet"
    store.clear()
    store._stored[DEMOS + OTHER] = long
    long.write(0, torch.arange(180.0).expand(2, 180).unsqueeze(-1), torch.zeros(2, 180, 1))
    long.filled = 180
    (short,) = store.assign([(*DEMOS, 903)])
    assert text_of(short) == DEMOS
    assert short is not None
    assert short.ready
    assert short.keys[0][1, :, 0].tolist() == list(range(100))
    assert short.keys[0].untyped_storage().nbytes() < long.keys[0].untyped_storage().nbytes()
    base = Segment(DEMOS[:40])
    store.clear()
    store._stored.update({DEMOS + OTHER: long, DEMOS[:40]: base})
    (upon,) = store.assign([(*DEMOS, 904)])
    assert upon is not None
    assert upon.parent is base
    assert upon.keys[0][1, :, 0].tolist() == list(range(40, 100))


def test_what_saves_most_comes_first():
    """Four prompts share 40 tokens, two of them 80: once 3 × 40, then the two are served already."""
    prompts = [(*DEMOS[:40], 900), (*DEMOS[:40], 901), (*DEMOS[:80], 902), (*DEMOS[:80], 903)]
    found = Prefixes(1000).assign(prompts)
    assert {text_of(segment) for segment in found} == {DEMOS[:40]}
    found = Prefixes(1000).assign([(*DEMOS[:40], 900), *((*DEMOS, i) for i in range(901, 906))])
    assert [len(text_of(segment)) for segment in found] == [0, *[100] * 5]


PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple), min_size=1, max_size=8)


@given(st.lists(PROMPTS, min_size=1, max_size=5), st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_segments_are_prefixes_and_fit(batches, capacity):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "MIN_TOKENS", 3)
        store = Prefixes(capacity)
        for batch in batches:
            for ids, segment in zip(batch, store.assign(batch), strict=True):
                text = text_of(segment)
                assert len(text) < len(ids)
                assert ids[: len(text)] == text
                for each in segment.chain if segment else ():
                    assert each.users
                    assert len(each.ids) >= 1
            assert sum(len(s.ids) for s in held(store)) <= capacity
            for text, segment in store._stored.items():
                assert text_of(segment) == text


def test_the_least_recently_used_goes_first():
    store = Prefixes(190)
    (demos, _) = store.assign([(*DEMOS, 900), (*DEMOS, 901)])
    (other, _) = store.assign([(*OTHER, 900), (*OTHER, 901)])
    assert store.assign([(*DEMOS, 902)]) == [demos]
    store.assign([(*range(700, 740), 900), (*range(700, 740), 901)])
    assert set(store._stored) == {DEMOS, tuple(range(700, 740))}
    assert store.assign([(*DEMOS, 903)]) == [demos]
    assert other not in held(store)


def test_segments_never_hold_more_than_the_capacity_through_their_ancestors():
    """Many short segments, each upon a long one of its own: the long ones count."""
    store = Prefixes(300)
    for base in range(0, 20_000, 1000):
        long = tuple(range(base, base + 200))
        store.assign([(*long, -1), (*long, -2)])
        tail = tuple(range(base + 500, base + 540))
        store.assign([(*long, *tail, -1), (*long, *tail, -2)])
        assert sum(len(s.ids) for s in held(store)) <= 300


def test_nothing_is_kept_after_clear():
    store = Prefixes(1000)
    store.assign([(*DEMOS, 900), (*DEMOS, 901)])
    store.clear()
    assert not held(store)


def cases(kind: str, count: int) -> list[Ids]:
    draw = random.Random(0)
    base = tuple(draw.randrange(1000) for _ in range(480))
    if kind == "random":
        return [tuple(draw.randrange(1000) for _ in range(600)) for _ in range(count)]
    if kind == "nested":
        return [(*base[: draw.randrange(40, 480)], -i % 50 - 1, *(draw.randrange(2) for _ in range(100)), i) for i in range(count)]
    return [(*base, *(draw.randrange(1000) for _ in range(draw.randrange(20, 300)))) for _ in range(count)]


@pytest.mark.parametrize("kind", ["demonstrations", "random", "nested"])
def test_finding_takes_no_time_to_speak_of(kind: str):
    """Five hundred prompts at once, and the same once more: a step must not wait for it. A search over all pairs took minutes."""
    store, prompts = Prefixes(100_000), cases(kind, 500)
    started = time.process_time()
    store.assign(prompts)
    store.assign(prompts)
    assert time.process_time() - started < 3
