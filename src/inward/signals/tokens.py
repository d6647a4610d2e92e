"""Signals of one completion's tokens: what the model's own probabilities say of the text it wrote.

All read the raw distributions at temperature 1, so sampling settings do not move them. All rise with
uncertainty. `k` samples are no better than one here: the first completion is read and the others ignored,
so duplicates among samples change nothing. A completion without tokens has no value (nan), which opens a gate.

| signal | definition over the `T` kept tokens | range |
|---|---|---|
| `mean-nll` | mean of -ln p(token) | [0, inf) nats |
| `max-nll` | largest -ln p(token) | [0, inf) nats |
| `perplexity` | exp of the mean of -ln p(token) | [1, inf) |
| `least-probability` | 1 - smallest p(token) | [0, 1] |
| `mean-entropy` | mean entropy of the distributions the tokens were drawn from | [0, ln V] nats |
| `max-entropy` | largest such entropy | [0, ln V] nats |
| `energy` | minus the mean of ln sum exp of the raw logits (Liu et al. 2020) | any |

`max-nll` and `least-probability` order generations alike; so do `mean-nll` and `perplexity`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from inward.types import Capture, Generation, Reading, Sampling, TokenScore


@dataclass(frozen=True, slots=True)
class TokenSignal:
    """A number per token, reduced to one."""

    name: str
    reads: TokenScore
    reduce: Callable[[NDArray[np.float64]], float]
    """`[T]`, at least one token -> value."""

    @property
    def capture(self) -> Capture | None:
        """No internal states are needed."""
        return None

    def wants(self, sampling: Sampling) -> Sampling:
        """Switch on the token score that is read."""
        asked = sampling.token_scores
        return sampling if self.reads in asked else replace(sampling, token_scores=(*asked, self.reads))

    def of(self, generation: Generation) -> float:
        """Return the value for the first completion; nan when it has no tokens.

        Raises:
            CaptureMissing: the generation was not asked for the token score; `wants` does.
        """
        values = generation.completions[0].score(self.reads).astype(np.float64)
        return self.reduce(values) if len(values) else float("nan")

    async def __call__(self, generation: Generation) -> Reading:
        """Read the first completion."""
        return Reading(value=self.of(generation))


mean_nll = TokenSignal("mean-nll", "logprobs", lambda logprobs: float(-logprobs.mean()))
max_nll = TokenSignal("max-nll", "logprobs", lambda logprobs: float(-logprobs.min()))
perplexity = TokenSignal("perplexity", "logprobs", lambda logprobs: float(np.exp(-logprobs.mean())))
least_probability = TokenSignal("least-probability", "logprobs", lambda logprobs: float(-np.expm1(logprobs.min())))
mean_entropy = TokenSignal("mean-entropy", "entropies", lambda entropies: float(entropies.mean()))
energy = TokenSignal("energy", "energies", lambda energies: float(-energies.mean()))
max_entropy = TokenSignal("max-entropy", "entropies", lambda entropies: float(entropies.max()))
