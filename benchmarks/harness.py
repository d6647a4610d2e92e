"""What recording costs: the same questions through `evaluate`, which keeps nothing, and through a run's folder.

python benchmarks/harness.py [--pairs 9] [--questions 24] [--threads 1]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import workload
from report import interleave, interval, save, table

from inward import evaluate, load_lm, load_strategy
from inward.evals.config import load_config
from inward.evals.suite import Loaded, run_suite

MEMORY = """
import json, sys
from inward.evals.config import load_config
from inward.evals.suite import Loaded, run_suite
from inward.testing import FunctionLM
lm = FunctionLM(lambda prompt: " So it is, after some thought.\\nAnswer: yes" * 20)
config = load_config(None, {"strategies": ["no-retrieval"], "data": [sys.argv[1]], "out": sys.argv[2], "model": "m"})
list(run_suite(config, loaded=Loaded(lambda name, **_: lm, lambda name: None)))
# not getrusage: its peak is inherited from the process that started this one
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak) // 1024)
"""


def main() -> None:
    """Run and write results/harness.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lm = load_lm("demo")
    asked = workload.questions()[: args.questions]
    strategy = load_strategy("no-retrieval", lm=lm)
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data = questions(root / "q.jsonl", asked)

        def bare() -> None:
            lm.backend._engine.forget()
            asyncio.run(evaluate(strategy, asked))

        def recorded() -> None:
            lm.backend._engine.forget()
            config = load_config(None, {"strategies": ["no-retrieval"], "data": [data], "out": str(root / f"out{next(numbers)}")})
            list(run_suite(config, loaded=Loaded(lambda name, **_: lm, lambda name: None)))

        bare()
        times = interleave({"bare": bare, "recorded": recorded}, args.pairs)
        ratios = [r / b - 1 for r, b in zip(times["recorded"], times["bare"], strict=True)]
        low, high = interval(ratios)
        sizes = (1_000, 10_000)
        peaks = [peak(root, count) for count in sizes]
    rows = [
        ["slower by: median of pairs", f"{statistics.median(ratios):+.1%}"],
        ["95 % interval (bootstrap)", f"{low:+.1%} to {high:+.1%}"],
    ]
    rows += [
        ["range", f"{min(ratios):+.1%} to {max(ratios):+.1%}"],
        ["median time of the model alone", f"{statistics.median(times['bare']):.1f} s"],
    ]
    rows += [[f"peak resident memory, {n:,} questions on a double", f"{p} MiB"] for n, p in zip(sizes, peaks, strict=True)]
    text = f"""# What recording costs

`python benchmarks/harness.py --pairs {args.pairs} --questions {args.questions} --threads {args.threads}` on {workload.machine()}.
google/gemma-3-270m, fp32, `no-retrieval` (the strategy with the least model time), {args.questions} questions at once; `evaluate` against a run's folder with manifest, a flushed record a question, and the final files; {args.pairs} interleaved pairs.

{table(["", "measured"], rows)}
"""
    save("harness", text)


def questions(path: Path, asked: list[str]) -> str:
    """Write a file of questions."""
    path.write_text("".join(json.dumps({"id": f"q{n}", "question": q, "answers": ["x"]}) + "\n" for n, q in enumerate(asked)))
    return str(path)


def peak(root: Path, count: int) -> int:
    """Peak resident MiB of a process that runs so many questions."""
    data = questions(root / f"m{count}.jsonl", [f"What is number {n}?" for n in range(count)])
    ran = subprocess.run([sys.executable, "-c", MEMORY, data, str(root / f"m{count}")], capture_output=True, text=True, check=True)
    return int(ran.stdout.split()[-1])


if __name__ == "__main__":
    main()
