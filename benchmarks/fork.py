"""Twenty samples forked from one prefill, against one greedy answer and against twenty prompts: time and memory.

python benchmarks/fork.py [--repeats 5] [--threads 2]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

import torch
import workload
from report import interleave, save, spread, table

from inward.lm import BatchedLM, load_lm
from inward.types import Sampling

N, NEW = 20, 64


def main() -> None:
    """Run and write results/fork.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lm = load_lm("demo", prefix_reuse=False)
    prompt = workload.prompts(lm.backend.encoder.encode)[0]
    n_tokens = lm.count(prompt)
    keys: dict[str, int] = {}

    def run(name: str, prompts: list[str], n: int, temperature: float) -> None:
        keys[name] = generate(lm, prompts, n, temperature)

    contenders = {
        "one greedy answer": lambda: run("one greedy answer", [prompt], 1, 0.0),
        "20 samples, one prefill": lambda: run("20 samples, one prefill", [prompt], N, 1.0),
        "20 prompts, 20 prefills": lambda: run("20 prompts, 20 prefills", [f"{prompt} {i}" for i in range(N)], 1, 1.0),
    }
    generate(lm, [prompt], 2, 1.0, new=4)
    times = interleave(contenders, args.repeats)
    base = statistics.median(times["one greedy answer"])
    rows = [
        [name, spread(values), f"{statistics.median(values) / base:.2f}", f"{keys[name] / 2**20:.0f}"] for name, values in times.items()
    ]
    text = f"""# Samples forked from one prefill

`python benchmarks/fork.py --repeats {args.repeats} --threads {args.threads}` on {workload.machine()}.
google/gemma-3-270m, fp32; a prompt of {n_tokens} tokens, {NEW} new tokens a completion, top-k 50 and top-p 0.9 at temperature 1 where sampled; {args.repeats} interleaved repeats; no prefix reuse between prompts. Keys and values: the most that segments and slabs held at once.

{table(["", "seconds: median (range)", "× one answer", "keys and values, MiB"], rows)}
"""
    save("fork", text)


def generate(lm: BatchedLM, prompts: list[str], n: int, temperature: float, new: int = NEW) -> int:
    """Generate, and return the most bytes that keys and values took."""
    engine = lm.backend._engine
    most = 0
    step = engine.step

    def watched() -> list[object]:
        nonlocal most
        done = step()
        most = max(most, held(engine))
        return done

    engine.step = watched
    sampling = Sampling(
        max_tokens=new, n=n, temperature=temperature, top_k=50, top_p=0.9, logit_bias=tuple((i, -1e9) for i in lm.backend.encoder.eos_ids)
    )

    async def all_at_once() -> None:
        await asyncio.gather(*(lm.generate(p, sampling) for p in prompts))

    try:
        asyncio.run(all_at_once())
    finally:
        del engine.step
    return most


def held(engine: object) -> int:
    """Bytes of keys and values in use."""
    stores = [store for slab in engine._slabs for store in (slab.keys, slab.values)]
    segments = {id(s): s for slab in engine._slabs for s in slab.chain} | {id(s): s for job in engine._jobs for s in job.segment.chain}
    stores += [store for s in segments.values() for store in (s.keys, s.values)]
    return sum(t.numel() * t.element_size() for store in stores for t in store.values())


if __name__ == "__main__":
    main()
