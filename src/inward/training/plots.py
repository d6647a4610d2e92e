"""Figures of a prober: accuracy by layer, and how its logits part right from wrong (Probing-RAG, figures 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inward.errors import BadInput, MissingExtra
from inward.probers.prober import Prober
from inward.training.measures import ALL

_GRID = 200


def draw(probers: Sequence[Prober], folder: str | Path) -> list[Path]:
    """Write `accuracy.svg`, a line a prober (one a site, say), and `logits.svg` of the first prober; return the files.

    Raises:
        MissingExtra: matplotlib is not there.
    """
    path = Path(folder)
    pyplot = _pyplot()
    path.mkdir(parents=True, exist_ok=True)
    made = []
    if any(prober.card.measured for prober in probers):
        made.append(_save(_accuracy(pyplot, [p for p in probers if p.card.measured]), path / "accuracy.svg"))
    if probers[0].calibration:
        made.append(_save(_logits(pyplot, probers[0]), path / "logits.svg"))
    return made


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("a figure", "plots", error) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _accuracy(pyplot: Any, probers: Sequence[Prober]) -> Any:
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for prober in probers:
        pooled = [m for m in prober.card.measured if m.data == ALL] or list(prober.card.measured)
        for measured in pooled:
            values = [measured.auroc[str(layer)] for layer in prober.card.layers]
            style = "-" if measured.mode == "without" else "--"
            label = f"{prober.card.site}, {measured.mode} passages ({measured.right} right, {measured.wrong} wrong)"
            axes.plot(prober.card.layers, [np.nan if v is None else v for v in values], style, marker="o", label=label)
    axes.axhline(0.5, color="grey", linewidth=0.8)
    axes.set(xlabel="block (0-based)", ylabel="AUROC on test questions")
    axes.legend(fontsize="small")
    return figure


def _logits(pyplot: Any, prober: Prober) -> Any:
    """Draw the densities of two layers' logits, the lowest and the highest, over calibration drafts without passages."""
    margins = np.array([row.margins for row in prober.calibration])
    right = np.array([row.right_without for row in prober.calibration])
    layers = prober.card.layers
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    for axis, place in zip(axes, (0, len(layers) - 1), strict=True):
        low, high = np.percentile(margins[:, place], [0.5, 99.5])
        grid = np.linspace(low, high, _GRID)
        for name, chosen in (("right", right), ("wrong", ~right)):
            try:
                axis.plot(grid, density(margins[chosen, place], grid), label=f"{name} ({int(chosen.sum())})")
            except BadInput:
                continue
        axis.set(xlabel=f"block {layers[place]}: not know - know (nats)", ylabel="density")
        axis.legend(fontsize="small")
    return figure


def density(values: Any, grid: Any) -> Any:
    """Return the kernel density estimate of values (Gaussian kernel, Scott's bandwidth) on a grid.

    Raises:
        BadInput: there are fewer than two values, or they are all equal.
    """
    from scipy.stats import gaussian_kde

    if len(values) < 2 or np.ptp(values) == 0:
        raise BadInput(f"a density needs two different values, got {len(values)}")
    return gaussian_kde(values)(grid)
