"""Prompts to token ids, so that text from users and passages is data and never markup.

Raw text gets what the tokenizer puts in front (one BOS, if it has one) and is continued as it stands. Messages go
into the model's own chat template, or into a plain format where it has none:

    system text, blank line / user text, line break / assistant text, blank line / … / open assistant text

A control token that a content spells (`<|im_end|>`, `<bos>`) is encoded as plain characters; for any other content
the ids equal those of `apply_chat_template(..., tokenize=True)`, with one BOS in front where the tokenizer adds one
and the template does not write it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from inward.errors import BadInput
from inward.lm.chat import ChatTemplate, own_template, template_source
from inward.lm.controls import ControlTokens
from inward.lm.detokenise import IncrementalDecoder, TokenBytes, strips_first, token_bytes
from inward.types import Message, Prompt, as_prompt

__all__ = ["Encoder", "IncrementalDecoder"]

log = logging.getLogger(__name__)

_ANCHORS = ("\n", "\ue000", "\ue001\ue002")
"""Text to put in front of a run so that a tokenizer does not take it for the start; tried in turn."""
_PROMPTS, _RUNS = 1024, 4096
"""Prompts and runs of text whose ids are remembered."""


class _Model(msgspec.Struct, frozen=True):
    vocab: msgspec.Raw = msgspec.Raw(b"null")
    merges: msgspec.Raw = msgspec.Raw(b"null")


class _TokenizerFile(msgspec.Struct, frozen=True):
    """What of a `tokenizer.json` decides which ids a text gets, undecoded: a vocabulary may hold 262,144 entries."""

    model: _Model
    normalizer: msgspec.Raw = msgspec.Raw(b"null")
    pre_tokenizer: msgspec.Raw = msgspec.Raw(b"null")


class Encoder:
    """One tokenizer with one way of writing conversations. Safe to use from several threads."""

    def __init__(self, tokenizer: Any, *, generation_config: Any = None, chat_template: str | None = "auto") -> None:
        """Take over a tokenizer of transformers, fast or slow.

        Args:
            tokenizer: left as it is, but for truncation and padding, which are switched off.
            generation_config: where the end tokens come from, besides the tokenizer and the template.
            chat_template: `"auto"` (the tokenizer's own), `"none"`, or the path of a Jinja file.

        Raises:
            UsageError: the chat template cannot be read.
        """
        self.tokenizer = tokenizer
        self.chat_template = "none" if chat_template is None else str(chat_template)
        """The choice, as it goes into records."""
        self.leaves_template_out = self.chat_template == "none" and own_template(tokenizer) is not None
        """Whether the tokenizer has a chat template that is not used: instruct models often answer worse so."""
        source, own = template_source(tokenizer, chat_template), own_template(tokenizer)
        if own and source is None:
            log.warning(
                "the tokenizer %r has a chat template, and chat_template='none' leaves it out: instruct models often answer worse so",
                getattr(tokenizer, "name_or_path", type(tokenizer).__name__),
            )
        self._backend = tokenizer.backend_tokenizer if getattr(tokenizer, "is_fast", False) else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        self._source = source
        self._controls = ControlTokens(tokenizer, source or own)
        self.special_ids = self._controls.special_ids
        self._chat = ChatTemplate(tokenizer, source, self._controls) if source else None
        self._front = self._ids_in_front()
        self._run = lru_cache(maxsize=_RUNS)(self._encode_run)
        self._whole = lru_cache(maxsize=_PROMPTS)(self._encode_prompt)
        self._dummy_prefix = self._after("\n", "a b") != self._plain("a b")
        self._prefix_everywhere = self._dummy_prefix and self._prefixes_later_runs()
        reader = ChatTemplate(tokenizer, own, ControlTokens(tokenizer, own)) if own else None
        self.eos_ids = _end_ids(tokenizer, generation_config, [chat for chat in (self._chat, reader) if chat])
        """Every token that ends a completion; the first is the primary one."""
        self.token_bytes: TokenBytes | None = token_bytes(tokenizer, self.special_ids) if self._backend is not None else None
        """How to read a token as bytes; None where the decoder is of an unknown kind."""
        self.strips_first = strips_first(tokenizer)

    @property
    def is_chat(self) -> bool:
        """Whether messages go into a chat template."""
        return self._chat is not None

    @cached_property
    def fingerprint(self) -> str:
        """Hash over vocabulary, merges, added tokens, what goes in front, and the chat template."""
        added = [(i, str(t), t.special, t.lstrip, t.rstrip) for i, t in sorted(self.tokenizer.added_tokens_decoder.items())]
        if self._backend is not None:
            file = msgspec.json.decode(self._backend.to_str(), type=_TokenizerFile)
            parts = [file.model.vocab, file.model.merges, file.normalizer, file.pre_tokenizer]
        else:
            parts = [msgspec.Raw(msgspec.json.encode(self.tokenizer.get_vocab(), order="deterministic"))]
        digest = hashlib.sha256(b"\0".join(bytes(part) for part in parts))
        digest.update(msgspec.json.encode((added, self._front, self.eos_ids, self._source), order="deterministic"))
        return digest.hexdigest()

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the ids of a prompt.

        Raises:
            BadInput: the chat template refuses the conversation, or the text is no valid Unicode.
        """
        return self._whole(as_prompt(prompt))

    def encode_continuation(self, prompt: Prompt, prompt_ids: Sequence[int], text: str) -> tuple[int, ...]:
        """Return the ids of `text` as the continuation of a prompt.

        Prompt and text are encoded as one string where that begins with the prompt's own ids and the rest reads
        `text`; otherwise the text is encoded alone, without BOS and without the space that some tokenizers put
        in front.
        """
        given = tuple(prompt_ids)
        pieces = self._pieces(as_prompt(prompt))
        if pieces and isinstance(last := pieces[-1], str):
            pieces[-1] = last + text
        else:
            pieces.append(text)
        whole = self._join(pieces)
        rest = whole[len(given) :]
        if whole[: len(given)] == given:
            decoder = IncrementalDecoder(self, given)
            for token_id in rest:
                decoder.push(token_id)
            if decoder.text == text:
                return rest
        return self._run(text, False)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    # -- prompts -----------------------------------------------------------------------------------------

    def _encode_prompt(self, prompt: Prompt) -> tuple[int, ...]:
        return self._join(self._pieces(prompt))

    def _pieces(self, prompt: Prompt) -> list[str | int]:
        """Return text runs and control ids; what stands in the runs is data."""
        if isinstance(prompt, str):
            return [prompt]
        return self._chat.pieces(prompt) if self._chat is not None else [plain_text(prompt)]

    def _join(self, pieces: Sequence[str | int]) -> tuple[int, ...]:
        ids: list[int] = []
        for place, piece in enumerate(pieces):
            ids.extend((piece,) if isinstance(piece, int) else self._run(piece, place == 0 or self._prefix_everywhere))
        front = self._front
        return tuple(ids) if tuple(ids[: len(front)]) == front else (*front, *ids)

    # -- runs of text ------------------------------------------------------------------------------------

    def _encode_run(self, text: str, prefixed: bool) -> tuple[int, ...]:
        """Encode text that is data, with the tokenizer's dummy prefix (if it has one) only where `prefixed` says so."""
        ids: list[int] = []
        for part in self._controls.cut(text):
            encoded = self._encode_part(part, prefixed)
            if not self._controls.ids.isdisjoint(encoded):  # spelled by way of the normaliser
                encoded = [i for place, letter in enumerate(part) for i in self._encode_part(letter, prefixed and not place)]
            if forged := self._controls.ids.intersection(encoded):
                raise BadInput(f"the tokenizer turns plain text into control tokens {sorted(forged)}: {part!r}")
            ids.extend(encoded)
            prefixed = False
        return tuple(ids)

    def _encode_part(self, text: str, prefixed: bool) -> list[int]:
        if prefixed or not self._dummy_prefix:
            return self._plain(text)
        for anchor in _ANCHORS:
            if (rest := self._after(anchor, text)) is not None:
                return rest
        return self._plain(text)

    def _after(self, anchor: str, text: str) -> list[int] | None:
        """Encode text as it would be encoded after `anchor`; None where the two grow together."""
        anchor_ids = self._plain(anchor)
        ids = self._plain(anchor + text)
        return ids[len(anchor_ids) :] if ids[: len(anchor_ids)] == anchor_ids else None

    def _plain(self, text: str) -> list[int]:
        try:
            if self._backend is not None:
                return list(self._backend.encode(text, add_special_tokens=False).ids)
            return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]
        except (UnicodeEncodeError, TypeError) as error:  # the latter is what the Rust side makes of the former
            place = next((i for i, letter in enumerate(text) if "\ud800" <= letter <= "\udfff"), None)
            if place is None:
                raise
            raise BadInput(f"the prompt holds half a surrogate pair, {text[place]!r}, at character {place}: repair the text") from error

    def _ids_in_front(self) -> tuple[int, ...]:
        """Return what the tokenizer puts in front of a text: one BOS, mostly."""
        bare = self._plain("x")
        full = [int(i) for i in self.tokenizer.encode("x", add_special_tokens=True)]
        return next((tuple(full[:at]) for at in range(len(full)) if full[at : at + len(bare)] == bare), ())

    def _prefixes_later_runs(self) -> bool:
        """Whether a run after a control token gets a dummy prefix too, as older SentencePiece conversions do."""
        tokens = self.tokenizer.added_tokens_decoder.values()
        token = next((t.content for t in tokens if t.special and not (t.lstrip or t.rstrip or t.single_word)), None)
        return token is not None and self._plain(f"{token}a b")[1:] == self._plain("a b")


def plain_text(messages: Sequence[Message]) -> str:
    """Write a conversation for a model without chat template; a last message of the assistant stays open."""
    ends = {"system": "\n\n", "user": "\n", "assistant": "\n\n"}
    text = "".join(message.content + ends[message.role] for message in messages)
    return text.removesuffix(ends["assistant"]) if messages[-1].role == "assistant" else text


def _end_ids(tokenizer: Any, generation_config: Any, templates: Sequence[ChatTemplate]) -> tuple[int, ...]:
    """Return the end tokens of the generation configuration, of the tokenizer, and those that end an assistant's turn."""
    configured = getattr(generation_config, "eos_token_id", None)
    if configured is None:
        configured = []
    elif not isinstance(configured, list | tuple):
        configured = configured.tolist() if hasattr(configured, "tolist") else [configured]
    found = [*configured, tokenizer.eos_token_id, *(template.end_of_turn() for template in templates)]
    return tuple(dict.fromkeys(int(i) for i in found if i is not None))
