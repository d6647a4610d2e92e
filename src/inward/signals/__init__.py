"""How unsure a model is of what it wrote. Every signal rises with uncertainty; a gate opens above its threshold."""

from __future__ import annotations

from importlib import import_module

from inward.errors import UnknownName
from inward.protocols import Signal

SIGNALS: dict[str, str] = {
    "energy": "tokens:energy",
    "least-probability": "tokens:least_probability",
    "lexical-dissimilarity": "samples:LEXICAL",
    "ln-entropy": "samples:LN_ENTROPY",
    "max-entropy": "tokens:max_entropy",
    "max-nll": "tokens:max_nll",
    "mean-entropy": "tokens:mean_entropy",
    "mean-nll": "tokens:mean_nll",
    "mean-perplexity": "samples:MEAN_PERPLEXITY",
    "perplexity": "tokens:perplexity",
    "self-inconsistency": "samples:INCONSISTENCY",
    "semantic-entropy": "samples:SEMANTIC",
}
"""Name -> module of this package and object in it. One new signal is one row."""


def load_signal(name: str) -> Signal:
    """Return a signal by name.

    Raises:
        UnknownName: there is none of that name; the message suggests the nearest.
    """
    if name not in SIGNALS:
        raise UnknownName("signal", name, SIGNALS)
    module, _, attribute = SIGNALS[name].partition(":")
    signal: Signal = getattr(import_module(f"{__name__}.{module}"), attribute)
    return signal
