"""An index that may be read and not written: a shared folder, a container's image."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from inward.cli import cli
from inward.retrieval import BM25Retriever, build_index, info, segments, verify

ROWS = [{"id": f"d{n}", "text": f"number {n} of the shared words. " * 4, "lang": "en" if n % 2 else "de"} for n in range(300)]


def read_all(path: Path) -> list[object]:
    index = BM25Retriever(path)
    found = asyncio.run(index.search("number 7", 3))
    filtered = asyncio.run(index.search("words", 3, where={"lang": "de"}))
    return [found, filtered, index.passage(found[0].id), index.document("d9"), index.fingerprint, len(index)]


@pytest.fixture(params=["mounted", "refused"])
def sealed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An index in a folder that cannot be written: on a read-only mount where one may be made, else by what the system says."""
    build_index(ROWS, tmp_path / "index", size=0, progress=False)
    if request.param == "refused":
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode, **kw: mode != os.W_OK and access(path, mode, **kw))
        yield tmp_path / "index"
        return
    place = tmp_path / "mount"
    place.mkdir()
    may = os.name == "posix" and shutil.which("mount") and os.geteuid() == 0
    if not may or subprocess.run(["mount", "--bind", str(tmp_path / "index"), str(place)], check=False).returncode:
        yield tmp_path / "index"
        return
    subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_an_index_that_cannot_be_written_is_read_like_any_other(sealed: Path, tmp_path: Path):
    expected = read_all(tmp_path / "index") if sealed != tmp_path / "index" else None
    before = set(Path(tempfile.gettempdir()).glob("inward-index-*"))
    found = read_all(sealed)
    assert expected is None or found == expected
    assert found[4:] == [info(sealed).card.fingerprint, 300]
    assert verify(sealed).passed
    assert set(Path(tempfile.gettempdir()).glob("inward-index-*")) == before, "links were left behind"


def test_the_commands_that_read_work(sealed: Path):
    for command in (["info", str(sealed)], ["verify", str(sealed)], ["search", str(sealed), "number 7"]):
        result = CliRunner().invoke(cli, ["index", *command])
        assert result.exit_code == 0, result.output
    assert "d7" in result.output


def test_no_folder_for_links_is_said(sealed: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(segments.Path, "symlink_to", refuse)
    with pytest.raises(segments.IndexUnusable, match=r"cannot be written.*no links here.*TMPDIR"):
        BM25Retriever(sealed)
