"""Every fence in the README and the docs runs.

`python` fences of a page run one after another in one namespace, with the bundled model. `sh` fences run in an empty
folder, line by line joined, with `inward` on the path. `text` fences are output and are not run. A fence that cannot run
here says so, with a reason: ```` ```sh no-test: needs a GPU ````.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```\s*$", re.M | re.S)
NOT_RUN = ("text", "toml", "json", "yaml")


class Fence(NamedTuple):
    """A block of code on a page."""

    page: Path
    line: int
    language: str
    note: str
    body: str


def fences(page: Path) -> list[Fence]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        language, _, note = match["info"].strip().partition(" ")
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.M)
        found.append(Fence(page, text[: match.start()].count("\n") + 1, language, note, body))
    return found


ALL = [fence for page in PAGES for fence in fences(page)]


def label(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_fence_is_of_a_kind_that_runs_or_says_why_not(page: Path):
    for fence in fences(page):
        assert fence.language in ("python", "sh", *NOT_RUN), f"{label(page)}:{fence.line} is of unknown kind {fence.language!r}"
        if fence.note:
            assert re.fullmatch(r"no-test: \w.{5,}", fence.note), (
                f"{label(page)}:{fence.line} must say `no-test: reason`, says {fence.note!r}"
            )
    assert page.read_text(encoding="utf-8").count("```") % 2 == 0


@pytest.mark.real
@pytest.mark.parametrize("page", [page for page in PAGES if any(f.language == "python" for f in fences(page))], ids=label)
def test_N3_python_fences_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for fence in fences(page):
        if fence.language == "python" and (name := re.match(r"# (\w+\.py)\n", fence.body)):
            (tmp_path / name[1]).write_text(fence.body, encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for fence in fences(page):
        if fence.language == "python" and not fence.note:
            padded = "\n" * fence.line + fence.body  # so that a traceback shows the page's own line numbers
            exec(compile(padded, str(page), "exec"), namespace)


@pytest.mark.real
@pytest.mark.parametrize("page", [page for page in PAGES if any(f.language == "sh" and not f.note for f in fences(page))], ids=label)
def test_N3_shell_fences_run(page: Path, tmp_path: Path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for source in fences(page):
        if source.language == "python" and (name := re.match(r"# (\w+\.py)\n", source.body)):
            (tmp_path / name[1]).write_text(source.body, encoding="utf-8")
    for fence in fences(page):
        if fence.language == "sh" and not fence.note:
            done = subprocess.run(
                ["sh", "-euc", fence.body], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
            )
            assert done.returncode == 0, f"{label(page)}:{fence.line}\n{fence.body}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{label(page)} links to {target}"


def test_the_docs_index_names_every_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        if page.parent.name != "decisions" and page.name != "index.md":
            assert page.relative_to(ROOT / "docs").as_posix() in index, f"docs/index.md does not name {label(page)}"


def test_every_decision_is_listed():
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"):
        assert f"({page.name})" in listed, f"docs/decisions/README.md does not list {page.name}"


def test_no_page_speaks_of_where_it_was_written():
    for page in PAGES:
        assert not re.search(r"/work/|/tmp/|/root/|/home/", page.read_text(encoding="utf-8")), label(page)
