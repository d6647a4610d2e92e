"""How long ten thousand recorded outcomes take to be scored and reported, and what a finished run costs to look at again.

python benchmarks/scoring.py [--records 10000]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import workload
from report import save, table

from inward.evals.folder import FORMAT, TREC, RunFile, RunFolder
from inward.evals.questions import load_questions
from inward.evals.record import GatedStep, GeneratedStep, Hit, PassageText, Record, SearchedStep

WORDS = [f"word{n}" for n in range(5000)]


def main() -> None:
    """Make runs, time each command in a process of its own, write results/scoring.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=10_000)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for count in (args.records // 10, args.records):
            size = make(root / f"n{count}", count)
            out = root / f"n{count}" / "runs"
            report = timed(["eval", "report", str(out)])
            compare = timed(["eval", "compare", str(out / "q" / "no-retrieval"), str(out / "q" / "single-step")])
            again = timed(
                [
                    "eval",
                    "run",
                    "--strategy",
                    "no-retrieval",
                    "--data",
                    str(root / f"n{count}" / "q.jsonl"),
                    "--out",
                    str(out),
                    "--set",
                    "model=m",
                ]
            )
            rows.append([f"{count:,} × 2", f"{size / 2**20:.0f} MiB", *(f"{s:.1f} s, {m} MiB" for s, m in (report, compare, again))])
    header = ["records × runs", "outcomes.jsonl", "report of both", "compare", "finished run again"]
    text = f"""# Scoring and resuming

`python benchmarks/scoring.py --records {args.records}` on {workload.machine()}.
Synthetic records of the size of real ones (five passages of 100 words, a reasoning, two generations). Each command in a process of its own: wall time, peak resident memory. One measurement each.

{table(header, rows)}
"""
    save("scoring", text)


def timed(arguments: list[str]) -> tuple[float, int]:
    """Seconds and peak MiB of `inward` with these arguments."""
    started = time.perf_counter()
    script = (
        "import sys; from inward.cli import main; code = main(sys.argv[1:]); "  # not getrusage: its peak is inherited
        "print(next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM')) // 1024); raise SystemExit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return time.perf_counter() - started, int(ran.stdout.split()[-1])


def make(root: Path, count: int) -> int:
    """Write questions and two finished runs; return the bytes of their outcomes."""
    draw = random.Random(0)
    root.mkdir()
    rows = [
        {"id": f"q{n}", "question": f"What is {' '.join(draw.choices(WORDS, k=10))}?", "answers": draw.choices(WORDS, k=3)}
        for n in range(count)
    ]
    (root / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = load_questions(root / "q.jsonl")
    total = 0
    from inward.evals.config import load_config
    from inward.evals.suite import plan_suite

    config = load_config(
        None, {"strategies": ["no-retrieval", "single-step"], "data": [str(root / "q.jsonl")], "out": str(root / "runs"), "model": "m"}
    )
    for made in plan_suite(config):
        made.folder.mkdir(parents=True)
        with RunFolder(made.folder) as folder, (made.folder / "outcomes.jsonl").open("wb") as file:
            run = RunFile(format=FORMAT, identity=made.identity, manifest={"data": {"name": "q"}}, finished=True)
            folder.begin(run)
            for question in questions.questions:
                file.write(msgspec.json.encode(record(question, draw)) + b"\n")
        (made.folder / TREC).touch()
        total += (made.folder / "outcomes.jsonl").stat().st_size
    return total


def record(question, draw: random.Random) -> Record:
    """Make a record of the size of a real one."""
    passages = {
        f"d{draw.randrange(10**6)}#0": PassageText(text=" ".join(draw.choices(WORDS, k=100)), title="t", document="d") for _ in range(5)
    }
    text = f"{' '.join(draw.choices(WORDS, k=40))}\nAnswer: {draw.choice(WORDS)}"
    usage = {"generate_calls": 1, "sequences": 1, "prompt_tokens": 900, "completion_tokens": 60, "device_seconds": 1.5}
    steps = (
        GeneratedStep(number=1, texts=(text,), finishes=("stop",), usage=usage),
        GatedStep(number=2, name="mean-nll", value=draw.random(), above=0.5, open=draw.random() < 0.5),
        SearchedStep(number=3, query=question.question, hits=tuple(Hit(id=id, score=1.0) for id in passages), usage={"search_calls": 1}),
        GeneratedStep(number=4, texts=(text,), finishes=("stop",), usage=usage),
    )
    return Record(
        id=question.id, question=question.question, answers=question.answers, supporting=("d",), short=draw.choice([question.answers[0], "other"]),
        text=text, flags=(), used=tuple(passages), steps=steps, passages=passages, usage=usage, seconds=3.0,
    )  # fmt: skip


if __name__ == "__main__":
    main()
