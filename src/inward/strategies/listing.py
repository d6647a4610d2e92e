"""The table of strategies that the command line prints."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from inward.strategies import STRATEGIES, find, options_of
from inward.strategies.options import Option, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRow:
    """An option as one types it."""

    name: str
    flag: str
    """How it is given on the command line."""
    type: str
    required: bool
    default: Any

    @property
    def shown_default(self) -> str:
        """The default in words."""
        if self.required:
            return "required"
        return "optional" if self.default is None else f"default {self.default}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A strategy at a glance."""

    name: str
    summary: str
    needs: tuple[str, ...]
    options: tuple[OptionRow, ...]


def rows() -> list[Row]:
    """Describe every strategy of the table, sorted by name."""
    return [_row(name) for name in sorted(STRATEGIES)]


def _row(name: str) -> Row:
    function = find(name)
    options = tuple(_option(option) for option in options_of(function, name).values())
    declared = [*getattr(function, "needs", ())]
    if any(option.name == "signal" for option in options):
        declared.append("what its signal reads")
    return Row(name=name, summary=(inspect.getdoc(function) or "").partition("\n")[0], needs=tuple(declared), options=options)


def _option(option: Option) -> OptionRow:
    default = None if option.required else plain(option.default)
    return OptionRow(name=option.name, flag=option.flag, type=option.type_name, required=option.required, default=default)
