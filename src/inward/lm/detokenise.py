"""Token ids back to text, one at a time: linear in the text, never half a character.

Tokenizers that write bytes (byte-level BPE, SentencePiece with byte fallback) are read as bytes, token by token.
Any other is decoded in a small window, by the scheme of prefix and read offsets known from text-generation servers.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from inward.lm.encode import Encoder

TokenBytes: TypeAlias = Callable[[int], bytes]
"""The bytes that a token stands for; none for special tokens."""

_CONTEXT = 6
"""Prompt tokens that the first window sees: enough for a character of four bytes and a word before it."""
_PENDING = 8
"""Tokens held back at most. A character has four bytes; what is longer is not text."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"


class IncrementalDecoder:
    """Decodes one completion as its tokens arrive.

    `text` is the text so far and `spans` one `(start, end)` per token, in characters of `text`; joined they
    rebuild it. Tokens in the middle of a character have no width, the one that completes it has all of it; special
    tokens have none. Bytes that never become a character at the end are left off; bytes that cannot be part of one
    become U+FFFD.
    """

    def __init__(self, encoder: Encoder, context_ids: Sequence[int]) -> None:
        """Begin after `context_ids`, the prompt: its last tokens decide whether a leading space is text."""
        self.text = ""
        self.spans: list[tuple[int, int]] = []
        context = context_ids[-_CONTEXT:]
        read = encoder.token_bytes
        self._reader: _ByteReader | _WindowReader
        if read is not None:
            self._reader = _ByteReader(read, context, encoder.strips_first)
        else:
            self._reader = _WindowReader(encoder.decode, context, encoder.special_ids)

    def push(self, token_id: int) -> str:
        """Take the next token; return the characters that it completes, often one word, sometimes none."""
        new = self._reader.push(token_id)
        start = len(self.text)
        self.text += new
        self.spans.append((start, start + len(new)))
        return new


class _ByteReader:
    """Joins the bytes of tokens; the standard library's decoder holds back what is not yet a character."""

    def __init__(self, read: TokenBytes, context: Sequence[int], strips_first: bool) -> None:
        self._read = read
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = strips_first
        for token_id in context:
            if raw := read(token_id):
                self._utf8.decode(raw)  # a prompt may end inside a character
                self._at_start = False

    def push(self, token_id: int) -> str:
        raw = self._read(token_id)
        if self._at_start and raw:
            self._at_start = False
            raw = raw.removeprefix(b" ")
        return self._utf8.decode(raw)


class _WindowReader:
    """Decodes a window twice, without and with the new tokens, and takes the difference."""

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int], special_ids: frozenset[int]) -> None:
        self._decode, self._special = decode, special_ids
        self._window = [token_id for token_id in context if token_id not in special_ids]
        self._known = len(self._window)
        """Tokens of the window whose characters were handed out, or stand in the prompt."""
        while self._known > 0 and len(self._window) - self._known < 3 and decode(self._window[: self._known]).endswith(_REPLACEMENT):
            self._known -= 1  # a prompt may end inside a character

    def push(self, token_id: int) -> str:
        if token_id in self._special:
            return ""
        self._window.append(token_id)
        before, after = self._decode(self._window[: self._known]), self._decode(self._window)
        known = len(self._window)
        if after.endswith(_REPLACEMENT):
            if known - self._known <= _PENDING:
                return ""
            known -= 3  # half a character has at most three bytes: what stands before it is U+FFFD in the text, or no text at all
            after = self._decode(self._window[:known])
        if len(after) <= len(before):
            return ""
        # the next window begins with what was just handed out: a decoder that strips or joins looks back that far
        self._window, self._known = self._window[self._known :], known - self._known
        return after[len(before) :]


def token_bytes(tokenizer: Any, special_ids: frozenset[int]) -> TokenBytes | None:
    """Return how to read a fast tokenizer's tokens as bytes, or None where its decoder is of another kind.

    The reading is tried on a few texts against the tokenizer's own decoder before it is trusted.
    """
    spell = _speller(tokenizer)
    if spell is None:
        return None
    backend = tokenizer.backend_tokenizer
    table: dict[int, bytes] = dict.fromkeys(special_ids, b"")

    def read(token_id: int) -> bytes:
        raw = table.get(token_id)
        if raw is None:
            raw = table[token_id] = spell(backend.id_to_token(token_id) or "")
        return raw

    return read if all(_agrees(backend, read, text) for text in _SAMPLES) else None


def strips_first(tokenizer: Any) -> bool:
    """Whether the decoder takes one space off the start of a text."""
    rules = _decoder_rules(tokenizer)
    return any(rule.get("type") == "Strip" or (rule.get("type") == "Metaspace" and rule.get("prepend_scheme") != "never") for rule in rules)


_SAMPLES = ("Hello world", " a  b\n\nc", "1,234.5 %", "é 東京 🦙 x", "<x> [y] \u2581")


def _agrees(backend: Any, read: TokenBytes, text: str) -> bool:
    ids = backend.encode(text, add_special_tokens=False).ids
    joined = b"".join(map(read, ids)).decode("utf-8", "replace")
    decoded = backend.decode(ids, skip_special_tokens=True)
    return decoded in (joined, joined.removeprefix(" "))


def _speller(tokenizer: Any) -> Callable[[str], bytes] | None:
    """Return how the decoder spells one token: a token's text -> its bytes."""
    rules = _decoder_rules(tokenizer)
    kinds = [rule.get("type") for rule in rules]
    if kinds == ["ByteLevel"]:
        return _byte_level
    if not kinds or not set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return None
    swaps: list[tuple[str, str]] = []
    for rule in rules:
        if rule["type"] == "Replace":
            if "String" not in rule.get("pattern", {}):
                return None
            swaps.append((rule["pattern"]["String"], rule["content"]))
        elif rule["type"] == "Metaspace":
            swaps.append((rule["replacement"], " "))
        elif rule["type"] == "Strip" and (rule["content"], rule["stop"]) != (" ", 0):
            return None
    with_bytes = "ByteFallback" in kinds

    def spell(token: str) -> bytes:
        if with_bytes and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte.group(1), 16)])
        for old, new in swaps:
            token = token.replace(old, new)
        return token.encode("utf-8", "replace")

    return spell


def _decoder_rules(tokenizer: Any) -> list[dict[str, Any]]:
    """Return the steps of a fast tokenizer's decoder as its file spells them; none for a slow tokenizer."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    rules: list[dict[str, Any]] = state.get("decoders", [state])
    return rules


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_LETTER_BYTES[letter] for letter in token)
    except KeyError:  # an added token, which is written as it is
        return token.encode("utf-8", "replace")


def _letter_bytes() -> dict[str, int]:
    """Return the letter by which byte-level tokenizers write each byte (GPT-2's table), reversed."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return {chr(byte) if byte in printable else chr(next(others)): byte for byte in range(256)}


_LETTER_BYTES = _letter_bytes()
