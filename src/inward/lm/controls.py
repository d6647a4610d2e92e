"""Control tokens of a tokenizer: where they stand in text that may hold them, and how to cut text that must not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


class ControlTokens:
    """The tokens that steer a model (`<bos>`, `<|im_end|>`), which text from users and passages must never become.

    These are the special tokens, and such added tokens as the chat template writes itself.
    """

    def __init__(self, tokenizer: Any, template: str | None) -> None:
        """Collect the control tokens of `tokenizer`, and of the chat template's source if there is one."""
        added = {int(index): token for index, token in tokenizer.added_tokens_decoder.items()}
        by_template = {t.content for t in added.values() if template and not t.content.isspace() and t.content in template}
        chosen = {index: token for index, token in added.items() if token.special or token.content in by_template}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        """Ids that have no text."""
        self.ids = frozenset(chosen)
        self._by_text = {token.content: index for index, token in chosen.items() if token.content}
        self._eats_left = frozenset(index for index, token in chosen.items() if token.lstrip)
        self._eats_right = frozenset(index for index, token in chosen.items() if token.rstrip)
        longest_first = sorted(self._by_text, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def find(self, text: str) -> Iterator[str | int]:
        """Read text of the model's own template: yield the runs between its control tokens, and their ids."""
        end = 0
        for match in self._pattern.finditer(text):
            if match.start() > end:
                yield text[end : match.start()]
            yield self._by_text[match.group()]
            end = match.end()
        if end < len(text):
            yield text[end:]

    def cut(self, text: str) -> Iterator[str]:
        """Cut data inside every control token that it spells, after the first character, so that none is whole."""
        while match := self._pattern.search(text):
            place = match.start() + 1
            yield text[:place]
            text = text[place:]
        if text:
            yield text

    def strip(self, pieces: list[str | int]) -> list[str | int]:
        """Take off the white space that a token's `lstrip` and `rstrip` swallow; drop what is empty then."""
        for place, piece in enumerate(pieces):
            if not isinstance(piece, int):
                continue
            before, after = place - 1, place + 1
            if piece in self._eats_left and place and isinstance(left := pieces[before], str):
                pieces[before] = left.rstrip()
            if piece in self._eats_right and after < len(pieces) and isinstance(right := pieces[after], str):
                pieces[after] = right.lstrip()
        return [piece for piece in pieces if piece != ""]
