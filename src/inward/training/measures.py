"""What a prober is worth on questions that it has not seen: within each data set and mode, never only pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from inward.evals.gates import auroc, ece
from inward.probers.card import Measured
from inward.probers.prober import Prober
from inward.types import F32

if TYPE_CHECKING:
    from inward.training.drafts import Row

ALL = "all"
BINS = 15
"""Of the calibration error."""


def measure(margins: F32, rows: Sequence[Row], right: NDArray[np.bool_], layers: Sequence[int], prober: Prober) -> tuple[Measured, ...]:
    """Return accuracy, AUROC and calibration error per layer and combined, for each data set and mode that has drafts.

    Args:
        margins: `[N, L]` calibrated logits, not know - know.
        rows: `[N]` drafts, as many right as there are in life.
        right: `[N]`.
        layers: `[L]`.
        prober: whose margins they are: combined, the calibration error is that of its confidence.
    """
    modes = np.array([row.draft.mode for row in rows])
    sets = np.array([row.dataset for row in rows])
    found = []
    for data in [*dict.fromkeys(sets.tolist()), ALL]:
        for mode in dict.fromkeys(modes.tolist()):
            taken = np.flatnonzero(((sets == data) | (data == ALL)) & (modes == mode))
            if len(taken) and not (data == ALL and len(set(sets.tolist())) == 1):
                found.append(_measured(data, mode, margins[taken], right[taken], layers, prober))
    return tuple(found)


def _measured(data: str, mode: str, margins: F32, right: NDArray[np.bool_], layers: Sequence[int], prober: Prober) -> Measured:
    columns = {str(layer): margins[:, place] for place, layer in enumerate(layers)}
    columns["combined"] = margins.sum(1)
    wrong = (~right).astype(float).tolist()
    known = right.astype(float).tolist()
    sure = {name: expit(-values).astype(float).tolist() for name, values in columns.items()}
    fitted = prober.card.confidence.get(mode)
    if fitted is not None:
        sure["combined"] = expit(fitted[0] + fitted[1] * columns["combined"]).astype(float).tolist()
    return Measured(
        data=data,
        mode=mode,  # type: ignore[arg-type]
        right=int(right.sum()),
        wrong=int((~right).sum()),
        accuracy={name: float(((np.array(p) > 0.5) == right).mean()) for name, p in sure.items()},
        auroc={name: auroc(values.tolist(), wrong, draws=0).value if _both(right) else None for name, values in columns.items()},
        ece={name: float(ece(p, known, bins=BINS).value or 0.0) for name, p in sure.items()},
    )


def _both(right: NDArray[np.bool_]) -> bool:
    return bool(right.any() and not right.all())
