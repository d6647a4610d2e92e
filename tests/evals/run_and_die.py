"""Runs a suite of doubles in forked children that die at chosen moments, and prints what was found after each, as JSON lines.

Arguments: folder, fault, moments, seed. Faults: "time" (a random moment), "append" (half a line written), "fsync", "replace".
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inward.evals.folder as folder_module
from inward.evals.config import load_config
from inward.evals.suite import Loaded, run_suite
from inward.testing import FixedRetriever, FunctionLM
from inward.types import Passage

QUESTIONS = 40


def configure(root: Path, out: str) -> Any:
    data = root / "q.jsonl"
    if not data.exists():
        rows = [{"id": f"q{n}", "question": f"Question number {n}?", "answers": [f"a{n}"], "supporting": ["p"]} for n in range(QUESTIONS)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return load_config(
        None,
        {
            "strategies": [{"name": "gated(mean-nll)", "options": {"threshold": 0.5}}],
            "data": [{"path": str(data)}],
            "out": str(root / out),
            "concurrency": 5,
            "model": "double",
        },
    )


def go(root: Path, out: str, slow: float = 0.0) -> None:
    """Run the suite; every question that the model sees is logged."""
    log = os.open(root / f"{out}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def reply(prompt: str) -> str:
        number = prompt.rpartition("number ")[2].partition("?")[0]
        if "Zymurgia" not in prompt.rpartition("Question:")[0][-400:]:
            os.write(log, f"q{number}\n".encode())
        if slow:
            time.sleep(slow)
        if number == "13":
            raise RuntimeError("unlucky")
        return f" It is so.\nAnswer: a{number if int(number) % 3 else 0}"

    lm = FunctionLM(reply, scores={"logprobs": lambda text: -(len(text) % 7) / 5})
    index = FixedRetriever([Passage(id="p", title="Zymurgia", text="Zymurgia.", score=3.0), Passage(id="p 2", text="more", score=3.0)])
    for _ in run_suite(configure(root, out), loaded=Loaded(lambda name, **_: lm, lambda name: index)):
        pass


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def break_at(fault: str, moment: int) -> Callable[[], None]:
    """Return a count-down that is put into `fault`'s place."""
    left = [moment]

    def due() -> bool:
        left[0] -= 1
        return left[0] < 0

    def put() -> None:
        if fault == "append":
            original = folder_module.RunFolder.append

            def append(self: Any, record: Any) -> None:
                if not due():
                    return original(self, record)
                import msgspec

                line = msgspec.json.encode(record)
                with (self.path / folder_module.OUTCOMES).open("ab") as file:
                    file.write(line[: len(line) // 2])
                return die()

            folder_module.RunFolder.append = append  # type: ignore[method-assign]
            return
        original_call = getattr(os, fault)

        def call(*args: Any, **kwargs: Any) -> Any:
            if due():
                die()
            return original_call(*args, **kwargs)

        setattr(os, fault, call)

    return put


def child(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid


def complete_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [json.loads(line)["id"] for line in path.read_bytes().split(b"\n")[:-1]]


def main() -> None:
    root, fault, moments, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    draw = random.Random(seed)
    root.mkdir(exist_ok=True)
    os.waitpid(child(lambda: go(root, "whole", 0.002)), 0)
    began = time.perf_counter()
    os.waitpid(child(lambda: go(root, "timed", 0.002)), 0)
    took = time.perf_counter() - began
    last = QUESTIONS + 2  # two flushes begin a run, six end it
    chosen = {
        "time": [0] * moments,
        "append": draw.sample(range(QUESTIONS), moments),
        "fsync": [0, 1, draw.randrange(2, last), *range(last, last + 6)][:moments],
        "replace": list(range(moments)),
    }[fault]
    for number in range(moments):
        out = f"run{number}"
        for left in (root / out, root / f"{out}.log"):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        if fault == "time":
            pid = child(lambda: go(root, out, 0.002))  # noqa: B023
            time.sleep(draw.uniform(0, took))
            os.kill(pid, signal.SIGKILL)
        else:
            put = break_at(fault, chosen[number])
            pid = child(lambda: (put(), go(root, out)))  # noqa: B023
        _, status = os.waitpid(pid, 0)
        outcomes = root / out / "q" / "gated(mean-nll)" / "outcomes.jsonl"
        done = complete_lines(outcomes)
        (root / f"{out}.log").unlink(missing_ok=True)
        _, again = os.waitpid(child(lambda: go(root, out)), 0)  # noqa: B023
        log = root / f"{out}.log"
        found = {
            "died": os.WIFSIGNALED(status),
            "again": again,
            "done": done,
            "asked": log.read_text().split() if log.exists() else [],
            "left": sorted(p.name for p in outcomes.parent.iterdir()) if outcomes.parent.exists() else [],
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
