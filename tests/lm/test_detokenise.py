"""Token ids back to text as they arrive."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import toy_tokenizers as toys
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inward.lm import detokenise
from inward.lm.encode import Encoder, IncrementalDecoder
from inward.testing_models import tiny_tokenizer

TOKENIZERS = {
    "byte-level": toys.byte_level(),
    "bytes": tiny_tokenizer(),
    "first": toys.sentencepiece(scheme="first"),
    "always": toys.sentencepiece(scheme="always"),
    "prepend": toys.sentencepiece(scheme="prepend"),
    "never": toys.sentencepiece(scheme="never"),
    "slow": toys.SlowBytes(),
}
ENCODERS = {kind: Encoder(tokenizer) for kind, tokenizer in TOKENIZERS.items()}
PROMPT = "Question: who?\nAnswer:"
_LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")
"""Not the mark that SentencePiece writes for a space: its tokenizers cannot tell the two apart."""
TEXTS = st.text(_LETTERS, max_size=30) | st.text("ab \n\té東🐫👩\u200d\ufffd", max_size=12)


def pushed(encoder: Encoder, ids: Sequence[int], context: Sequence[int]) -> IncrementalDecoder:
    decoder = IncrementalDecoder(encoder, context)
    for token in ids:
        before = decoder.text
        assert before + decoder.push(token) == decoder.text
    return decoder


def generated(encoder: Encoder, text: str) -> tuple[int, ...]:
    """Ids of a text as a model would generate it after the prompt."""
    return encoder.encode_continuation(PROMPT, encoder.encode(PROMPT), text)


@pytest.mark.parametrize("kind", ENCODERS)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_spans_rebuild_the_text_exactly(kind: str, text: str):
    # an added token inside a text: these two tokenizers put a space of their own after it, here as in transformers
    assume(kind not in ("always", "prepend") or not any(token in text for token in toys.PLAIN_ADDED))
    encoder = ENCODERS[kind]
    decoder = pushed(encoder, generated(encoder, text), encoder.encode(PROMPT))
    if kind != "slow" or not text.endswith("\ufffd"):  # a decoder of unknown kind cannot tell U+FFFD from half a character
        assert decoder.text == text
    ends = [0, *(end for _, end in decoder.spans)]
    assert [start for start, _ in decoder.spans] == ends[:-1]
    assert "".join(decoder.text[start:end] for start, end in decoder.spans) == decoder.text


@pytest.mark.parametrize("kind", ENCODERS)
def test_half_a_character_is_held_back_and_the_token_that_completes_it_has_it_all(kind: str):
    encoder = ENCODERS[kind]
    ids = generated(encoder, "a🐫b")
    decoder = IncrementalDecoder(encoder, encoder.encode(PROMPT))
    pieces = [decoder.push(token) for token in ids]
    assert "".join(pieces) == "a🐫b"
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces.count("") >= 1  # no toy vocabulary has this character in one token
    widths = [end - start for start, end in decoder.spans]
    assert widths == [len(piece) for piece in pieces]


@pytest.mark.parametrize("kind", ENCODERS)
def test_bytes_that_never_become_a_character_are_left_off_at_the_end(kind: str):
    encoder = ENCODERS[kind]
    ids = generated(encoder, "a🐫")
    assert pushed(encoder, ids[:-1], encoder.encode(PROMPT)).text == "a"


@pytest.mark.parametrize("kind", ENCODERS)
def test_special_tokens_have_no_width(kind: str):
    encoder = ENCODERS[kind]
    special = encoder.tokenizer.eos_token_id
    first, second = generated(encoder, " one"), generated(encoder, " two")
    decoder = pushed(encoder, [*first, special, *second], encoder.encode(PROMPT))
    assert decoder.text == " one two"
    assert decoder.spans[len(first)] == (4, 4)


@pytest.mark.parametrize("kind", ["first", "always", "prepend"])
def test_the_leading_space_of_the_first_token_survives_after_a_prompt_and_not_without_one(kind: str):
    encoder = ENCODERS[kind]
    ids = generated(encoder, " Paris")
    assert encoder.decode(ids) == "Paris"  # what decoding the completion alone would lose
    assert pushed(encoder, ids, encoder.encode(PROMPT)).text == " Paris"
    assert pushed(encoder, ids, [encoder.tokenizer.bos_token_id]).text == "Paris"


@pytest.mark.parametrize("kind", ["byte-level", "bytes", "never", "slow"])
def test_a_prompt_may_end_inside_a_character(kind: str):
    encoder = ENCODERS[kind]
    ids = generated(encoder, "🐫 x")
    context = [*encoder.encode(PROMPT), ids[0]]
    assert pushed(encoder, ids[1:], context).text == "🐫 x"


def test_bytes_that_cannot_be_part_of_a_character_do_not_hold_the_text_back():
    encoder = ENCODERS["bytes"]
    decoder = IncrementalDecoder(encoder, encoder.encode(PROMPT))
    assert [decoder.push(byte) for byte in (0x41, 0x80, 0x80, 0xE6, 0x42)] == ["A", "\ufffd", "\ufffd", "", "\ufffdB"]


def test_tokens_that_share_a_character_split_it_where_it_completes():
    # one token ends a character and begins the next: it has the first of them
    tokenizer = toys.byte_level()
    backend = tokenizer.backend_tokenizer
    encoder = Encoder(tokenizer)
    raw = "你中".encode()
    assert encoder.token_bytes is not None
    by_bytes = {encoder.token_bytes(i): i for i in range(backend.get_vocab_size()) if len(encoder.token_bytes(i)) == 1}
    decoder = pushed(encoder, [by_bytes[bytes([byte])] for byte in raw], encoder.encode(PROMPT))
    assert decoder.spans == [(0, 0), (0, 0), (0, 1), (1, 1), (1, 1), (1, 2)]


@pytest.mark.parametrize("kind", ["byte-level", "first", "never"])
def test_the_window_reader_agrees_with_the_byte_reader(kind: str, monkeypatch: pytest.MonkeyPatch):
    encoder = ENCODERS[kind]
    texts = [" Paris is  a city.\n\nx", "é 東京 🐫 👩\u200d👧 b", " a\tb"]
    context = encoder.encode(PROMPT)
    expected = [pushed(encoder, generated(encoder, text), context).spans for text in texts]
    ids = [generated(encoder, text) for text in texts]
    monkeypatch.setattr(encoder, "token_bytes", None)
    for text, token_ids, spans in zip(texts, ids, expected, strict=True):
        decoder = pushed(encoder, token_ids, context)
        assert decoder.text == text
        if kind != "byte-level":  # where tokens share a character, the window hands both out at the end
            assert decoder.spans == spans


def test_a_decoder_of_an_unknown_kind_is_not_read_as_bytes():
    from tokenizers import decoders

    tokenizer = toys.byte_level()
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece()
    assert Encoder(tokenizer).token_bytes is None
    assert ENCODERS["slow"].token_bytes is None
    assert all(ENCODERS[kind].token_bytes is not None for kind in ENCODERS if kind != "slow")


def test_a_reading_that_disagrees_with_the_tokenizer_is_not_trusted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(detokenise, "_byte_level", lambda token: token.encode())
    assert Encoder(toys.byte_level()).token_bytes is None


@pytest.mark.parametrize("kind", ["byte-level", "first", "bytes"])
def test_a_token_costs_less_than_30_microseconds_however_long_the_text(kind: str):
    encoder = ENCODERS[kind]
    ids = generated(encoder, " The tower was 300.5 metres high; 東京 isn't far." * 60)
    best = []
    for _ in range(5):
        decoder = IncrementalDecoder(encoder, encoder.encode(PROMPT))
        start = time.perf_counter()
        for token in ids:
            decoder.push(token)
        best.append((time.perf_counter() - start) / len(ids))
    assert min(best) < 30e-6


@pytest.mark.parametrize("kind", ["bytes", "slow"])
def test_garbage_is_decoded_in_linear_time(kind: str):
    encoder = ENCODERS[kind]
    seconds = []
    for count in (500, 4000):
        start = time.perf_counter()
        pushed(encoder, [0x80] * count, encoder.encode(PROMPT))
        seconds.append(time.perf_counter() - start)
    assert seconds[1] < 32 * seconds[0] + 0.05  # eight times the tokens; quadratic would be 64 times
