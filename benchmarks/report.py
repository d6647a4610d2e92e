"""How the benchmarks measure: interleaved repeats, medians with their spread, one Markdown file a benchmark."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    gc.collect()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleave(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time every contender `repeats` times, in turn, so that a busy moment hits all alike; order alternates."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats):
        names = list(contenders) if repeat % 2 == 0 else list(contenders)[::-1]
        for name in names:
            times[name].append(seconds(contenders[name]))
            print(f"  {repeat + 1}/{repeats} {name}: {times[name][-1]:.2f} s", file=sys.stderr, flush=True)
    return times


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def interval(values: list[float], *, draws: int = 10_000) -> tuple[float, float]:
    """Bootstrap 95 % interval of the median."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(values, (draws, len(values))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(["| " + " | ".join(r) + " |" for r in [header, ["---"] * len(header), *rows]])


def save(name: str, text: str) -> None:
    """Print a result and keep it."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    print(text)
