"""Whether an answer is right, by comparison with gold answers: text in, number out.

Every function takes the best over all gold answers, each brought to the same form first; `inward.evals.normalise` says to which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from inward.evals.normalise import DEFAULT, NORMALISERS, Normaliser, NormaliserName


def exact_match(answer: str, golds: Sequence[str], normaliser: NormaliserName = DEFAULT) -> float:
    """Return 1 if the answer equals a gold answer once both are normalised, else 0 (SQuAD, section 6.1)."""
    form = NORMALISERS[normaliser]
    got = _normal(form, answer)
    return float(any(got == _normal(form, gold) for gold in golds))


def f1(answer: str, golds: Sequence[str], normaliser: NormaliserName = DEFAULT) -> float:
    """Return the harmonic mean of precision and recall over tokens, the best over the gold answers (SQuAD, section 6.1)."""
    form = NORMALISERS[normaliser]
    got = _normal(form, answer)
    return max((_overlap(form, got, _normal(form, gold)) for gold in golds), default=0.0)


def contains(text: str, golds: Sequence[str], normaliser: NormaliserName = DEFAULT) -> float:
    """Return 1 if a gold answer stands in the text as a run of whole tokens, else 0: "no" is not in "known".

    A gold answer of which nothing is left is in no text.
    """
    form = NORMALISERS[normaliser]
    hay = f" {_normal(form, text)} "
    return float(any((needle := _normal(form, gold)) and f" {needle} " in hay for gold in golds))


def substring(text: str, golds: Sequence[str], normaliser: NormaliserName = DEFAULT) -> float:
    """Return 1 if a gold answer's characters stand in the text, word ends aside: what released code often calls accuracy."""
    form = NORMALISERS[normaliser]
    hay = _normal(form, text)
    return float(any((needle := _normal(form, gold)) and needle in hay for gold in golds))


def _overlap(form: Normaliser, got: str, gold: str) -> float:
    if got != gold and (got in form.closed or gold in form.closed):
        return 0.0
    a, b = got.split(), gold.split()
    if not a or not b:
        return float(a == b)
    same = sum((Counter(a) & Counter(b)).values())
    return 2 * same / (len(a) + len(b))


def _normal(form: Normaliser, text: str) -> str:
    return _remembered(form.name, text) if len(text) < _SHORT else form.normal(text)


_SHORT = 200
"""Texts up to this many characters are remembered: gold answers come again with every strategy."""


@lru_cache(maxsize=1 << 15)
def _remembered(name: NormaliserName, text: str) -> str:
    return NORMALISERS[name].normal(text)
