"""How the demo's thresholds were picked: every demo question is drafted and looked up once, then every threshold is replayed.

    python benchmarks/demo_threshold.py

Prints, for each token signal, how many answers are right at each threshold and the one that is proposed: most right answers,
then fewest searches, in the middle of its gap. It is picked and judged on the same 60 questions: something to look at, no calibration.
"""

from __future__ import annotations

import asyncio
import json
from importlib.resources import files

from inward import evaluate, load_lm, load_retriever
from inward.explain import names
from inward.protocols import LM, Retriever
from inward.signals import SIGNALS, load_signal
from inward.strategies import load_strategy
from inward.strategies.drafting import write
from inward.trace import gate
from inward.types import Answer, Generation, Passage, Reading, Sampling


class Every:
    """All token signals at once, as the parts of one reading."""

    name, capture = "every", None

    def wants(self, sampling: Sampling) -> Sampling:
        for name in SIGNALS:
            sampling = load_signal(name).wants(sampling)
        return sampling

    async def __call__(self, generation: Generation) -> Reading:
        parts = {name: (await load_signal(name)(generation)).value for name in SIGNALS}
        return Reading(value=parts["mean-nll"], parts=parts)


async def both(question: str, *, lm: LM, retriever: Retriever, k: int = 5) -> Answer:
    """Answer without and with passages; both answers in one text, a line each."""
    alone = await write(question, lm=lm, signal=Every())
    reading = await Every()(alone.generation)
    gate("every", reading.value, above=float("-inf"), parts=reading.parts)
    read = await write(question, await retriever.search(question, k), lm=lm)
    return Answer(text=f"{alone.answer.short}\n{read.answer.short}", short=read.answer.short)


def right(short: str, answers: list[str]) -> bool:
    """Whether one of the accepted answers is in the given one, at word boundaries."""
    given = Passage(id="given", text=short)
    return any(names(given, answer) for answer in answers)


def main() -> None:
    rows = [json.loads(line) for line in files("inward").joinpath("demo", "questions.jsonl").read_text("utf-8").splitlines()]
    strategy = load_strategy(both, lm=load_lm("demo"), retriever=load_retriever("demo"))
    outcomes = asyncio.run(evaluate(strategy, [row["question"] for row in rows]))
    seen = []
    for row, outcome in zip(rows, outcomes, strict=True):
        assert outcome.error is None, outcome.error
        alone, _, read = outcome.answer.text.partition("\n")
        seen.append((outcome.gates[0].parts, right(alone, row["answers"]), right(read, row["answers"])))
        print(f"{seen[-1][0]['mean-nll']:.3f} {seen[-1][1]:d} {seen[-1][2]:d} {row['id']:24} {alone[:40]!r:44} {read[:40]!r}")
    print(
        f"right without passages {sum(s[1] for s in seen)}, with {sum(s[2] for s in seen)}, best choice {sum(s[1] or s[2] for s in seen)} of {len(seen)}"
    )
    for name in SIGNALS:
        values = sorted(parts[name] for parts, _, _ in seen)
        edges = [values[0] - 0.1, *values, values[-1] + 0.1]
        options = []
        for low, high in zip(edges, edges[1:], strict=False):
            above = (low + high) / 2
            options.append((sum(r if p[name] > above else a for p, a, r in seen), -sum(p[name] > above for p, _, _ in seen), above))
        correct, searches, above = max(options)
        print(f"{name:18} threshold {above:.3f}: {correct} right with {-searches} searches")


if __name__ == "__main__":
    main()
