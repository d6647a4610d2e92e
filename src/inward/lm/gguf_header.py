"""The header of a GGUF file: what it holds, read before anything is allocated.

`gguf.GGUFReader` turns every entry into arrays, ten seconds for a vocabulary of 262,144; here arrays are stepped
over. Layout: magic, version, counts, key-value pairs, tensor table, data
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from inward.errors import MissingExtra, ModelError

Scalar: TypeAlias = int | float | bool | str

_FIXED = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Value type -> how it is packed."""
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFHeader:
    """What a GGUF file says of itself."""

    values: Mapping[str, Scalar]
    """Keys with a single value; arrays are left out."""
    parameters: int
    """Numbers in all tensors together."""
    size: int
    """Bytes that the file must have for its tensors to be whole."""

    @property
    def architecture(self) -> str:
        """Name of the architecture, as llama.cpp writes it."""
        return str(self.values.get("general.architecture", ""))


def read_header(path: Path) -> GGUFHeader:
    """Read the header of a GGUF file, and check that the file is whole.

    Raises:
        MissingExtra: the package `gguf` is absent or broken.
        ModelError: no GGUF file, or one that was cut off.
    """
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise MissingExtra("reading a GGUF file", "gguf", error) from error
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _Reader(data)
            values = reader.values()
            parameters = end = 0
            for numbers, kind, offset in reader.tensors():
                per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
                parameters += numbers
                end = max(end, offset + numbers // per_block * block_bytes)
            alignment = int(values.get("general.alignment", _ALIGNMENT))
            size = -(-reader.place // alignment) * alignment + end
            found = len(data)
    except OSError as error:
        raise ModelError(f"{str(path)!r} cannot be read: {error}") from error
    except (ValueError, struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ModelError(f"{str(path)!r} is no whole GGUF file: {error}") from error
    if found < size:
        raise ModelError(f"{str(path)!r} was cut off: its tensors end at byte {size:,}, the file at {found:,}; fetch it again")
    return GGUFHeader(values=values, parameters=parameters, size=size)


class _Reader:
    """Walks the header from front to back."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.place = 4
        if data[:4] != b"GGUF":
            raise ValueError(f"it begins with {data[:4]!r}, not with b'GGUF'")
        version = int(self._number("<I"))
        if version not in (2, 3):
            raise ValueError(f"version {version}; versions 2 and 3 are known")
        self._tensors, self._pairs = int(self._number("<Q")), int(self._number("<Q"))

    def values(self) -> dict[str, Scalar]:
        """Read the key-value pairs, stepping over arrays."""
        found: dict[str, Scalar] = {}
        for _ in range(self._pairs):
            key = self._string()
            kind = int(self._number("<I"))
            if kind == _ARRAY:
                self._step_over_array()
            else:
                found[key] = self._string() if kind == _STRING else self._number(_FIXED[kind])
        return found

    def tensors(self) -> list[tuple[int, int, int]]:
        """Read the tensor table: how many numbers, of which type, from which byte of the data on."""
        rows = []
        for _ in range(self._tensors):
            self._string()
            numbers = 1
            for _ in range(int(self._number("<I"))):
                numbers *= int(self._number("<Q"))
            rows.append((numbers, int(self._number("<I")), int(self._number("<Q"))))
        return rows

    def _step_over_array(self) -> None:
        kind, count = int(self._number("<I")), int(self._number("<Q"))
        if kind == _STRING:
            for _ in range(count):
                self.place += 8 + struct.unpack_from("<Q", self._data, self.place)[0]
        elif kind == _ARRAY:
            for _ in range(count):
                self._step_over_array()
        else:
            self.place += count * struct.calcsize(_FIXED[kind])
        if self.place > len(self._data):
            raise ValueError("an array ends after the end of the file")

    def _number(self, form: str) -> int | float | bool:
        number: int | float | bool = struct.unpack_from(form, self._data, self.place)[0]
        self.place += struct.calcsize(form)
        return number

    def _string(self) -> str:
        length = int(self._number("<Q"))
        text = self._data[self.place : self.place + length]
        if len(text) < length:
            raise ValueError("a text ends after the end of the file")
        self.place += length
        return text.decode()
