"""64 questions with a gated strategy: all at once, one at a time, and the bare forward pass they could not beat.

    python benchmarks/gated.py [--repeats 5] [--threads 2]

*One at a time* answers each question alone with no prefix reuse. Each repeat times another share of the 64, so that
five repeats together answer every question once.
*Bare forward* replays the tokens of the concurrent run through the model alone, in full batches: prompt tokens as
sequences of 512, generated tokens as 64 rows with logits for each; no cache, no text, no decisions; the model as transformers has it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from typing import Any

import torch
import workload
from report import interleave, save, spread, table

from inward import evaluate, load_lm, load_retriever, load_strategy
from inward.lm import BatchedLM
from inward.lm.head import tile_head, untile_head

QUESTIONS = 64
ROWS, SEQUENCE = 64, 512


def main() -> None:
    """Run and write results/gated.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--threshold", type=float, default=0.6)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    retriever = load_retriever("demo")
    shared = load_lm("demo")
    alone = load_lm("demo", prefix_reuse=False)
    options = {"retriever": retriever, "signal": "mean-nll", "threshold": args.threshold}
    strategies = {"together": load_strategy("gated", lm=shared, **options), "alone": load_strategy("gated", lm=alone, **options)}
    questions = workload.questions()[:QUESTIONS]
    found: dict[str, list[Any]] = {}
    passes: list[tuple[int, int]] = []

    def together() -> None:
        nonlocal passes
        shared.backend._engine.forget()
        before = len(shared.backend.passes)
        found["together"] = asyncio.run(evaluate(strategies["together"], questions, concurrency=QUESTIONS))
        passes = shared.backend.passes[before:]

    turn = 0
    found["alone"] = [None] * len(questions)

    def one_at_a_time() -> None:
        nonlocal turn
        places = range(turn % args.repeats, len(questions), args.repeats)
        turn += 1
        for place, outcome in zip(
            places, asyncio.run(evaluate(strategies["alone"], [questions[i] for i in places], concurrency=1)), strict=True
        ):
            found["alone"][place] = outcome

    asyncio.run(evaluate(strategies["together"], questions[:8], concurrency=8))
    together()
    times = interleave({"together": together, "bare": lambda: replay(shared, passes), "one at a time": one_at_a_time}, args.repeats)
    shares = [len(range(i, len(questions), args.repeats)) for i in range(args.repeats)]
    alone_rates = [n / t for n, t in zip(shares, times["one at a time"], strict=True)]
    save("gated", report(args, times, alone_rates, found, passes))


def report(args: argparse.Namespace, times: Any, alone_rates: list[float], found: Any, passes: list[tuple[int, int]]) -> str:
    """Write it up."""
    same = sum(a.answer.text == b.answer.text for a, b in zip(found["together"], found["alone"], strict=True))
    opened = sum(any(g.open for g in o.gates) for o in found["together"])
    over = [a / b for a, b in zip(times["together"], times["bare"], strict=True)]
    faster = [QUESTIONS / t / rate for t, rate in zip(times["together"], alone_rates, strict=True)]
    fed, rows = sum(n for n, _ in passes), sum(r for _, r in passes)
    sizes = [r for _, r in passes if r]
    small = sum(r <= 8 for r in sizes)
    return f"""# 64 gated questions

`python benchmarks/gated.py --repeats {args.repeats} --threads {args.threads} --threshold {args.threshold}` on {workload.machine()}.
google/gemma-3-270m, fp32; `gated` on mean-nll above {args.threshold}, demo passages, the shipped prompt; the gate opened for {opened} of {
        QUESTIONS
    }. Equal answers, together against alone: {same}/{QUESTIONS}.

{
        table(
            ["", "median (range)"],
            [
                ["questions/s together", spread([QUESTIONS / t for t in times["together"]])],
                ["questions/s one at a time, no prefix reuse", spread(alone_rates)],
                ["together ÷ one at a time", spread(faster)],
                ["time together ÷ time of the bare forward pass in full batches", spread(over)],
            ],
        )
    }

The concurrent run fed {fed} tokens in {len(passes)} passes and made {rows} rows of logits. Rows a decoding pass: median {
        statistics.median(sizes):.0f}, largest {max(sizes)}; {small} of {len(sizes)} passes had 8 rows or fewer.
"""


def replay(lm: BatchedLM, passes: list[tuple[int, int]]) -> None:
    """Feed the same number of tokens, and make as many rows of logits, in full batches."""
    model = lm.backend.model
    own = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    untile_head(model)
    decoded = sum(rows for _, rows in passes)
    prompt = sum(fed for fed, _ in passes) - decoded
    ids = torch.arange(1000, 1000 + max(ROWS, SEQUENCE))
    with torch.inference_mode():
        for _ in range(round(decoded / ROWS)):
            model(input_ids=ids[:ROWS, None], use_cache=False).logits.argmax(-1)
        for _ in range(round(prompt / SEQUENCE)):
            model(input_ids=ids[None, :SEQUENCE], use_cache=False, logits_to_keep=1)
    model.set_attn_implementation(own)
    tile_head(model)


if __name__ == "__main__":
    main()
