"""The decode loop against transformers' `generate`, both emitting the same tokens.

    python benchmarks/decode.py [--dtype float32] [--repeats 5] [--threads 2] [--prompts 64] [--new 80]

64 prompts share a four-shot prefix of about 480 tokens; 80 new tokens each, greedy, end tokens ignored on both
sides so that the work is the same. `generate` runs at batch 32, left-padded, with its cache and sdpa.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

import torch
import workload
from report import interleave, save, spread, table

from inward.lm import BatchedLM, load_lm
from inward.lm.bundled import bundled_path
from inward.types import Sampling

NEW = 80
BATCH = 32


def main() -> None:
    """Run and write results/decode-<dtype>.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new", type=int, default=NEW)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    lm = load_lm("demo", dtype=args.dtype)
    backend = lm.backend
    end = backend.encoder.eos_ids
    prompts = workload.prompts(backend.encoder.encode)[: args.prompts]
    ids = [list(backend.encoder.encode(p)) for p in prompts]
    theirs = Generate(args.dtype, end)
    tokens: dict[str, list[list[int]]] = {}

    def ours(name: str, scores: tuple[str, ...] = ()) -> None:
        tokens[name] = run(lm, prompts, end, scores, args.new)

    contenders = {
        "generate": lambda: tokens.__setitem__("generate", theirs(ids, args.new)),
        "inward": lambda: ours("inward"),
        "inward + scores": lambda: ours("inward + scores", ("logprobs", "entropies", "energies")),
    }
    for work in (lambda: theirs(ids[:BATCH], 8), lambda: run(lm, prompts, end, (), 8)):  # warm up
        work()
    times = interleave(contenders, args.repeats)
    total = len(prompts) * args.new
    rows = []
    for name, values in times.items():
        ratios = [g / v for g, v in zip(times["generate"], values, strict=True)]
        same = sum(a == b for x, y in zip(tokens["generate"], tokens[name], strict=True) for a, b in zip(x, y, strict=True)) / total
        rows.append([name, spread([total / v for v in values]), spread(ratios), f"{same:.4f}", share(tokens["generate"], tokens[name])])
    header = ["", "tokens/s: median (range)", "× generate: median (range)", "equal tokens", "equal answers"]
    text = f"""# Decode loop against `generate`, {args.dtype}

`python benchmarks/decode.py --dtype {args.dtype} --repeats {args.repeats} --threads {args.threads} --prompts {args.prompts} --new {args.new}` on {workload.machine()}.
google/gemma-3-270m; {len(prompts)} prompts of {min(map(len, ids))}–{max(map(len, ids))} tokens sharing a prefix of {common(ids)}, {args.new} new tokens each, greedy; `generate` at batch {BATCH} (cache, sdpa, left padding), ours with all {len(prompts)} at once and a cold prefix store in every repeat. {args.repeats} interleaved repeats.

{table(header, rows)}

Median times: {", ".join(f"{k} {statistics.median(v):.1f} s" for k, v in times.items())}.
"""
    save(f"decode-{args.dtype}", text)


def share(a: list[list[int]], b: list[list[int]]) -> str:
    """How many answers are equal throughout."""
    return f"{sum(x == y for x, y in zip(a, b, strict=True))}/{len(a)}"


def common(ids: list[list[int]]) -> int:
    """Length of the prefix that all prompts share."""
    return next(i for i, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1)


def run(lm: BatchedLM, prompts: list[str], end: tuple[int, ...], scores: tuple[str, ...], new: int) -> list[list[int]]:
    """Generate all at once, end tokens banned, nothing cached from the repeat before."""
    lm.backend._engine.forget()
    sampling = Sampling(max_tokens=new, token_scores=scores, logit_bias=tuple((i, -1e9) for i in end))

    async def all_at_once() -> list[list[int]]:
        done = await asyncio.gather(*(lm.generate(p, sampling) for p in prompts))
        return [list(g.completions[0].token_ids) for g in done]

    return asyncio.run(all_at_once())


class Generate:
    """The baseline at its best: transformers' own loop."""

    def __init__(self, dtype: str, end: tuple[int, ...]) -> None:
        from transformers import AutoModelForCausalLM

        self.end = end
        self.model = AutoModelForCausalLM.from_pretrained(
            bundled_path("demo"), dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()

    def __call__(self, ids: list[list[int]], new: int) -> list[list[int]]:
        out: list[list[int]] = []
        for i in range(0, len(ids), BATCH):
            batch = ids[i : i + BATCH]
            width = max(map(len, batch))
            padded = torch.tensor([[0] * (width - len(x)) + x for x in batch])
            mask = torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in batch])
            with torch.inference_mode():
                done = self.model.generate(
                    input_ids=padded,
                    attention_mask=mask,
                    max_new_tokens=new,
                    min_new_tokens=new,
                    do_sample=False,
                    eos_token_id=list(self.end),
                    pad_token_id=0,
                    suppress_tokens=list(self.end),
                )
            out.extend(done[:, width:].tolist())
        return out


if __name__ == "__main__":
    main()
