"""Recall on public questions, and memory while building."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from inward.retrieval import build_index, load_retriever

SQUAD = Path(__file__).parents[2] / ".." / "shared" / "data" / "squad"


@pytest.mark.skipif(not SQUAD.exists(), reason="no shared data beside the repository: recall on SQuAD is not measured")
def test_recall_of_five_passages_on_squad(tmp_path: Path):
    """Measured: .90. Without stemming, without lower-casing or with titles left out it falls."""
    build_index(SQUAD / "corpus.jsonl.gz", tmp_path / "index", size=0, progress=False)
    retriever = load_retriever(tmp_path / "index")
    with gzip.open(SQUAD / "questions.test.jsonl.gz", "rt", encoding="utf-8") as lines:
        questions = [question for question in map(json.loads, lines) if question["supporting"]][:100]

    async def recalls() -> list[float]:
        found = await asyncio.gather(*(retriever.search(question["question"], 5) for question in questions))
        return [
            len({p.id for p in passages} & set(question["supporting"])) / len(set(question["supporting"]))
            for passages, question in zip(found, questions, strict=True)
        ]

    recall = sum(asyncio.run(recalls())) / len(questions)
    assert len(questions) == 100
    assert recall >= 0.88


MEMORY = """
import resource, sys
from inward.retrieval import build, build_index
build.HEAP_BYTES = 15_000_000

def anonymous():
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

peak = 0
def rows(count):
    global peak
    for number in range(count):
        if number % 500 == 0:
            peak = max(peak, anonymous())
        yield {"id": str(number), "text": " ".join(f"w{number * 7919 % 9973 + i}" for i in range(100))}

build_index(rows(int(sys.argv[1])), sys.argv[2], progress=False)
print(max(peak, anonymous()))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path):
    """40,000 passages more are 28 MB of text; kept anywhere, they would show. tantivy's merges take a little more (measured: 8 MB)."""
    small, large = (
        int(subprocess.run([sys.executable, "-c", MEMORY, str(count), str(tmp_path / str(count))], capture_output=True, check=True).stdout)
        for count in (20_000, 60_000)
    )
    assert large - small < 16_000  # kB
