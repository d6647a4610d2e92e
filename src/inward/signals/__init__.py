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

ABOUT: dict[str, str] = {
    "energy": "minus the mean log-sum-exp of the raw logits",
    "least-probability": "1 - the smallest token probability, 0 to 1",
    "lexical-dissimilarity": "1 - mean ROUGE-L between 20 samples, 0 to 1",
    "ln-entropy": "mean over 20 samples of their mean -ln p(token), 0 up",
    "max-entropy": "largest entropy of a token's distribution, 0 to ln V nats",
    "mean-entropy": "mean entropy of the tokens' distributions, 0 to ln V nats",
    "max-nll": "largest -ln p(token), 0 up",
    "mean-nll": "mean -ln p(token), 0 up: how surprised the model was by its own words",
    "mean-perplexity": "mean perplexity of 20 samples, 1 up",
    "perplexity": "exp of mean-nll, 1 up",
    "self-inconsistency": "1 - share of the commonest answer among 20 samples, 0 to 1",
    "semantic-entropy": "entropy of the answers' meanings over 20 samples, 0 to ln 20 nats",
}
"""Name -> what it is and its range, in a line."""


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
