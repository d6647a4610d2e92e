"""64 questions with a gated strategy: all at once, one at a time, and the bare forward pass they could not beat.

    python benchmarks/gated.py [--repeats 5] [--threads 2]

*One at a time* answers each question alone through transformers' `generate` (cache, sdpa), with no prefix reuse, which is how code
released with papers runs: the same strategy, prompts, stops and signal. Each repeat times another share of the 64, so that five
repeats together answer every question once. *Own loop, one at a time* is the decode loop of this package without prefix reuse, for
one share alone.
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
from report import interleave, save, seconds, spread, table

from inward import evaluate, load_lm, load_retriever, load_strategy
from inward.lm import BatchedLM
from inward.lm.bundled import bundled_path
from inward.lm.head import tile_head, untile_head
from inward.lm.rows import Row
from inward.trace import Generated, current
from inward.types import Generation, Sampling, Usage

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
    theirs = GenerateLM(alone)
    options = {"retriever": retriever, "signal": "mean-nll", "threshold": args.threshold}
    strategies = {"together": load_strategy("gated", lm=shared, **options), "alone": load_strategy("gated", lm=theirs, **options)}
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
    own = load_strategy("gated", lm=alone, **options)
    few = [questions[i] for i in range(0, len(questions), args.repeats)]
    own_seconds = seconds(lambda: asyncio.run(evaluate(own, few, concurrency=1)))
    shares = [len(range(i, len(questions), args.repeats)) for i in range(args.repeats)]
    alone_rates = [n / t for n, t in zip(shares, times["one at a time"], strict=True)]
    save("gated", report(args, times, alone_rates, found, passes, len(few) / own_seconds))


def report(
    args: argparse.Namespace, times: Any, alone_rates: list[float], found: Any, passes: list[tuple[int, int]], own_rate: float
) -> str:
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
                ["questions/s one at a time, `generate`, no prefix reuse", spread(alone_rates)],
                ["questions/s one at a time, own loop, no prefix reuse (one share, once)", f"{own_rate:.3f}"],
                ["together ÷ one at a time", spread(faster)],
                ["time together ÷ time of the bare forward pass in full batches", spread(over)],
            ],
        )
    }

The concurrent run fed {fed} tokens in {len(passes)} passes and made {rows} rows of logits. Rows a decoding pass: median {
        statistics.median(sizes):.0f}, largest {max(sizes)}; {small} of {len(sizes)} passes had 8 rows or fewer.
"""


class GenerateLM:
    """transformers' own loop behind `await`, one call at a time, with what a gate on log-probabilities needs."""

    def __init__(self, lm: BatchedLM) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.lm, self.supports, self.context, self.count = lm, frozenset({"logprobs", "score", "samples"}), lm.context, lm.count
        self.model = AutoModelForCausalLM.from_pretrained(bundled_path("demo"), dtype=torch.float32, attn_implementation="sdpa").eval()
        self.tokenizer = AutoTokenizer.from_pretrained(bundled_path("demo"))

    async def generate(self, prompt: Any, sampling: Sampling, *, capture: Any = None) -> Generation:
        """Generate greedily; the text, the kept tokens and their log-probabilities are read as everywhere."""
        encoder = self.lm.backend.encoder
        ids = torch.tensor([encoder.encode(prompt)])
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=sampling.max_tokens,
                stop_strings=list(sampling.stop) or None, tokenizer=self.tokenizer, eos_token_id=list(encoder.eos_ids), pad_token_id=0,
                return_dict_in_generate=True, output_logits=bool(sampling.token_scores), top_k=None, top_p=None,
            )  # fmt: skip
        new = out.sequences[0, ids.shape[1] :].tolist()
        row = Row.start(encoder, tuple(ids[0].tolist()), sampling, 0, 0)
        for place, token in enumerate(new):
            logprob = float(out.logits[place][0].log_softmax(-1)[token]) if sampling.token_scores else 0.0
            row.accept(token, frozenset(encoder.eos_ids), {"logprobs": logprob}, None)
            if row.finish:
                break
        usage = Usage(generate_calls=1, sequences=1, prompt_tokens=ids.shape[1], completion_tokens=len(new))
        trace = current()
        trace.add(
            Generated(
                number=trace.issue(), prompt=prompt, texts=(row.completion(None).text,), finishes=(row.finish or "length",), usage=usage
            )
        )
        return Generation(completions=(row.completion(None),), usage=usage)

    async def score(self, *_: Any, **__: Any) -> Any:
        """Nothing here asks for it."""
        raise NotImplementedError


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
