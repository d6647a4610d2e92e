"""`inward index` as a user types it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inward.cli import main
from inward.retrieval import BM25Retriever

ODD = "Erdős – “q” 東京 🦙"
ROWS = [
    {"id": "a", "title": "Mercury", "text": "A planet near the sun.", "kind": "planet", "n": 1},
    {"id": "b", "title": "Venus", "text": "A planet with clouds.", "kind": "planet", "n": 2},
    {"id": "c", "title": "Mercury", "text": "A metal that flows.", "kind": "metal", "n": "1"},
]


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Ran:
        code = main(["index", *arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Ran(code, out.decode(), err.decode())

    return call


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return "c.jsonl"


@pytest.fixture
def index(run: Run, corpus: str) -> str:
    assert run("build", corpus, "ix", "--size", "0").code == 0
    return "ix"


def test_build_says_what_it_made(run: Run, corpus: str):
    ran = run("build", corpus, "ix")
    assert ran.code == 0
    assert ran.out.startswith("3 passages of 3 documents in ix")
    assert ran.err == ""  # no terminal: no progress
    report = run("build", corpus, "ix", "--json").json
    assert (report["documents"], report["passages"], report["bad_lines"], report["source"]) == (3, 3, 0, "c.jsonl")


def test_bad_lines_are_named_on_standard_error_and_strict_fails(run: Run, corpus: str):
    with Path(corpus).open("a", encoding="utf-8") as file:
        file.write('nonsense\n{"id": "a", "text": "again"}\n{"id": "e", "text": " "}\n')
    ran = run("build", corpus, "ix")
    assert ran.code == 0
    assert "c.jsonl, line 4: not valid JSON" in ran.err
    assert "line 5: 'a' stood in line 1 with another content" in ran.err
    assert "1 bad line skipped, 1 document without text left out, 1 document replaced" in ran.err
    ran = run("build", corpus, "ix", "--strict")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("inward: c.jsonl, line 4: not valid JSON")


def test_search_prints_and_filters(run: Run, index: str):
    ran = run("search", index, "mercury planet", "-k", "2")
    assert ran.code == 0
    assert "a  Mercury" in ran.out.splitlines()[0]
    assert len(ran.out.splitlines()) == 4
    found = run("search", index, "mercury", "--where", "kind=metal", "--json").json
    assert [(p["id"], p["title"], p["metadata"]["kind"]) for p in found] == [("c", "Mercury", "metal")]
    assert [p["id"] for p in run("search", index, "planet metal", "--where", "n=1", "--json").json] == ["c", "a"]  # 1 and "1"
    assert [p["id"] for p in run("search", index, "planet", "--where", "doc=b", "--json").json] == ["b"]
    assert len(run("search", index, "planet metal", "--where", "kind=metal", "--where", "kind=planet", "--json").json) == 3


def test_search_says_when_there_is_nothing_and_why(run: Run, index: str):
    ran = run("search", index, "the")
    assert ran == Ran(0, "no passage shares a term with the query\n", ran.err)
    assert "no search terms" in ran.err
    assert run("search", index, "zebra", "--json").json == []
    assert "no passage has the asked value of 'knd'" in run("search", index, "planet", "--where", "knd=metal").err


def test_add_delete_and_merge(run: Run, index: str, tmp_path: Path):
    (tmp_path / "more.jsonl").write_text('{"id": "d", "text": "A red planet."}\n{"id": "b", "text": "Clouds."}\n')
    report = run("add", "more.jsonl", index, "--json").json
    assert (report["added"], report["updated"], report["documents"]) == (1, 1, 4)
    ran = run("delete", index, "a", "zz")
    assert ran.out.startswith("1 document deleted, 1 not there")
    assert "no document 'zz' in 'ix'" in ran.err
    assert run("info", index, "--json").json["deleted"] == 2
    (tmp_path / "ids").write_text("c\nd\n")
    assert run("delete", index, "--ids-file", "ids", "--merge", "--json").json["deleted"] == 2
    after = run("info", index, "--json").json
    assert (after["deleted"], after["card"]["documents"]) == (0, 1)
    assert [p["id"] for p in run("search", index, "clouds", "--json").json] == ["b"]
    assert run("delete", index, "--merge").code == 0
    ran = run("delete", index)
    assert (ran.code, ran.err) == (2, "inward: nothing to delete: name ids, or a file of them with --ids-file\n")


def test_N6_merge_changes_what_scores_are_made_from(run: Run, index: str, tmp_path: Path):
    (tmp_path / "more.jsonl").write_text('{"id": "b", "text": "Clouds."}\n')
    run("add", "more.jsonl", index)
    before = run("search", index, "planet", "--json").json[0]["score"]
    assert run("add", "more.jsonl", index, "--merge").code == 0
    after = run("search", index, "planet", "--json").json[0]["score"]
    assert before != pytest.approx(after)
    rest = [ROWS[0], {"id": "b", "text": "Clouds."}, ROWS[2]]
    (tmp_path / "rest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rest))
    run("build", "rest.jsonl", "rebuilt", "--size", "0")
    assert run("search", "rebuilt", "planet", "--json").json[0]["score"] == pytest.approx(after, abs=1e-6)


def test_N6_size_overlap_and_format_change_what_is_built(run: Run, tmp_path: Path):
    (tmp_path / "c.dat").write_text("One two three four five. " * 12)
    passages = {}
    for name, options in {"whole": ["--size", "0"], "split": ["--size", "20"], "over": ["--size", "20", "--overlap", "5"]}.items():
        passages[name] = run("build", "c.dat", name, "--format", "text", *options, "--json").json["passages"]
    assert passages == {"whole": 1, "split": 3, "over": 4}
    ran = run("build", "c.dat", "ix")
    assert ran.code == 2
    assert "name its format" in ran.err


def test_info_and_verify(run: Run, index: str):
    ran = run("info", index)
    assert ran.code == 0
    assert "3 of 3 documents" in ran.out
    assert "documents kept whole" in ran.out
    ran = run("verify", index)
    assert (ran.code, ran.out.count("ok ")) == (0, 5)
    card = json.loads(Path(index, "index.json").read_text())
    Path(index, "index.json").write_text(json.dumps({**card, "content": "0" * 32}))
    ran = run("verify", index)
    assert ran.code == 1
    assert "FAILED" in ran.out
    assert ran.err == "inward: the index at 'ix' is damaged; build it again\n"
    assert run("verify", index, "--json").json["passed"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("build", "nowhere", "ix"), 2, "no such corpus: 'nowhere'"),
        (("build", "c.jsonl", "ix", "--size", "-1"), 2, "size must be"),
        (("build", "c.jsonl", "ix", "--overlap", "100"), 2, "overlap must be"),
        (("build", "c.jsonl", "ix", "--frmat", "tsv"), 2, "No such option"),
        (("build", "c.jsonl"), 2, "Missing argument"),
        (("info", "nowhere"), 2, "build it with: inward index build CORPUS nowhere"),
        (("verify", "nowhere"), 2, "no index at"),
        (("search", "nowhere", "x"), 2, "no index at"),
        (("search", "ix", "planet", "-k", "0"), 2, "k must be"),
        (("search", "ix", "planet", "--where", "nonsense"), 2, "KEY=VALUE"),
        (("add", "c.jsonl", "nowhere"), 2, "no index at"),
    ],
)
def test_exit_codes_and_one_line_complaints(run: Run, index: str, arguments: tuple[str, ...], code: int, complaint: str):
    ran = run(*arguments)
    assert ran.code == code
    assert complaint in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_I5_the_same_strings_whatever_the_locale(tmp_path: Path):
    row = {"id": ODD, "title": ODD, "text": ODD, "metadata": {ODD: ODD}}
    (tmp_path / "c.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def inward(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "inward", "index", *arguments]
        return subprocess.run(command, capture_output=True, check=True, env=environment, cwd=tmp_path)

    inward("build", "c.jsonl", "ix", "--size", "0")
    (found,) = json.loads(inward("search", "ix", "erdos", "--json").stdout)
    assert (found["id"], found["title"], found["text"], found["metadata"][ODD]) == (ODD, ODD, ODD, ODD)
    inward("search", "ix", "erdos")  # a terminal that cannot show it is no reason to fail
    retriever = BM25Retriever(tmp_path / "ix")
    passage = retriever.passage(ODD)
    assert passage is not None
    assert passage.text == ODD


def test_help_is_everywhere(run: Run):
    for command in ("build", "add", "delete", "info", "verify", "search"):
        ran = run(command, "-h")
        assert ran.code == 0
        assert ran.out.startswith("Usage:")


SLOW = """
import sys, time
from inward.retrieval import build_index

