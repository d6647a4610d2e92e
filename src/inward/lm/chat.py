"""A chat template read as a layout: where its own text, its control tokens and the contents of messages stand.

A template is a program, so it is not asked where the contents go: it is rendered once with marks in their place.
What is found between the marks is the template's own text, and only there do control tokens count. Real contents
are put between these pieces later, as data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from inward.errors import BadInput, UsageError
from inward.lm.controls import ControlTokens
from inward.types import Message, Role

_PAD = "\n\n\n\n\u2003\n\n\n\n"
"""White space around a mark: what is left of it shows what the template strips. No template writes so much itself."""
_STRIPPED: dict[int, str | None] = {9: "", 5: "\n", 0: None}
"""Characters of the padding that are left beside a mark -> what the template strips on that side (None: all white space)."""
_MARK = re.compile(r"Zq0Slot(\d{4})qZ")


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a message's content."""

    index: int
    left: str | None
    """Characters that the template strips from the start: "" for none, None for all white space."""
    right: str | None

    def fill(self, content: str) -> str:
        """Return the content as the template would write it."""
        return content.lstrip(self.left).rstrip(self.right)


Piece: TypeAlias = str | int | Slot
"""Text of the template, the id of a control token that it writes, or the place of a content."""


def template_source(tokenizer: Any, choice: str | None) -> str | None:
    """Return the source of the chat template to use.

    Args:
        tokenizer: its own template, if any, is used for `"auto"`.
        choice: `"auto"`, `"none"` (or None), or the path of a Jinja file.

    Raises:
        UsageError: the file cannot be read, or is no Jinja template.
    """
    from jinja2 import TemplateSyntaxError

    if choice is None or choice == "none":
        return None
    if choice == "auto":
        return own_template(tokenizer)
    try:
        source = Path(choice).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"chat_template {choice!r} must be 'auto', 'none' or the path of a Jinja file: {error}") from error
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], chat_template=source, tokenize=False)
    except TemplateSyntaxError as error:
        raise UsageError(f"chat_template {choice!r} is no Jinja template: line {error.lineno}: {error.message}") from error
    except _template_errors():
        pass  # it may refuse this conversation and accept others
    return source


def own_template(tokenizer: Any) -> str | None:
    """Return the template that a tokenizer carries: its default one if it carries several."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return str(template) if template else None


class ChatTemplate:
    """A chat template, read once for every sequence of roles."""

    def __init__(self, tokenizer: Any, source: str, controls: ControlTokens) -> None:
        """Use the template `source` with the special tokens of `tokenizer`."""
        self._tokenizer, self._source, self._controls = tokenizer, source, controls
        self._layout = lru_cache(maxsize=256)(self._read)
        self._system: bool | None = None

    def pieces(self, messages: Sequence[Message]) -> list[str | int]:
        """Return text runs and control ids of a conversation; a last message of the assistant stays open.

        Raises:
            BadInput: the template refuses the conversation.
        """
        messages = self._fold_system(messages)
        is_open = messages[-1].role == "assistant"
        filled: list[str | int] = []
        for piece in self._layout(tuple(message.role for message in messages), is_open):
            if isinstance(piece, Slot):
                piece = piece.fill(messages[piece.index].content)
            if isinstance(piece, str) and filled and isinstance(last := filled[-1], str):
                filled[-1] = last + piece
            else:
                filled.append(piece)
        return self._controls.strip(filled)

    def end_of_turn(self) -> int | None:
        """Return the control token that ends a turn of the assistant, if one does."""
        try:
            layout = self._layout(("user", "assistant"), False)
        except BadInput:
            return None
        last = max(place for place, piece in enumerate(layout) if isinstance(piece, Slot))
        return next((piece for piece in layout[last:] if isinstance(piece, int)), None)

    def _fold_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Put the system text in front of the first user message where the template knows no system role."""
        if messages[0].role != "system" or self._knows_system():
            return messages
        first, *rest = messages
        if rest and rest[0].role == "user":
            return (Message("user", f"{first.content}\n\n{rest[0].content}"), *rest[1:])
        return (Message("user", first.content), *rest)

    def _knows_system(self) -> bool:
        if self._system is None:
            try:
                self._layout(("system", "user"), False)
                self._system = True
            except BadInput:
                self._system = False
        return self._system

    def _read(self, roles: tuple[Role, ...], is_open: bool) -> tuple[Piece, ...]:
        text = self._render(roles, generate=roles[-1] != "assistant")
        pieces: list[Piece] = []
        seen: set[int] = set()
        end = 0
        for mark in _MARK.finditer(text):
            before, after = text[end : mark.start()], text[mark.end() : mark.end() + len(_PAD)]
            left, right = _kept(before, at_end=True), _kept(after, at_end=False)
            pieces.extend(self._controls.find(before[: len(before) - left]))
            pieces.append(Slot(int(mark.group(1)), _STRIPPED[left], _STRIPPED[right]))
            seen.add(int(mark.group(1)))
            end = mark.end() + right
        if missing := set(range(len(roles))) - seen:
            raise BadInput(f"the model's chat template drops message {min(missing)} of a conversation of {', '.join(roles)}")
        if not is_open:
            pieces.extend(self._controls.find(text[end:]))
        return tuple(pieces)

    def _render(self, roles: tuple[Role, ...], *, generate: bool) -> str:
        marked = [{"role": role, "content": f"{_PAD}Zq0Slot{i:04d}qZ{_PAD}"} for i, role in enumerate(roles)]
        try:
            rendered = self._tokenizer.apply_chat_template(
                marked, chat_template=self._source, tokenize=False, add_generation_prompt=generate
            )
        except _template_errors() as error:
            raise BadInput(f"the model's chat template refuses a conversation of {', '.join(roles)}: {error}") from error
        return str(rendered)


def _kept(text: str, *, at_end: bool) -> int:
    """Return how many characters of the padding the template left beside a mark."""
    for kept in (9, 5):
        if text.endswith(_PAD[-kept:]) if at_end else text.startswith(_PAD[:kept]):
            return kept
    return 0


def _template_errors() -> tuple[type[Exception], ...]:
    """Return what rendering a template may raise: its own refusals, and faults of its program."""
    from jinja2 import TemplateError

    return TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError
