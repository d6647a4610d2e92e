"""Signals of several samples: how much sampled answers differ in what they say.

All read the completions of one generation with `k` samples at temperature 1; blank samples are left out. With fewer than two left there
is no value (nan), which opens a gate. Higher is less sure.

| signal | definition over `k` samples | range |
|---|---|---|
| `lexical-dissimilarity` | 1 - mean ROUGE-L F1 over pairs of samples (Fomicheva et al. 2020) | [0, 1] |
| `semantic-entropy` | entropy of the shares of meanings (Farquhar et al. 2024, discrete form) | [0, ln k] nats |
| `self-inconsistency` | 1 - share of samples that give the commonest answer (Wang et al. 2023) | [0, 1) |
| `ln-entropy` | mean over samples of their mean -ln p(token) (Malinin and Gales 2021, length-normalised) | [0, inf) nats |
| `mean-perplexity` | mean over samples of exp of their mean -ln p(token): what SeaKR's released code calls ln_entropy | [1, inf) |

Two samples mean the same if `same` says so of their answers; the default puts case, punctuation, articles and spaces aside, as exact
match does, but keeps figures apart: 3.5 is not 35.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np

from inward.prompts import PromptTemplate
from inward.signals.states import SAMPLES, TEMPERATURE
from inward.types import Capture, Completion, Generation, Reading, Sampling, TokenScore

Reduce: TypeAlias = Callable[[Sequence[Completion]], float]
Same: TypeAlias = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class SampleSignal:
    """A number of several samples."""

    name: str
    of: Reduce
    reads: tuple[TokenScore, ...] = ()
    k: int = SAMPLES

    @property
    def capture(self) -> Capture | None:
        """No internal states are needed."""
        return None

    def wants(self, sampling: Sampling) -> Sampling:
        """Ask for `k` samples of the whole distribution, with the token scores that are read."""
        scores = tuple(dict.fromkeys((*sampling.token_scores, *self.reads)))
        return replace(sampling, n=self.k, temperature=TEMPERATURE, top_p=1.0, top_k=0, token_scores=scores)

    async def __call__(self, generation: Generation) -> Reading:
        """Read all completions."""
        kept = [completion for completion in generation.completions if completion.text.strip()]
        value = self.of(kept) if len(kept) > 1 else float("nan")
        return Reading(value=value, parts={"samples": float(len(kept))})


def answers(samples: Sequence[Completion], template: PromptTemplate | None = None) -> list[str]:
    """Return the answer in each sample, read as every strategy reads it; None is the bundled prompt."""
    read = (template or PromptTemplate.load()).parse
    return [read(sample.text).short for sample in samples]


def alike(a: str, b: str) -> bool:
    """Whether two answers are equal once case, punctuation, articles and spaces are put aside."""
    return _plain(a) == _plain(b)


def _plain(text: str) -> str:
    kept = "".join(c if c.isalnum() else " " for c in text.casefold()).split()
    return " ".join(word for word in kept if word not in ("a", "an", "the")) or " ".join(kept)


def meanings(texts: Sequence[str], same: Same = alike) -> list[int]:
    """Return the number of texts of each meaning; a text joins the first meaning whose first text it is the same as."""
    firsts: list[str] = []
    counts: list[int] = []
    for text in texts:
        place = next((place for place, first in enumerate(firsts) if same(first, text)), None)
        if place is None:
            firsts.append(text)
            counts.append(1)
        else:
            counts[place] += 1
    return counts


def semantic_entropy(samples: Sequence[Completion], same: Same = alike, template: PromptTemplate | None = None) -> float:
    """Return the entropy of meanings, in nats, each sample counting alike."""
    shares = np.array(meanings(answers(samples, template), same), np.float64) / len(samples)
    return float(-(shares * np.log(shares)).sum()) + 0.0


def self_inconsistency(samples: Sequence[Completion], same: Same = alike, template: PromptTemplate | None = None) -> float:
    """Return one less the share of the commonest answer."""
    return 1 - max(meanings(answers(samples, template), same)) / len(samples)


def lexical_dissimilarity(samples: Sequence[Completion]) -> float:
    """Return one less the mean ROUGE-L F1 over pairs of samples."""
    words = [_plain(sample.text).split() for sample in samples]
    return 1 - float(np.mean([rouge_l(a, b) for a, b in combinations(words, 2)]))


def rouge_l(a: Sequence[str], b: Sequence[str]) -> float:
    """Return the F1 of the longest common subsequence of words (Lin 2004); two empty texts are alike."""
    if not a or not b:
        return float(len(a) == len(b))
    row = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for place, other in enumerate(b, 1):
            before, row[place] = row[place], before + 1 if word == other else max(row[place], row[place - 1])
    return 2 * row[-1] / (len(a) + len(b))


def ln_entropy(samples: Sequence[Completion]) -> float:
    """Return the mean over samples of their mean negative log-probability; samples without tokens do not count."""
    means = _mean_nlls(samples)
    return float(np.mean(means)) if means else float("nan")


def mean_perplexity(samples: Sequence[Completion]) -> float:
    """Return the mean over samples of their perplexity."""
    means = _mean_nlls(samples)
    return float(np.mean(np.exp(means))) if means else float("nan")


def _mean_nlls(samples: Sequence[Completion]) -> list[float]:
    return [float(-sample.score("logprobs").astype(np.float64).mean()) for sample in samples if len(sample.token_ids)]


LEXICAL = SampleSignal("lexical-dissimilarity", lexical_dissimilarity)
SEMANTIC = SampleSignal("semantic-entropy", semantic_entropy)
INCONSISTENCY = SampleSignal("self-inconsistency", self_inconsistency)
LN_ENTROPY = SampleSignal("ln-entropy", ln_entropy, ("logprobs",))
MEAN_PERPLEXITY = SampleSignal("mean-perplexity", mean_perplexity, ("logprobs",))
