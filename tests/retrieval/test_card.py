"""What an index says of itself, and what is refused."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inward.errors import IndexUnusable, UsageError
from inward.retrieval import BM25Retriever, build_index, info, load_retriever, verify
from inward.retrieval.segments import panics_are_damage

Build = Callable[..., BM25Retriever]
Ids = Callable[..., list[str]]

TEXTS = ["Elephants live in herds.", "Whales sing across oceans.", "Bees dance to point at flowers.", "Ärger über Öl 東京"]


def change(path: Path, **fields: Any) -> None:
    card = json.loads((path / "index.json").read_text(encoding="utf-8"))
    for name, value in fields.items():
        inner, _, field = name.partition("__")
        if field:
            card[inner][field] = value
        else:
            card[name] = value
    (path / "index.json").write_text(json.dumps(card), encoding="utf-8")


def test_I9_a_new_process_finds_what_the_old_one_did(build: Build, tmp_path: Path, search: Callable[..., Any]):
    queries = ["herds of elephants", "song of whales", "bees and flowers"]
    retriever = build(TEXTS)
    before = [[(p.id, p.score) for p in search(retriever, query)] for query in queries]
    assert [found[0][0] for found in before] == ["1", "2", "3"]
    code = (
        "import asyncio, json, sys\nfrom inward import load_retriever\nr = load_retriever(sys.argv[1])\n"
        "print(json.dumps([[(p.id, p.score) for p in asyncio.run(r.search(q))] for q in sys.argv[2:]]))"
    )
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "index"), *queries], capture_output=True, text=True, check=True).stdout
    assert [[tuple(hit) for hit in found] for found in json.loads(out)] == before


def test_I9_another_format_is_refused_naming_both(build: Build, tmp_path: Path):
    build(TEXTS)
    change(tmp_path / "index", format=99, surprise={"of": "the future"})
    with pytest.raises(IndexUnusable, match=r"has format 99, this version reads format 1; build it again: inward index build"):
        load_retriever(tmp_path / "index")


def test_I9_verify_finds_what_is_wrong(build: Build, tmp_path: Path):
    build(TEXTS)
    path = tmp_path / "index"
    assert verify(path).passed
    change(path, passages=5)
    assert [check.name for check in verify(path).checks if not check.passed] == ["passages"]
    change(path, passages=4, documents=3)
    assert [check.name for check in verify(path).checks if not check.passed] == ["documents"]
    change(path, documents=4, content="0" * 32)
    assert [check.name for check in verify(path).checks if not check.passed] == ["content"]


def test_I9_verify_finds_passages_that_cannot_be_found(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An index whose postings are those of other words: every count and every stored text is right."""
    from inward.retrieval import segments

    prepare = segments.prepare
    monkeypatch.setattr(segments, "prepare", lambda text: prepare(text[::-1]))
    build(TEXTS)
    report = verify(tmp_path / "index")
    assert [check.name for check in report.checks if not check.passed] == ["search"]
    assert "0 of 4" in report.checks[-1].detail


@pytest.mark.parametrize("suffix", [".store", ".term", ".idx", ".fieldnorm"])
def test_damaged_or_missing_data_is_an_error_of_ours(build: Build, tmp_path: Path, suffix: str):
    build(TEXTS)
    (file,) = (tmp_path / "index").glob(f"data-*/*{suffix}")
    file.unlink()
    file.touch()  # a new file: one that is cut short in place takes every process down that has it mapped
    with pytest.raises(IndexUnusable, match="cannot be opened"):
        load_retriever(tmp_path / "index")
    file.unlink()
    with pytest.raises(IndexUnusable, match="cannot be opened"):
        load_retriever(tmp_path / "index")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "lexical", "format": 1}'])
def test_a_damaged_card_is_an_error_of_ours(build: Build, tmp_path: Path, content: str):
    build(TEXTS)
    (tmp_path / "index" / "index.json").write_text(content, encoding="utf-8")
    with pytest.raises(IndexUnusable, match=r"index.json of .* cannot be read"):
        load_retriever(tmp_path / "index")


def test_a_card_of_another_commit_is_noticed(build: Build, tmp_path: Path):
    build(TEXTS)
    change(tmp_path / "index", opstamp=10**6)
    with pytest.raises(IndexUnusable, match="its card and its data disagree"):
        load_retriever(tmp_path / "index")


def test_I10_a_moved_index_knows_all_it_returns(tmp_path: Path, ids: Ids):
    build_index([{"id": f"d{n}", "text": f"common word{n}"} for n in range(50)], tmp_path / "here" / "index")
    (tmp_path / "there").mkdir()
    shutil.move(tmp_path / "here" / "index", tmp_path / "there" / "moved")
    retriever = load_retriever(tmp_path / "there" / "moved")
    found = ids(retriever, "common", k=100)
    assert len(found) == len(retriever) == 50
    for id in found:
        passage = retriever.passage(id)
        assert passage is not None
        assert passage.text.startswith("common")
    for file in (tmp_path / "there").rglob("*.json"):
        assert str(tmp_path) not in file.read_text(encoding="utf-8")


def test_I20_the_wrong_kind_is_named(build: Build, tmp_path: Path):
    build(TEXTS)
    change(tmp_path / "index", kind="dense")
    with pytest.raises(IndexUnusable, match=r"is a dense index, need lexical"):
        load_retriever(tmp_path / "index")


