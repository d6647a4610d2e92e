"""Thresholds for the bundled model with the bundled prompt, so that it answers out of the box."""

from __future__ import annotations

DEMO_THRESHOLDS: dict[str, float] = {
    "gated(least-probability)": 0.86,
    "gated(max-entropy)": 4.05,
    "gated(max-nll)": 2.0,
    "gated(mean-entropy)": 1.3,
    "gated(mean-nll)": 0.47,
    "gated(perplexity)": 1.6,
}
"""Strategy -> threshold for the bundled model and prompt, from `benchmarks/demo_threshold.py`: something to look at, no calibration."""
