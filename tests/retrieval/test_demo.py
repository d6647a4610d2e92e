"""The bundled passages, indexed on first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inward.cache import cache_folder
from inward.errors import IndexUnusable, UsageError
from inward.retrieval import demo, load_retriever
from inward.retrieval.demo import demo_index


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INWARD_CACHE", str(tmp_path / "cache"))


def test_the_demo_index_is_built_once(ids: Callable[..., list[str]]):
    retriever = load_retriever("demo")
    assert len(retriever) >= 300
    assert "nile" in ids(retriever, "Which river brings water to Egypt?")
    card = retriever.card
    assert load_retriever("demo").card == card  # the time of its build too


def test_two_processes_at_once_build_it_whole(tmp_path: Path):
    code = "from inward.retrieval import load_retriever; print(len(load_retriever()))"
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    counts = [process.communicate()[0].strip() for process in running]
    assert counts == [str(len(load_retriever()))] * 3
    assert len(list((tmp_path / "cache").glob("demo-index-*/index.json"))) == 1


def test_other_passages_make_another_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = demo_index()
    (tmp_path / "package" / "demo").mkdir(parents=True)
    (tmp_path / "package" / "demo" / "passages.jsonl").write_text('{"id": "a", "title": "", "text": "x"}\n')
    monkeypatch.setattr(demo, "files", lambda _: tmp_path / "package")
    assert demo_index() != first
    assert len(load_retriever()) == 1
    (tmp_path / "package" / "demo" / "passages.jsonl").unlink()
    with pytest.raises(IndexUnusable, match="demo passages are missing"):
        load_retriever()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(demo, "build_index", refuse)
    with pytest.raises(UsageError, match="set INWARD_CACHE"):
        load_retriever()


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("INWARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "inward"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "inward"
