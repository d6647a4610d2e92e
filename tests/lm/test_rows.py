"""A completion in the making: where stops cut, what can no longer be cut, and what each kept token carries."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inward.lm.capture import States
from inward.lm.detokenise import IncrementalDecoder
from inward.lm.encode import Encoder
from inward.lm.rows import Row, Text
from inward.testing_models import EOS, tiny_tokenizer
from inward.types import Capture, Sampling

ENCODER = Encoder(tiny_tokenizer())
PROMPT = ENCODER.encode("prompt")
SPECIAL = 259
"""A token without text."""


def text_of(*stops: str) -> Text:
    return Text(IncrementalDecoder(ENCODER, PROMPT), stops)


def write(text: Text, ids) -> Text:
    for token in ids:
        if text.push(token):
            break
    return text


LETTERS = st.sampled_from([*"abé🦙 ".encode(), *b"abab", SPECIAL])
TOKENS = st.lists(LETTERS, max_size=40)
STOPS = st.lists(st.sampled_from(["a", "b", "ab", "aab", "abab", "é", "b🦙", " a", "ba b", "\ufffd"]), max_size=3, unique=True)


@given(TOKENS, STOPS)
@settings(max_examples=300, deadline=None)
def test_kept_text_and_spans_agree(ids, stops):
    text = write(text_of(*stops), ids)
    whole, (result, spans) = text.decoder.text, text.result()
    assert result == (whole if text.cut is None else whole[: text.cut])
    assert len(spans) == text.kept
    assert "".join(result[a:b] for a, b in spans) == result
    assert all(a <= b for a, b in spans)
    if text.cut is None:
        assert not any(stop in whole for stop in stops)
        assert text.kept == len(text.ids)
    else:
        assert not any(stop in result for stop in stops)
        assert any(whole.startswith(stop, text.cut) for stop in stops)
        before = "".join(whole[a:b] for a, b in text.decoder.spans[: text.kept])
        assert len(before) >= text.cut, "a token whose text survives is kept"
        assert not any(b > a and a >= text.cut for a, b in text.decoder.spans[: text.kept]), "one whose text is cut off is not"


@given(TOKENS, STOPS)
@settings(max_examples=300, deadline=None)
def test_what_is_safe_is_never_cut(ids, stops):
    """States are pooled as soon as they are safe: they could not be taken back."""
    text, safe = text_of(*stops), [0]
    for token in ids:
        stopped = text.push(token)
        if stopped:
            break
        safe.append(text.safe)
    assert safe == sorted(safe), "what was safe stays so"
    assert max(safe) <= text.kept


@given(TOKENS)
@settings(max_examples=100, deadline=None)
def test_without_stops_all_but_half_characters_is_safe_at_once(ids):
    text = text_of()
    for token in ids:
        text.push(token)
        held = 0
        while held < len(text.ids) and text.decoder.spans[-1 - held][0] == text.decoder.spans[-1 - held][1]:
            held += 1
        assert text.safe == len(text.ids) - held


def test_the_earliest_of_two_stops_wins_then_the_first_of_the_list():
    assert write(text_of("cd", "bcd"), b"abcde").cut == 1
    assert write(text_of("b", "bc"), b"abcde").cut == 1
    assert write(text_of("bc", "b"), b"abcde").cut == 1


def test_a_stop_in_the_prompt_does_not_count():
    text = Text(IncrementalDecoder(ENCODER, ENCODER.encode("STOP")), ("STOP", "PX"))
    assert write(text, b"X then STOP").decoder.text == "X then STOP"
    assert text.cut == 7


@given(TOKENS, STOPS, st.sampled_from(["mean", "last", "none"]))
@settings(max_examples=200, deadline=None)
def test_states_pooled_as_they_come_are_those_of_kept_tokens(ids, stops, pool):
    """Against the plain definition, with the state of token i being the number i."""
    text, states = text_of(*stops), States(Capture(layers=(0, 1), pool=pool))
    for i, token in enumerate(ids):
        stopped = text.push(token)
        states.add(i, torch.full((1, 2, 3), float(i)))
        if stopped:
            break
        states.settle(text.safe)
    kept = np.arange(text.kept, dtype=np.float32)
    got = states.result(text.kept, (2, 3))
    assert got is not None
    if pool == "none":
        assert got.shape == (2, text.kept, 3)
        assert (got == kept[None, :, None]).all()
    elif not text.kept:
        assert np.isnan(got).all()
    else:
        np.testing.assert_allclose(got, kept.mean() if pool == "mean" else kept[-1], rtol=1e-6)


def test_pooled_states_do_not_keep_a_steps_states_alive():
    """A view of a whole step's states would hold them until the completion ends."""
    states = States(Capture(layers=(0,), pool="none"))
    step = torch.zeros(1000, 1, 8)
    states.add(0, step[5:6])
    states.settle(1)
    assert states.every[0].untyped_storage().nbytes() == 8 * 4


def row_of(**sampling) -> Row:
    return Row.start(ENCODER, PROMPT, Sampling(**sampling), 0, 0)


def accept(row: Row, ids, start: int = 0) -> None:
    for i, token in enumerate(ids, start):
        row.accept(token, frozenset({EOS}), {name: float(i) for name in row.scores}, [float(i)] if row.sampling.watch else None)
        if row.finish:
            return


def test_scores_are_cut_with_their_tokens():
    row = row_of(max_tokens=9, stop=("cd",), token_scores=("logprobs", "energies"), watch=(1,))
    accept(row, b"abcdef")
    completion = row.completion(None)
    assert (completion.text, completion.finish, completion.tail_ids) == ("ab", "stop", tuple(b"cd"))
    assert completion.score("logprobs").tolist() == completion.score("energies").tolist() == [0.0, 1.0]
    assert completion.watched_logprobs is not None
    assert completion.watched_logprobs.tolist() == [[0.0], [1.0]]
    assert completion.entropies is None
    assert row.sampled == 4


def test_an_end_token_is_counted_and_carries_nothing():
    row = row_of(max_tokens=9, token_scores=("logprobs",), watch=(1,))
    accept(row, (97, EOS))
    completion = row.completion(None)
    assert (completion.token_ids, completion.tail_ids, completion.finish, row.sampled, row.end_id) == ((97,), (), "eos", 2, EOS)
    assert completion.score("logprobs").shape == (1,)


@pytest.mark.parametrize(("ids", "finish"), [(b"abcd", "stop"), (b"abcx", "length"), ((97, 98, 99, EOS), "eos")])
def test_what_ends_at_the_limit_says_what_ended_it(ids, finish):
    row = row_of(max_tokens=4, stop=("d",))
    accept(row, ids)
    assert row.finish == finish


def test_nothing_watched_has_as_many_columns_as_were_asked_for():
    row = row_of(max_tokens=4, watch=(1, 2, 3))
    accept(row, (EOS,))
    watched = row.completion(None).watched_logprobs
    assert watched is not None
    assert watched.shape == (0, 3)


def test_text_grows_linearly():
    """Twenty thousand tokens with stops that nearly match take no noticeable time."""
    import time

    text = text_of("\n\nQuestion:", "x" * 50)
    started = time.perf_counter()
    for token in b"\n\nQuestion " * 1800:
        text.push(token)
        assert text.safe <= len(text.ids)
    assert time.perf_counter() - started < 5


def test_words_that_wait_are_few():
    waiting: deque[int] = deque()
    text = text_of("never")
    for token in b"abcneneve" * 20:
        text.push(token)
        waiting.append(len(text.ids) - text.safe)
    assert max(waiting) == 4
