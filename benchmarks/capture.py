"""What capturing internal states costs: the same generations with capture on and off.

python benchmarks/capture.py [--pairs 9] [--threads 2]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time

import torch
import workload
from report import interval, save, table

from inward.lm import BatchedLM, load_lm
from inward.types import Capture, Sampling

ROWS, NEW = 32, 32
CAPTURES = {
    "six layers, mean": Capture(layers=(6, 8, 10, 12, 14, 16), pool="mean"),
    "one layer, every token": Capture(layers=(8,), pool="none"),
}


def main() -> None:
    """Run and write results/capture.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lm = load_lm("demo")
    prompts = workload.prompts(lm.backend.encoder.encode)[:ROWS]
    generate(lm, prompts, None, ())
    rows = []
    for name, capture in CAPTURES.items():
        stop = ("\nQuestion:",)  # states wait until no stop string can cut their token off
        clocks: dict[str, list[tuple[float, float]]] = {"off": [], "on": []}
        for pair in range(args.pairs):
            for which in ("off", "on") if pair % 2 == 0 else ("on", "off"):
                gc.collect()
                wall, cpu = time.perf_counter(), time.process_time()
                generate(lm, prompts, capture if which == "on" else None, stop)
                clocks[which].append((time.perf_counter() - wall, time.process_time() - cpu))
        for clock, measured in enumerate(("wall time", "processor time")):
            ratios = [on[clock] / off[clock] - 1 for on, off in zip(clocks["on"], clocks["off"], strict=True)]
            low, high = interval(ratios)
            spread = f"{min(ratios):+.1%} to {max(ratios):+.1%}"
            rows.append([name, measured, f"{statistics.median(ratios):+.1%}", f"{low:+.1%} to {high:+.1%}", spread])
    text = f"""# Capture on against off

`python benchmarks/capture.py --pairs {args.pairs} --threads {args.threads}` on {workload.machine()}.
google/gemma-3-270m, fp32, {ROWS} rows at once, {NEW} new tokens each, prefix shared; {args.pairs} interleaved pairs. The last token of every row is fed once more when its state is wanted: one step in {NEW + 1}.

{table(["capture", "clock", "slower by: median of pairs", "95 % interval (bootstrap)", "range"], rows)}

Processor time leaves out what other work on the machine took. With one thread it is the cost of the capture itself.
"""
    save("capture", text)


def generate(lm: BatchedLM, prompts: list[str], capture: Capture | None, stop: tuple[str, ...]) -> None:
    """Generate all rows at once."""
    sampling = Sampling(max_tokens=NEW, stop=stop, logit_bias=tuple((i, -1e9) for i in lm.backend.encoder.eos_ids))

    async def all_at_once() -> None:
        await asyncio.gather(*(lm.generate(p, sampling, capture=capture) for p in prompts))

    asyncio.run(all_at_once())


if __name__ == "__main__":
    main()
