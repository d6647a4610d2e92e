"""Every error that inward raises on purpose.

* InwardError
  + UsageError                 the call or the command line was wrong
    - UnknownName              a name that is in no table, with a suggestion
    - MissingExtra             an optional package is not installed, or is broken
    - Unsupported              a backend, model or retriever cannot do what was asked
  + BadInput                   the data was wrong
    - ContextLengthExceeded    a prompt that cannot fit the model's context
    - BadCorpus                a corpus line that cannot be read (strict mode)
  + ModelError                 a model folder or file cannot be used
  + IndexUnusable              an index is missing, foreign, damaged or of another version
  + CaptureMissing             internal states or token scores were read that nobody asked for
  + OutOfMemory                the device had no room for a batch
  + StorageFull                the disk had no room for a file; nothing was left half written

A message names the offending value and the remedy. Everything that can be found at the door is raised
there, before work starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InwardError(Exception):
    """Base of every error this package raises on purpose."""


class UsageError(InwardError):
    """A call or a command line that cannot be carried out as written."""


class UnknownName(UsageError):
    """A name that is in no table; the message suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """Say that `name` is no `kind`, what was likely meant, and what there is."""
        known = sorted(known)
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        super().__init__(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")


class MissingExtra(UsageError):
    """An optional package is absent or broken; the message carries the import error and the pip line."""

    def __init__(self, feature: str, extra: str, cause: BaseException) -> None:
        """Name the feature, the extra that brings it, and what the import really said."""
        super().__init__(f"{feature} needs an optional package ({cause}); install it with: pip install 'inward[{extra}]'")


class Unsupported(UsageError):
    """A backend, model or retriever cannot do what was asked; found before the first call."""


class BadInput(InwardError):
    """Data that cannot be used, named with its place and the remedy."""


class ContextLengthExceeded(BadInput):
    """A prompt that leaves no room in the model's context."""


class BadCorpus(BadInput):
    """A corpus line that cannot be read; raised in strict mode only."""


class ModelError(InwardError):
    """A model folder, file or name that cannot be used."""


class IndexUnusable(InwardError):
    """An index that is missing, of another kind or version, or damaged."""


class ModelMissing(ModelError, UsageError):
    """There is no model where one was named."""


class IndexMissing(IndexUnusable, UsageError):
    """There is no index where one was named."""


class CaptureMissing(InwardError):
    """Internal states or token scores were read from a generation that was not asked to bring them."""


class OutOfMemory(InwardError):
    """The device had no room for a batch, even of one request."""


class StorageFull(InwardError):
    """The disk had no room. Whatever stood in place before is still whole."""
