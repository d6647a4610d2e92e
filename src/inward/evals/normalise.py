"""Answers brought to the form in which they are compared.

| name | what it does |
| --- | --- |
| `squad` | lower case; ASCII punctuation out; the words a, an, the out; white space to single spaces (SQuAD 1.1, evaluation script) |
| `hotpot` | as `squad`; F1 between a yes, no or noanswer and anything else is 0 (HotpotQA, evaluation script). Ours: see below |
| `unicode` | as `hotpot`; compatibility forms, accents kept; every dash and quote of Unicode is punctuation |

A text that would normalise to nothing ("A", "The The", "!!!") is compared as it is by `hotpot` and `unicode`, so that an article or no
answer at all is not right where the gold answer is "A". `squad` does what the script does: there, any two such texts are equal
(their F1 is then 1, as in SQuAD 2.0's script and in torchmetrics; SQuAD 1.1's own gives 0).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

NormaliserName: TypeAlias = Literal["squad", "hotpot", "unicode"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_squad(text: str) -> str:
    """Return `text` as the SQuAD 1.1 evaluation compares it."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalise_unicode(text: str) -> str:
    """Return `text` with Unicode's punctuation out; a dash between words or figures parts them."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    spaced = "".join(" " if unicodedata.category(c) == "Pd" else c for c in folded)
    bare = "".join(c for c in spaced if unicodedata.category(c)[0] != "P" and c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", bare).split())


class Normaliser(NamedTuple):
    """A way of comparing answers."""

    name: NormaliserName
    apply: Callable[[str], str]
    closed: frozenset[str]
    """Answers that F1 compares whole: a yes is not half of a longer sentence that holds it."""
    keeps_bare: bool
    """Whether a text that would normalise to nothing, such as "A" or "The The", is compared as it is, case aside."""

    def normal(self, text: str) -> str:
        """Return the form in which `text` is compared."""
        found = self.apply(text)
        return found if found or not self.keeps_bare else " ".join(text.casefold().split())


NORMALISERS: dict[NormaliserName, Normaliser] = {
    "squad": Normaliser("squad", normalise_squad, frozenset(), False),
    "hotpot": Normaliser("hotpot", normalise_squad, frozenset({"yes", "no", "noanswer"}), True),
    "unicode": Normaliser("unicode", normalise_unicode, frozenset({"yes", "no", "noanswer"}), True),
}
"""Name -> normaliser. The default is `hotpot`: SQuAD's form, and the rule that every multi-hop paper measures by."""
DEFAULT: NormaliserName = "hotpot"