def test_I20_a_missing_index_names_the_command_that_builds_it(tmp_path: Path):
    with pytest.raises(IndexUnusable, match=r"no index at '.*nowhere'; build it with: inward index build CORPUS .*nowhere"):
        load_retriever(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexUnusable, match="no index at"):
        load_retriever(tmp_path / "file")


def test_I20_the_index_describes_itself(build: Build, tmp_path: Path):
    retriever = build(TEXTS, size=50, overlap=5)
    found = info(tmp_path / "index")
    assert (found.card.kind, found.card.documents, found.card.passages, found.card.source) == ("lexical", 4, 4, "list")
    assert (found.card.split.size, found.card.split.overlap) == (50, 5)
    assert (found.segments, found.deleted) == (1, 0)
    assert found.fingerprint == retriever.fingerprint
    assert found.bytes > 1000


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("analyser__stemmer", "german", r"was analysed with stemmer='german', this version has 'english'"),
        ("analyser__stopwords", ["the"], r"was analysed with stopwords=\('the',\), this version has"),
        ("analyser_fingerprint", "0" * 16, r"as 0000000000000000, the installed one analyses as"),
    ],
)
def test_R6_an_index_made_otherwise_is_refused_naming_both(build: Build, tmp_path: Path, field: str, value: Any, message: str):
    build(TEXTS)
    change(tmp_path / "index", **{field: value})
    with pytest.raises(IndexUnusable, match=message):
        load_retriever(tmp_path / "index")


def test_fingerprint_is_of_contents_not_of_order_or_time(tmp_path: Path):
    rows = [{"id": str(n), "text": text} for n, text in enumerate(TEXTS)]

    def fingerprint(name: str, rows: list[dict[str, str]], **options: int) -> str:
        build_index(rows, tmp_path / name, **options)
        return BM25Retriever(tmp_path / name).fingerprint

    first = fingerprint("a", rows)
    assert fingerprint("b", rows[::-1]) == first
    assert fingerprint("c", rows, size=50) != first
    assert fingerprint("d", [*rows[:3], {"id": "3", "text": "changed"}]) != first
    assert fingerprint("e", [*rows[:3], {"id": "4", "text": TEXTS[3]}]) != first


def test_the_same_corpus_makes_the_same_ranking_files(build: Build, tmp_path: Path):
    build(TEXTS, path=tmp_path / "a")
    build(TEXTS, path=tmp_path / "b")
    for suffix in ("term", "idx", "fieldnorm"):
        (one,), (other,) = (list((tmp_path / name).glob(f"data-*/*.{suffix}")) for name in "ab")
        assert one.read_bytes() == other.read_bytes()


def test_foreign_folders_are_not_built_into(tmp_path: Path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "love.txt").write_text("x")
    with pytest.raises(UsageError, match=r"holds something else \('love.txt'\)"):
        build_index([{"id": "a", "text": "x"}], tmp_path / "letters")
    with pytest.raises(UsageError, match="is a file"):
        build_index([{"id": "a", "text": "x"}], tmp_path / "letters" / "love.txt")
    assert [p.name for p in (tmp_path / "letters").iterdir()] == ["love.txt"]


def test_I16_nothing_here_needs_java_or_torch(tmp_path: Path):
    code = (
        "import sys\nfrom inward.retrieval import build_index, load_retriever\n"
        "build_index([{'id': 'a', 'text': 'x'}], sys.argv[1], progress=False)\nload_retriever(sys.argv[1])\n"
        "print([m for m in ('jnius', 'pyserini', 'torch', 'transformers', 'faiss') if m in sys.modules])"
    )
    environment = {**os.environ, "PATH": "/nowhere"}
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "i")], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.strip() == "[]"


def test_M4_opening_is_quick_and_reads_no_passages(tmp_path: Path, ids: Ids):
    build_index(({"id": str(n), "text": f"passage number {n} of the many"} for n in range(20_000)), tmp_path / "index", progress=False)
    began = time.perf_counter()
    retriever = load_retriever(tmp_path / "index")
    took = time.perf_counter() - began
    assert took < 0.2
    assert ids(retriever, "19999") == ["19999#0"]


@pytest.mark.parametrize("suffix", [".store", ".term", ".idx", ".fieldnorm", ".fast", ".pos"])
def test_one_bit_that_is_not_as_written_is_seen(build: Build, tmp_path: Path, suffix: str):
    build(TEXTS)
    (file,) = (tmp_path / "index").glob(f"data-*/*{suffix}")
    whole = file.read_bytes()
    rng = random.Random(suffix)
    for place in {0, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(12))}:
        held = bytearray(whole)
        held[place] ^= 1 << rng.randrange(8)
        file.unlink()
        file.write_bytes(held)
        report = verify(tmp_path / "index")
        assert not report.passed, (suffix, place)
        assert file.name in report.checks[0].detail
    file.unlink()
    file.write_bytes(whole)
    assert verify(tmp_path / "index").passed


def test_a_panic_of_the_library_is_an_error_of_ours():
    """tantivy panics at some damage; that is no Exception."""

    class PanicException(BaseException):
        pass

    with pytest.raises(IndexUnusable, match=r"'ix' is damaged \(mid > len\); build the index again"), panics_are_damage("ix"):
        raise PanicException("mid > len")
    with pytest.raises(KeyboardInterrupt), panics_are_damage("ix"):
        raise KeyboardInterrupt
