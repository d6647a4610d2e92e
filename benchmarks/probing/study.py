"""What was tried for the shipped prober, chosen on validation only: states, layers, networks, and token signals beside them.

    python study.py [--drafts work/drafts] [--label answer] [--folds 5]

Every choice is judged by cross-validation over the questions of the parts that are not for testing: a draft's score comes from probes
that have seen neither its question nor an equal one. The measure is AUROC of drafts without passages within each data set, averaged
over data sets by their number of drafts; 95 % intervals are bootstrapped over questions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).parents[1]))
from report import save, table

from inward.probers.train import SHARES, Recipe, part_questions, train
from inward.training.drafts import Drafts, Row, read_drafts
from inward.training.fit import label_rows
from inward.training.labels import load_label

HERE = Path(__file__).parent
SIGNALS = ("mean-nll", "max-nll", "mean-entropy")


def main() -> None:
    """Run and write results/probing-study.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--drafts", default=str(HERE / "work" / "drafts"))
    parser.add_argument("--label", default="answer")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    drafts = read_drafts(args.drafts)
    rows, right = label_rows(drafts, load_label(args.label))
    parts = part_questions({row.key: row.dataset for row in rows}, shares=SHARES)
    kept = np.array([parts[row.key] != "test" for row in rows])
    rows, right = tuple(row for row, k in zip(rows, kept, strict=True) if k), right[kept]
    folds = fold_of(rows, args.folds)
    scores = {name: score() for name, score in candidates(drafts, rows, right, folds).items()}
    ranked = sorted(scores, key=lambda name: -mean_auroc(scores[name], rows, right))
    lines = []
    for name in ranked:
        low, high = interval(scores[name], rows, right)
        per_set = [f"{value:.3f}" for value in by_set(scores[name], rows, right).values()]
        lines.append([name, f"{mean_auroc(scores[name], rows, right):.3f}", f"{low:.3f} to {high:.3f}", *per_set])
    without = [n for n, row in enumerate(rows) if row.draft.mode == "without"]
    save(
        f"probing-study-{args.label}",
        f"""# What was tried for the prober ({args.label})

`python benchmarks/probing/study.py --label {args.label} --folds {args.folds}`: {len(rows)} drafts ({len(without)} without passages, {
            int(right[without].sum())
        } of them right) of {len({row.key for row in rows})} questions; test questions are not among them.

{table(["what", "AUROC, mean over sets", "95 % interval", *by_set(scores[ranked[0]], rows, right)], lines)}
""",
    )


def fold_of(rows: tuple[Row, ...], folds: int) -> np.ndarray:
    """Return `[N]` the fold of each row; equal questions share it."""
    shares = {str(fold): 1.0 for fold in range(folds)}
    found = part_questions({row.key: row.dataset for row in rows}, shares=shares, seed=1)
    return np.array([int(found[row.key]) for row in rows])


