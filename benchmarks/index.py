"""The lexical index at a million passages: build rate, memory, disk, opening, searching.

    python benchmarks/index.py                                  # 1,000,000 synthetic passages
    python benchmarks/index.py --data DIR                       # sentences of DIR/*/corpus.jsonl.gz, reshuffled
    python benchmarks/index.py --passages 100000 --out -        # a quick look, on the terminal

The corpus is written first and its time counts for nothing. The build and the searches run in processes of
their own, so that memory is theirs alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 100
"""Words of a passage."""
VOCABULARY = 300_000
CHUNK = 10_000
GOALS = {"build_per_second": 10_000, "peak_rss_mb": 1000, "open_cold_s": 0.2}


def vocabulary() -> np.ndarray:
    """Stop words first, then made-up words that grow longer with their rank, as in English."""
    from inward.retrieval.analysis import STOPWORDS

    syllables = [c + v for c in "bcdfghjklmnprstvw" for v in "aeiou"]
    words = list(STOPWORDS)
    for rank in range(VOCABULARY - len(words)):
        rest, word = rank, syllables[rank % len(syllables)]
        while rest := rest // len(syllables):
            word += syllables[rest % len(syllables)]
        words.append(word + "nstrl"[rank % 5])
    return np.array(words, dtype=object)


def zipf_passages(count: int, seed: int) -> Iterator[list[str]]:
    """Words by Zipf and Mandelbrot's law, the same for the same seed."""
    words = vocabulary()
    weights = 1 / (np.arange(VOCABULARY) + 2.7) ** 1.05
    cumulative = np.cumsum(weights / weights.sum())
    rng = np.random.default_rng(seed)
    for start in range(0, count, CHUNK):
        draws = np.searchsorted(cumulative, rng.random((min(CHUNK, count - start), WORDS)))
        for row in words[np.minimum(draws, VOCABULARY - 1)]:
            yield row.tolist()


