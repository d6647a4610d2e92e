"""What the commands share: help as users expect it, and values as they are typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from inward.errors import UsageError

HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of every command."""


def pair_of(text: str, flag: str, example: str) -> tuple[str, Any]:
    """Read KEY=VALUE: a value is JSON where it is any (3, 0.5, true), else text.

    Raises:
        UsageError: there is no key, or no value.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{flag} takes {example}, got {text!r}")
    try:
        return key, msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return key, value


def filter_of(where: Sequence[str]) -> dict[str, list[Any]]:
    """Read --where KEY=VALUE; a value that looks like a number, true, false or null is asked for as that and as text.

    Raises:
        UsageError: there is no key, or no value.
    """
    wanted: dict[str, list[Any]] = {}
    for pair in where:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"--where needs KEY=VALUE, got {pair!r}")
        values = wanted.setdefault(key, [])
        values.append(value)
        if key != "doc":
            try:
                other = msgspec.json.decode(value)
            except (msgspec.DecodeError, UnicodeEncodeError):
                continue
            if other is None or isinstance(other, int | float):
                values.append(other)
    return wanted
