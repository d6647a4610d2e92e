"""Thresholds for the bundled model with the bundled prompt, so that it answers out of the box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEMO_THRESHOLDS: dict[str, float] = {
    "gated(least-probability)": 0.86,
    "gated(max-entropy)": 4.05,
    "gated(max-nll)": 2.0,
    "gated(mean-entropy)": 1.3,
    "gated(mean-nll)": 0.47,
    "gated(perplexity)": 1.6,
}
"""Strategy -> threshold for the bundled model and prompt, from `benchmarks/demo_threshold.py`: something to look at, no calibration."""


def with_demo_threshold(strategy: str, model: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with the strategy's threshold if it is the bundled model and prompt that are used and none is given."""
    if model != "demo" or strategy not in DEMO_THRESHOLDS or "prompt" in options:
        return dict(options)
    return {"threshold": DEMO_THRESHOLDS[strategy], **options}