def rows():
    for number in range(30):
        time.sleep(0.05)
        yield {"id": str(number), "text": "words"}

build_index(rows(), sys.argv[1], progress=sys.argv[2] == "yes")
"""


@pytest.mark.parametrize(("progress", "terminal", "shown"), [("yes", True, True), ("no", True, False), ("yes", False, False)])
def test_M4_progress_shows_on_a_terminal_alone(tmp_path: Path, progress: str, terminal: bool, shown: bool):
    ours, theirs = pty.openpty() if terminal else os.pipe()
    if terminal:
        termios.tcsetwinsize(theirs, (24, 100))
    command = [sys.executable, "-c", SLOW, str(tmp_path / "ix"), progress]
    subprocess.run(command, stderr=theirs, stdout=subprocess.PIPE, check=True)
    os.write(theirs, b"end")
    os.close(theirs)
    seen = os.read(ours, 100_000)
    os.close(ours)
    assert (b"indexing generator" in seen) == shown
    assert shown or seen == b"end"


def test_M2_a_terminal_is_told_what_is_needed_and_free(run: Run, corpus: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    ran = run("build", corpus, "ix", "--json")
    assert re.search(r"an index of c.jsonl needs about [\d.]+ bytes; [\d.]+ [kMGT]B are free", ran.err)
    assert "needs about" not in run("build", corpus, "ix", "--json", "--quiet").err


@pytest.mark.parametrize("there", [False, True])
def test_an_interrupted_build_does_not_speak_of_an_index_that_is_not_there(
    there: bool, run: Run, corpus: str, monkeypatch: pytest.MonkeyPatch
):
    if there:
        run("build", corpus, "ix")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("inward.commands_index.build_index", interrupted)
    ran = run("build", corpus, "ix")
    assert ran.code == 130
    assert ("holds what was last committed" in ran.err) is there
    assert ("was not there before and is not there now" in ran.err) is not there


def test_the_demo_index_has_its_name_everywhere(run: Run):
    for command in (("info", "demo"), ("verify", "demo"), ("search", "demo", "capital of Kenya")):
        assert run(*command).code == 0


@pytest.mark.parametrize("suffix", [".term", ".store", "meta.json"])
def test_a_damaged_file_is_named_with_the_remedy(suffix: str, run: Run, corpus: str, tmp_path: Path):
    run("build", corpus, "ix")
    (file,) = [f for f in (tmp_path / "ix").rglob("*") if f.name.endswith(suffix) and not f.name.startswith(".")]
    held = file.read_bytes()
    file.write_bytes(held[: len(held) // 2] if suffix == "meta.json" else bytes(b ^ 0x5A for b in held))
    for command in (("search", "ix", "planet"), ("verify", "ix"), *([("info", "ix")] if suffix == "meta.json" else [])):
        ran = run(*command)
        assert ran.code == 1
        assert ran.err.count("\n") == 1
        assert "build" in ran.err


def test_where_that_leaves_nothing_says_so(run: Run, corpus: str):
    run("build", corpus, "ix")
    assert run("search", "ix", "planet", "--where", "kind=metal").out == "no passage with this metadata shares a term with the query\n"
    assert run("search", "ix", "zebra").out == "no passage shares a term with the query\n"


def test_a_folder_of_texts_is_no_index_and_what_is_not_read_is_counted(run: Run, tmp_path: Path):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "vpn.md").write_text("# Access\nTokens come by post.")
    (notes / "empty.md").write_text("")
    (notes / "page.html").write_text("<p>")
    ran = run("search", "notes", "tokens")
    assert ran.code == 2
    assert "'notes' is a folder and no index; if it holds your texts: inward index build notes NEW-FOLDER" in ran.err
    ran = run("build", "notes", "ix2")
    assert ran.code == 0
    assert "'empty.md' has no text and is left out" in ran.err
    assert "1 file of other kinds not read" in ran.err
