"""Signals of internal states: how far apart the states of sampled answers lie.

`eigenscore` is SeaKR's uncertainty (Yao et al., ACL 2025, section 3.1): the log-determinant of the regularised Gram matrix of the
samples' states. The form is that of INSIDE's EigenScore (Chen et al., ICLR 2024); the states are others: the raw output of a middle
block's feed-forward network, at the position where the end token is fed. It rises with the spread of the samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from inward.errors import UsageError
from inward.types import Capture, Generation, Reading, Sampling

ALPHA = 1e-3
"""Added to every eigenvalue: the released scripts'."""
SAMPLES, TEMPERATURE, TOP_P, TOP_K = 20, 1.0, 0.9, 50
"""Of the released scripts; the paper says "sampled", and that 10 to 25 samples are best."""


def gram_log_det(states: NDArray[np.floating], alpha: float = ALPHA) -> float:
    """Return (1/k) ln det(Zc Zc^T + alpha I), Zc being the states with each row's mean over its features taken off.

    In double precision, over the eigenvalues of the `k` by `k` matrix: in single precision states of the size of a residual stream give
    minus infinity, which a comparison takes for certainty. nan where a state is not finite.

    Args:
        states: `[k, d]`, a row a sample.
        alpha: positive.

    Raises:
        UsageError: there are no rows, or `alpha` is not positive.
    """
    rows = np.asarray(states, np.float64)
    if rows.ndim != 2 or not rows.size:
        raise UsageError(f"states are [k, d] with at least one row, got {list(rows.shape)}")
    if not alpha > 0:
        raise UsageError(f"alpha must be above 0, got {alpha!r}")
    if not np.isfinite(rows).all():
        return float("nan")
    centred = rows - rows.mean(1, keepdims=True)
    eigenvalues = np.linalg.eigvalsh(centred @ centred.T)
    return float(np.log(np.clip(eigenvalues, 0.0, None) + alpha).mean())


def identical_floor(k: int, squared_norm: float, alpha: float = ALPHA) -> float:
    """Return the score of `k` equal samples whose centred state has this squared norm: no score of such states lies lower."""
    return float((np.log(k * squared_norm + alpha) + (k - 1) * np.log(alpha)) / k)


@dataclass(frozen=True, slots=True)
class EigenScore:
    """The spread of sampled answers' states at one block. Higher is less sure; never below ln(alpha).

    Blank samples are left out, and `k` shrinks with them. With fewer than two left, or states that are not finite, there is no score:
    the value is infinite, which opens every gate, and `parts` says how many samples were left.
    """

    layer: int
    """0-based block; SeaKR's is half of the depth less one."""
    site: str = "mlp_raw"
    k: int = SAMPLES
    alpha: float = ALPHA
    name: str = "eigenscore"

    @property
    def capture(self) -> Capture:
        """The state where the end token is fed, at one block."""
        return Capture(layers=(self.layer,), site=self.site, pool="eos")  # type: ignore[arg-type]

    def wants(self, sampling: Sampling) -> Sampling:
        """Ask for `k` samples, drawn as the released scripts do."""
        return replace(sampling, n=self.k, temperature=TEMPERATURE, top_p=TOP_P, top_k=TOP_K)

    async def __call__(self, generation: Generation) -> Reading:
        """Read all completions."""
        kept = [c.states[0] for c in generation.completions if c.text.strip() and c.states is not None]
        parts = {"samples": float(len(kept))}
        score = gram_log_det(np.stack(kept), self.alpha) if len(kept) > 1 else inf
        return Reading(value=score if isfinite(score) else inf, parts=parts)


def middle_layer(num_layers: int) -> int:
    """Return SeaKR's block of a model: half of the depth less one (15 of 32)."""
    return num_layers // 2 - 1
