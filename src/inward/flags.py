"""What the commands share: help as users expect it, and values as they are typed."""

from __future__ import annotations

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
