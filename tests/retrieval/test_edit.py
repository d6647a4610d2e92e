"""Adding, deleting, merging, and who sees it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inward.errors import BadCorpus, BadInput, IndexUnusable
from inward.retrieval import BM25Retriever, add, build_index, delete, info, merge, verify

Build = Callable[..., BM25Retriever]
Ids = Callable[..., list[str]]

TEXTS = ["the cat sat on the mat", "a dog and a cat", "birds sing in the morning", "the dog barks at birds in the morning"]
QUERIES = ["cat", "dog", "birds morning", "cat dog birds"]


def rows(*numbers: int) -> list[dict[str, str]]:
    return [{"id": str(n), "text": TEXTS[n]} for n in numbers]


def scores(retriever: BM25Retriever, search: Callable[..., Any]) -> list[list[tuple[str, Any]]]:
    return [[(p.id, pytest.approx(p.score, abs=1e-6)) for p in search(retriever, query, k=10)] for query in QUERIES]


def test_I17_adding_equals_rebuilding(build: Build, tmp_path: Path, search: Callable[..., Any]):
    retriever = build(rows(0, 1, 2))
    report = add(rows(3), tmp_path / "index")
    assert (report.added, report.documents, report.passages) == (1, 4, 4)
    rebuilt = build(rows(0, 1, 2, 3), path=tmp_path / "rebuilt")
    assert scores(retriever, search) == scores(rebuilt, search)
    assert retriever.fingerprint == rebuilt.fingerprint


def test_I17_deleting_takes_away_and_scores_equal_a_rebuild_once_merged(build: Build, tmp_path: Path, ids: Ids, search: Callable[..., Any]):
    retriever = build(rows(0, 1, 2, 3))
    report = delete(["1", "nope", "1"], tmp_path / "index")
    assert (report.deleted, report.missing, report.documents) == (1, ("nope",), 3)
    assert ids(retriever, "dog cat") == ["0", "3"]
    rebuilt = build(rows(0, 2, 3), path=tmp_path / "rebuilt")
    assert scores(retriever, search) != scores(rebuilt, search)  # the deleted passage still counts in the statistics
    assert info(tmp_path / "index").deleted == 1
    merge(tmp_path / "index")
    assert scores(retriever, search) == scores(rebuilt, search)
    assert info(tmp_path / "index").deleted == 0
    assert retriever.fingerprint == rebuilt.fingerprint


def test_I17_a_document_added_again_replaces_all_its_passages(tmp_path: Path, ids: Ids, search: Callable[..., Any]):
    long = "Cats sleep for most of the day. " * 30
    build_index([{"id": "a", "text": long}, {"id": "b", "text": "Dogs run."}], tmp_path / "index", size=20)
    retriever = BM25Retriever(tmp_path / "index")
    assert len(retriever) > 5
    report = add([{"id": "a", "text": "Birds fly."}, {"id": "b", "text": "Dogs run."}], tmp_path / "index")
    assert (report.added, report.updated, report.unchanged, report.passages) == (0, 1, 1, 2)
    assert ids(retriever, "cats") == []
    assert ids(retriever, "birds") == ["a#0"]
    assert verify(tmp_path / "index").passed
    merge(tmp_path / "index")
    build_index([{"id": "b", "text": "Dogs run."}, {"id": "a", "text": "Birds fly."}], tmp_path / "rebuilt", size=20)
    assert retriever.fingerprint == BM25Retriever(tmp_path / "rebuilt").fingerprint
    assert search(retriever, "birds") == search(BM25Retriever(tmp_path / "rebuilt"), "birds")


def test_documents_are_added_with_the_split_of_the_index(tmp_path: Path, ids: Ids):
    build_index([{"id": "a", "text": "x"}], tmp_path / "index", size=5)
    add([{"id": "b", "text": "One two three four. Five six seven eight."}], tmp_path / "index")
    assert [p.id for p in BM25Retriever(tmp_path / "index").document("b")] == ["b#0", "b#20"]


def test_duplicates_within_what_is_added(build: Build, tmp_path: Path, ids: Ids):
    retriever = build(rows(0, 1))
    report = add([{"id": "1", "text": "first"}, {"id": "1", "text": "second"}, {"id": "1", "text": "second"}], tmp_path / "index")
    assert (report.updated, report.replaced, report.repeated, report.documents) == (1, 1, 1, 2)
    assert ids(retriever, "first dog") == []
    assert ids(retriever, "second") == ["1"]
    assert verify(tmp_path / "index").passed


def test_going_back_to_what_was_there(build: Build, tmp_path: Path):
    retriever = build(rows(0, 1))
    before = retriever.fingerprint
    add([{"id": "1", "text": "other"}], tmp_path / "index")
    assert retriever.fingerprint != before
    add(rows(1), tmp_path / "index")
    assert retriever.fingerprint == before


def test_metadata_survives_a_merge_and_still_filters(build: Build, tmp_path: Path, ids: Ids):
    retriever = build([{"id": "a", "text": "dog", "tenant": "t", "tags": ["x"]}, {"id": "b", "text": "dog"}])
    merge(tmp_path / "index")
    assert ids(retriever, "dog", where={"tenant": "t", "tags": "x"}) == ["a"]


@pytest.mark.parametrize("bad", [b'{"id": "z", "text": "caf\xe9"}\n', b"nonsense\n"])
def test_an_add_that_fails_changes_nothing(build: Build, tmp_path: Path, ids: Ids, bad: bytes):
    retriever = build(rows(0, 1))
    before = retriever.fingerprint
    (tmp_path / "more.jsonl").write_bytes(b'{"id": "y", "text": "zebra"}\n' + bad)
    with pytest.raises((BadInput, BadCorpus), match="line 2"):
        add(tmp_path / "more.jsonl", tmp_path / "index", strict=True)
    assert retriever.fingerprint == before
    assert ids(retriever, "zebra") == []
    assert verify(tmp_path / "index").passed
    assert add([{"id": "y", "text": "zebra"}], tmp_path / "index").added == 1  # the writer is free again
    assert ids(retriever, "zebra") == ["y"]


def test_a_running_reader_sees_commits_and_rebuilds(build: Build, tmp_path: Path, ids: Ids):
    retriever = build(rows(0, 1))
    for number in range(5):
        add([{"id": f"n{number}", "text": "zebra"}], tmp_path / "index")
        assert len(ids(retriever, "zebra", k=10)) == number + 1
    delete(["n0"], tmp_path / "index")
    assert ids(retriever, "zebra") == ["n1", "n2", "n3", "n4"]
    build_index([{"id": "new", "text": "zebra"}], tmp_path / "index", size=0)
    assert ids(retriever, "zebra") == ["new"]


def test_a_reader_goes_on_with_what_it_has_when_the_folder_is_gone(build: Build, tmp_path: Path, ids: Ids):
    retriever = build(rows(0, 1))
    shutil.rmtree(tmp_path / "index")
    assert ids(retriever, "dog") == ["1"]


@pytest.mark.parametrize("edit", [lambda path: add(rows(1), path), lambda path: delete(["1"], path), merge])
def test_editing_what_is_not_there_says_how_to_build_it(tmp_path: Path, edit: Callable[[Path], Any]):
    with pytest.raises(IndexUnusable, match="build it with: inward index build CORPUS"):
        edit(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_everything_may_be_deleted(build: Build, tmp_path: Path, ids: Ids):
    retriever = build(rows(0, 1))
    assert delete(["0", "1"], tmp_path / "index").documents == 0
    assert ids(retriever, "dog") == []
    assert verify(tmp_path / "index").passed
    assert merge(tmp_path / "index").passages == 0
    assert ids(retriever, "dog") == []
    assert add(rows(1), tmp_path / "index").documents == 1
    assert ids(retriever, "dog") == ["1"]
