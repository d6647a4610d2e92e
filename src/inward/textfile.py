"""Text files as they come: gzipped or not, UTF-8 with or without a byte order mark, tab-separated lines."""

from __future__ import annotations

import csv
import gzip
import zlib
from contextlib import suppress

from inward.errors import BadInput

GZIP = b"\x1f\x8b"
DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a damaged gzip file raises."""


def decoded(raw: bytes, name: str) -> str:
    """Return the text of a file, unpacked, without a byte order mark.

    Raises:
        BadInput: it is a damaged gzip file, or not UTF-8; the message names the line.
    """
    if raw.startswith(GZIP):
        try:
            raw = gzip.decompress(raw)
        except DAMAGED_GZIP as error:
            raise damaged_gzip(name, error) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(name, raw.count(b"\n", 0, error.start) + 1, error) from error


def readable(name: str) -> str:
    """Return the name of a file with what is not UTF-8 in it replaced, so that it can be written down."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def damaged_gzip(name: str, error: Exception) -> BadInput:
    """Say that a file cannot be unpacked."""
    return BadInput(f"{name} is a damaged or cut-off gzip file ({error}); fetch or pack it again")


def not_utf8(name: str, line: int, error: UnicodeDecodeError) -> BadInput:
    """Say which byte of which line is not UTF-8."""
    byte, start = error.object[error.start], error.object.rfind(b"\n", 0, error.start) + 1
    return BadInput(
        f"{name}, line {line}: byte 0x{byte:02x} at column {error.start - start + 1} is not UTF-8; "
        "convert the file (iconv -f latin1 -t utf-8) or drop such bytes (iconv -c -t utf-8)"
    )


def tsv_fields(line: str) -> list[str]:
    """Return the fields of a tab-separated line; quotes enclose a field only where they do so throughout the line."""
    if '"' in line:
        with suppress(csv.Error):  # a quotation mark that is just one
            return next(csv.reader([line], delimiter="\t", strict=True))
    return line.split("\t")