def real_passages(folder: Path, count: int, seed: int) -> Iterator[list[str]]:
    """Sentences of real corpora in random order, cut every hundred words; used again when they run out."""
    from inward.sentences import split_sentences

    sentences = []
    for corpus in sorted(folder.glob("*/corpus.jsonl.gz")):
        with gzip.open(corpus, "rt", encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                sentences += [text[a:b].split() for a, b in split_sentences(text)]
    rng = random.Random(seed)
    pending: list[str] = []
    made = 0
    while True:
        rng.shuffle(sentences)
        for sentence in sentences:
            pending += sentence
            while len(pending) >= WORDS:
                yield pending[:WORDS]
                del pending[:WORDS]
                made += 1
                if made == count:
                    return


def write_corpus(path: Path, passages: Iterator[list[str]]) -> None:
    with path.open("w", encoding="utf-8") as out:
        for number, words in enumerate(passages):
            text = ". ".join(" ".join(words[at : at + 20]).capitalize() for at in range(0, WORDS, 20)) + "."
            out.write(json.dumps({"id": str(number), "title": " ".join(words[:2]), "text": text}, ensure_ascii=False) + "\n")


def peak_rss_mb() -> float:
    """Most memory that this process held; `getrusage` would count what its parent held before it started."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) * 1.024 / 1000


def build(corpus: str, index: str, size: int) -> dict[str, Any]:
    from inward.retrieval import build_index

    began = time.process_time()
    report = build_index(corpus, index, size=size, progress=False)
    return {
        "passages": report.passages,
        "seconds": report.seconds,
        "cpu_seconds": time.process_time() - began,
        "bytes": report.bytes,
        "peak_rss_mb": peak_rss_mb(),
    }


def drop_from_page_cache(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stored:
                os.posix_fadvise(stored.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def search(index: str, queries: list[str]) -> dict[str, Any]:
    from inward.retrieval import load_retriever

    drop_from_page_cache(Path(index))
    began = time.perf_counter()
    retriever = load_retriever(index)
    opened = time.perf_counter() - began

    async def one_by_one() -> list[float]:
        taken = []
        for query in queries:
            began = time.perf_counter()
            await retriever.search(query, 5)
            taken.append(time.perf_counter() - began)
        return taken

    async def together() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(retriever.search(query, 5) for query in queries))
        return len(queries) / (time.perf_counter() - began)

    first, *rest = asyncio.run(one_by_one())
    began = time.perf_counter()
    load_retriever(index)
    reopened = time.perf_counter() - began
    warm = asyncio.run(one_by_one())
    return {
        "open_cold_s": opened,
        "open_warm_s": reopened,
        "first_query_ms": first * 1000,
        "cold_p50_ms": statistics.median(rest) * 1000,
        "p50_ms": statistics.median(warm) * 1000,
        "p95_ms": statistics.quantiles(warm, n=20)[-1] * 1000,
        "together_per_second": asyncio.run(together()),
        "rss_after_mb": peak_rss_mb(),
    }


def in_process(*arguments: str) -> dict[str, Any]:
    ran = subprocess.run([sys.executable, __file__, "--part", *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


class PeakBytes(threading.Thread):
    """The most that a folder held while something else was running."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.peak, self.over = folder, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            total = 0
            for file in self.folder.rglob("*"):
                try:
                    total += file.stat().st_size
                except FileNotFoundError:
                    continue
            self.peak = max(self.peak, total)


def machine() -> str:
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next((line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def queries_of(corpus: Path, count: int, seed: int) -> list[str]:
    """Eight words, in order, of passages drawn evenly: as long as a question, and there is something to find."""
    rng = random.Random(seed)
    total = sum(1 for _ in corpus.open("rb"))
    wanted = set(rng.sample(range(total), min(count, total)))
    queries = []
    with corpus.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number in wanted:
                words = json.loads(line)["text"].split()
                at = sorted(rng.sample(range(len(words)), 8))
                queries.append(" ".join(words[i] for i in at))
    return queries


def table(args: argparse.Namespace, made: dict[str, Any], found: dict[str, Any], text_bytes: int, peak_disk: int, load: float) -> str:
    import tantivy

    rate = made["passages"] / made["seconds"]
    verdicts = {"build_per_second": rate >= GOALS["build_per_second"]}
    verdicts |= {key: {**made, **found}[key] < GOALS[key] for key in ("peak_rss_mb", "open_cold_s")}
    mark = {key: "met" if ok else "MISSED" for key, ok in verdicts.items()}
    kind = f"sentences of real corpora, reshuffled ({Path(args.data).name})" if args.data else "synthetic (Zipf)"
    rows = [
        ("built", f"{rate:,.0f} passages/s", f"at least 10,000: {mark['build_per_second']}"),
        ("time, wall / CPU of all threads", f"{made['seconds']:.1f} / {made['cpu_seconds']:.1f} s", ""),
        ("peak resident memory of the build", f"{made['peak_rss_mb']:.0f} MB", f"under 1,000 MB: {mark['peak_rss_mb']}"),
        ("index on disk, text included", f"{made['bytes'] / 1e6:,.0f} MB", f"{made['bytes'] / text_bytes:.2f} of the corpus"),
        ("most on disk while building", f"{peak_disk / 1e6:,.0f} MB", f"{peak_disk / text_bytes:.2f} of the corpus"),
        (
            "opened, page cache dropped / warm",
            f"{found['open_cold_s']:.3f} / {found['open_warm_s']:.3f} s",
            f"under 0.2 s: {mark['open_cold_s']}",
        ),
        ("first search after opening cold", f"{found['first_query_ms']:.1f} ms", ""),
        ("search, first round (cold pages), p50", f"{found['cold_p50_ms']:.2f} ms", ""),
        ("search, one at a time, p50 / p95", f"{found['p50_ms']:.2f} / {found['p95_ms']:.2f} ms", ""),
        ("searches asked for together", f"{found['together_per_second']:,.0f} /s", "one thread"),
        ("peak resident memory of the searches", f"{found['rss_after_mb']:.0f} MB", "memory-mapped pages included"),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    head = (
        f"# Lexical index, {made['passages']:,} passages of {WORDS} words\n\n"
        f"{datetime.now(UTC):%Y-%m-%d}; {machine()}; {tantivy.__version__}; load average before the start {load:.2f}.\n"
        f"Corpus: {kind}, {text_bytes / 1e6:,.0f} MB of JSONL, seed {args.seed}, split at {args.size} words. "
        f"{args.queries} queries of eight words, five passages each. One run.\n"
        f"Repeat: `python benchmarks/index.py --passages {args.passages}{' --data DIR' if args.data else ''}`\n\n"
        "| what | measured | goal, remark |\n| --- | --- | --- |\n"
    )
    return head + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--data", default=None, help="folder with */corpus.jsonl.gz")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--work", default=None, help="folder for the corpus and the index (3 GB for a million); removed afterwards")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "index.md"), help="- prints")
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="inward-index-", dir=args.work))
    try:
        load = os.getloadavg()[0]
        corpus, index = work / "corpus.jsonl", work / "index"
        passages = real_passages(Path(args.data), args.passages, args.seed) if args.data else zipf_passages(args.passages, args.seed)
        write_corpus(corpus, passages)
        (work / "queries.json").write_text(json.dumps(queries_of(corpus, args.queries, args.seed)))
        watch = PeakBytes(index)
        watch.start()
        made = in_process("build", str(corpus), str(index), str(args.size))
        watch.over.set()
        watch.join()
        found = in_process("search", str(index), str(work / "queries.json"))
        result = table(args, made, found, corpus.stat().st_size, max(watch.peak, made["bytes"]), load)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if args.out != "-":
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        Path(args.out).write_text(result, encoding="utf-8")
    print(result)


def part(name: str, *arguments: str) -> None:
    if name == "build":
        print(json.dumps(build(arguments[0], arguments[1], int(arguments[2]))))
    else:
        print(json.dumps(search(arguments[0], json.loads(Path(arguments[1]).read_text()))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        part(*sys.argv[2:])
    else:
        main()
