"""Picks the thresholds of suite.yaml: for each signal, the value that half of the training questions' drafts exceed.

    python thresholds.py [--each 25]

So each gate looks up about half of the questions: the two gates then differ in which, not in how many. Test questions are not read.
"""

from __future__ import annotations

import argparse
import asyncio
from math import inf
from pathlib import Path

import numpy as np
import yaml

from inward import evaluate, load_lm, load_retriever, load_strategy
from inward.evals.questions import load_questions

HERE = Path(__file__).parent


def main() -> None:
    """Print the thresholds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=25)
    args = parser.parse_args()
    suite = yaml.safe_load((HERE / "suite.yaml").read_text(encoding="utf-8"))
    files = [HERE / data["path"].replace("questions.test", "questions.train") for data in suite["data"]]
    questions = [q.question for file in files for q in load_questions(file, limit=args.each).questions]
    lm, index = load_lm(suite["model"]), load_retriever("demo")  # a gate that never opens searches nothing
    for strategy in suite["strategies"]:
        if "threshold" not in strategy["options"]:
            continue
        prompt = HERE / strategy["options"]["prompt"]
        bound = load_strategy(strategy["name"], lm=lm, retriever=index, threshold=inf, prompt=str(prompt))
        values = [outcome.gates[0].value for outcome in asyncio.run(evaluate(bound, questions))]
        quarters = np.percentile(values, (25, 50, 75))
        print(f"{strategy['name']}: median {quarters[1]:.3f} (quartiles {quarters[0]:.3f}, {quarters[2]:.3f}) over {len(values)} questions")


if __name__ == "__main__":
    main()