def candidates(drafts: Drafts, rows: tuple[Row, ...], right: np.ndarray, folds: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
    """Return name -> function that gives `[N]` scores, higher where a draft is more likely wrong."""
    mean = drafts.of(rows)
    last = drafts.states[[drafts.others(f"{row.draft.mode}:last")[row.id] for row in rows]]
    prompt = drafts.states[[drafts.others("prompt")[row.id] for row in rows]]
    layers = {"6,8,..,16": [6, 8, 10, 12, 14, 16], "all": list(range(18)), "9..13": [9, 10, 11, 12, 13], "12": [12], "17": [17]}
    linear, small, paper = Recipe(depth=0, hidden=1, learning_rate=1e-3), Recipe(depth=1, hidden=64, learning_rate=3e-4), Recipe()
    found: dict[str, Callable[[], np.ndarray]] = {}
    for signal in SIGNALS:
        found[signal] = lambda signal=signal: np.array([row.draft.signals[signal] for row in rows], float)
    found["draft length"] = lambda: np.array([row.draft.tokens for row in rows], float)
    for name, chosen in layers.items():
        found[f"mean, blocks {name}, linear"] = lambda c=chosen: probed(mean[:, c], rows, right, folds, linear)
    for name, recipe in (("1 x 64", small), ("2 x 512", paper), ("linear, decay 1", replace(linear, weight_decay=1.0))):
        found[f"mean, blocks 6,8,..,16, {name}"] = lambda r=recipe: probed(mean[:, layers["6,8,..,16"]], rows, right, folds, r)
    found["last token, blocks 6,8,..,16, linear"] = lambda: probed(last[:, layers["6,8,..,16"]], rows, right, folds, linear)
    found["prompt's last token, blocks 6,8,..,16, linear"] = lambda: probed(prompt[:, layers["6,8,..,16"]], rows, right, folds, linear)
    rng = np.random.default_rng(0)
    found["shuffled labels"] = lambda: probed(mean[:, layers["6,8,..,16"]], rows, right[rng.permutation(len(right))], folds, linear)
    found["linear with token signals"] = lambda: stacked(
        probed(mean[:, layers["6,8,..,16"]], rows, right, folds, linear), rows, right, folds
    )
    return found


def probed(states: np.ndarray, rows: tuple[Row, ...], right: np.ndarray, folds: np.ndarray, recipe: Recipe) -> np.ndarray:
    """Return out-of-fold sums of not know - know; the next fold stops early and scales."""
    found = np.empty(len(rows))
    count = folds.max() + 1
    for fold in range(count):
        early, learn = folds == (fold + 1) % count, (folds != fold) & (folds != (fold + 1) % count)
        made = train(states[learn], right[learn], states[early], right[early], recipe)
        with torch.inference_mode():
            logits = made.probes(torch.from_numpy(np.ascontiguousarray(states[folds == fold]))).numpy()
        scaled = logits / np.array(made.temperatures)[:, None]
        found[folds == fold] = (scaled[..., 0] - scaled[..., 1]).sum(1)
    return found


def stacked(score: np.ndarray, rows: tuple[Row, ...], right: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return out-of-fold logistic combinations of a score with the token signals."""
    columns = [score, *([row.draft.signals[name] for row in rows] for name in SIGNALS), [row.draft.tokens for row in rows]]
    x = np.stack([np.asarray(column, float) for column in columns], 1)
    x = (x - x.mean(0)) / x.std(0)
    found = np.empty(len(rows))
    for fold in range(folds.max() + 1):
        learn = folds != fold
        found[~learn] = LogisticRegression().fit(x[learn], ~right[learn]).decision_function(x[~learn])
    return found


def auroc(score: np.ndarray, right: np.ndarray, weight: np.ndarray) -> float:
    """Return the probability that a wrong draft scores above a right one, for how often each draft counts."""
    return float(roc_auc_score(~right, score, sample_weight=weight)) if len({*right[weight > 0].tolist()}) == 2 else float("nan")


def by_set(score: np.ndarray, rows: tuple[Row, ...], right: np.ndarray, weight: np.ndarray | None = None) -> dict[str, float]:
    """Return data set -> AUROC of its drafts without passages; sets of questions alone count with their own."""
    names = np.array([row.dataset.removesuffix("-qonly") for row in rows])
    alone = np.array([row.draft.mode == "without" for row in rows])
    weight = np.ones(len(rows)) if weight is None else weight
    return {name: auroc(score[m], right[m], weight[m]) for name in dict.fromkeys(names) if (m := (names == name) & alone).any()}


def mean_auroc(score: np.ndarray, rows: tuple[Row, ...], right: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Return the mean over data sets, by their number of drafts without passages."""
    found = by_set(score, rows, right, weight)
    sizes = [sum(row.dataset.removesuffix("-qonly") == name and row.draft.mode == "without" for row in rows) for name in found]
    return float(np.average(list(found.values()), weights=sizes))


def interval(score: np.ndarray, rows: tuple[Row, ...], right: np.ndarray) -> tuple[float, float]:
    """Bootstrap over questions."""
    keys = {key: place for place, key in enumerate(dict.fromkeys(row.key for row in rows))}
    of = np.array([keys[row.key] for row in rows])
    rng = np.random.default_rng(0)
    drawn = [
        mean_auroc(score, rows, right, np.bincount(rng.integers(0, len(keys), len(keys)), minlength=len(keys))[of]) for _ in range(200)
    ]
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return float(low), float(high)


if __name__ == "__main__":
    main()
