"""Processes that die, two writers at once, interrupts, and full disks."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inward.errors import IndexUnusable, StorageFull
from inward.retrieval import BM25Retriever, add, build_index, delete, merge, verify
from inward.retrieval import build as build_module
from inward.retrieval import edit as edit_module

Build = Callable[..., BM25Retriever]
Ids = Callable[..., list[str]]

OLD = [{"id": f"old{n}", "text": f"shared words and number {n}"} for n in range(300)]
NEW = [{"id": f"new{n}", "text": f"shared words and number {n}. " * 8} for n in range(2000)]

KILLER = """
import json, os, random, signal, sys, threading, time
from inward.errors import InwardError
from inward.retrieval import add, build_index, delete, merge, verify, BM25Retriever
import inward.retrieval.build as build_module
import inward.retrieval.card as card_module
import inward.retrieval.edit as edit_module

path, work, moments, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
new = [{"id": f"new{n}", "text": f"shared words and number {n}. " * 8} for n in range(2000)]
jobs = {
    "build": lambda: build_index(new, path, progress=False),
    "add": lambda: add(new, path, progress=False),
    "delete": lambda: delete([f"old{n}" for n in range(0, 300, 2)], path),
    "merge": lambda: merge(path, progress=False),
}

def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid

def state():
    "Verify in a process of its own: this one must stay without threads to be forked."
    read, write = os.pipe()
    def look():
        report = verify(path)
        held = json.dumps([report.passed, BM25Retriever(path).fingerprint, len(BM25Retriever(path))])
        os.write(write, held.encode())
    os.waitpid(child(look), 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        return json.loads(pipe.read() or "null")

def whole_run():
    pid = os.fork()
    began = time.perf_counter()
    if pid == 0:
        jobs[work]()
        os._exit(0)
    os.waitpid(pid, 0)
    return time.perf_counter() - began
"""

RANDOM_MOMENTS = (
    KILLER
    + """
rng = random.Random(seed)
before = state()
os.system(f"cp -r {path} {path}.kept")
took = whole_run()
after = state()
os.system(f"rm -rf {path} && cp -r {path}.kept {path}")
seen = []
for moment in range(moments):
    pid = child(jobs[work])
    time.sleep(took * 1.1 * (moment + rng.random()) / moments)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    seen.append(state())
    if seen[-1] == after:
        os.system(f"rm -rf {path} && cp -r {path}.kept {path}")
print(json.dumps([before, after, seen]))
"""
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    build_index(OLD, tmp_path / "index", size=0)
    return tmp_path / "index"


def run(code: str, *arguments: object) -> Any:
    ran = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("work", "moments"), [("build", 20), ("add", 20), ("delete", 8), ("merge", 8)])
def test_killed_at_any_moment_the_index_is_the_old_one_or_the_new_one(old: Path, work: str, moments: int):
    """Written in place, or with the card replaced before the commit, some moment leaves neither."""
    before, after, seen = run(RANDOM_MOMENTS, old, work, moments, 1)
    assert before[0]
    assert after[0]
    assert len(seen) == moments
    assert all(state in (before, after) for state in seen), seen
    assert before in seen  # it was killed before the end, too


DEADLY_POINTS = """
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def before_the_commit():
    build_module.commit = edit_module.commit = die

def after_the_commit():
    build_module.commit = edit_module.commit = lambda writer, do=build_module.commit: (do(writer), die())

def before_a_card_is_moved_into_place():
    os.replace = die

def after_the_first_card_was_moved():
    os.replace = lambda old, new, do=os.replace: (do(old, new), die())

def after_the_last_card_was_moved():
    os.replace = lambda old, new, do=os.replace: (do(old, new), str(new).endswith("index.json") and die())

def while_the_old_data_is_removed():
    card_module.shutil.rmtree = die

def during_a_flush(seconds):
    def commit(writer, do=build_module.commit):
        threading.Timer(seconds, die).start()
        do(writer)
        time.sleep(1)
    def patch():
        build_module.commit = edit_module.commit = commit
    patch.__name__ = f"during a flush, after {seconds} s"
    return patch

POINTS = [
    before_the_commit, after_the_commit, before_a_card_is_moved_into_place, after_the_first_card_was_moved,
    after_the_last_card_was_moved, while_the_old_data_is_removed, *map(during_a_flush, (0.0, 0.002, 0.005, 0.01, 0.02)),
]
"""

WORST_POINTS = (
    KILLER
    + DEADLY_POINTS
    + """
def failing(work):
    try:
        work()
    except InwardError:
        pass

os.system(f"cp -r {path} {path}.kept")
seen = []
for point in POINTS:
    os.system(f"rm -rf {path} && cp -r {path}.kept {path}")
    _, status = os.waitpid(child(lambda: (point(), jobs[work]())), 0)
    left = state()
    os.waitpid(child(lambda: failing(lambda: add([{}], path, strict=True, progress=False))), 0)
    still = state()
    os.waitpid(child(lambda: add([{"id": "later", "text": "zebra"}], path, progress=False)), 0)
    files = sorted(name.split("-")[0] for name in os.listdir(path))
    seen.append([point.__name__, os.waitstatus_to_exitcode(status), left, still, state(), files])
print(json.dumps([state_of_old, seen]))
""".replace("seen = []", "state_of_old = state()\nseen = []")
)


@pytest.mark.slow
@pytest.mark.parametrize(("work", "expected"), [("build", 2000), ("add", 2300), ("delete", 150), ("merge", 300)])
def test_killed_at_the_worst_points(old: Path, work: str, expected: int):
    before, seen = run(WORST_POINTS, old, work, 1, 1)
    assert len(seen) == 11
    for point, code, left, still, later, files in seen:
        unreached = point == "while_the_old_data_is_removed" and work in ("add", "delete")
        assert code == (0 if unreached else -signal.SIGKILL), point
        assert left[0], point  # verified
        assert left == before or left[2] == expected, point
        if point == "after_the_last_card_was_moved":
            assert left[2] == expected
        assert still == left, point  # a writer that fails puts the dead one's work in order, and no more
        # the next writer finds its way and clears away what the dead one left
        assert later[0], point
        assert later[2] == left[2] + 1, point
        assert [name for name in files if not name.endswith(".tmp")] == [".lock", "data", "index.json"], point


def test_a_first_build_that_was_killed_leaves_no_index_and_can_be_repeated(tmp_path: Path):
    path = tmp_path / "index"
    code = KILLER + DEADLY_POINTS + "before_the_commit()\njobs[work]()\n"
    subprocess.run([sys.executable, "-c", code, str(path), "build", "1", "1"], capture_output=True, check=False)
    assert len(list(path.glob("data-*"))) == 1
    with pytest.raises(IndexUnusable, match="no index"):
        BM25Retriever(path)
    build_index(OLD, path, size=0)
    assert len(list(path.glob("data-*"))) == 1
    assert verify(path).passed


@pytest.fixture
def busy(old: Path) -> Iterator[Path]:
    """An index that another process is writing to."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom inward.retrieval.card import writing\n"
        "with writing(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(old)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    yield old
    other.kill()
    other.communicate()


def test_a_second_writer_is_refused_and_readers_are_not(busy: Path, ids: Ids):
    for work in (lambda: build_index(OLD, busy), lambda: add(OLD, busy), lambda: delete(["old1"], busy), lambda: merge(busy)):
        with pytest.raises(IndexUnusable, match="another process is writing to the index at"):
            work()
    assert len(ids(BM25Retriever(busy), "shared", k=10)) == 10


class Interrupting:
    """Documents, and then Ctrl-C."""

    def __iter__(self) -> Iterator[dict[str, str]]:
        yield from NEW[:1000]
        raise KeyboardInterrupt


def test_an_interrupt_loses_nothing_and_leaves_nothing(old: Path, tmp_path: Path):
    before = BM25Retriever(old).fingerprint
    for work in (lambda: build_index(Interrupting(), old), lambda: add(Interrupting(), old)):
        with pytest.raises(KeyboardInterrupt):
            work()
        assert verify(old).passed
        assert BM25Retriever(old).fingerprint == before
        assert len(list(old.glob("data-*"))) == 1
    with pytest.raises(KeyboardInterrupt):
        build_index(Interrupting(), tmp_path / "new" / "index")
    assert not (tmp_path / "new" / "index").exists()
    assert add([{"id": "x", "text": "zebra"}], old).added == 1


def test_ctrl_c_on_the_command_line(old: Path):
    code = (
        "import sys\nfrom inward.cli import main\nprint('go', file=sys.stderr, flush=True)\n"
        "sys.exit(main(['index', 'build', '-', sys.argv[1]]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(old)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stderr is not None
    assert process.stderr.readline() == "go\n"
    process.stdin.write('{"id": "a", "text": "x"}\n')
    process.stdin.flush()
    deadline = time.monotonic() + 20
    while len(list(old.glob("data-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted; the index at" in complaint
    assert "Traceback" not in complaint
    assert verify(old).passed
    assert len(BM25Retriever(old)) == 300


def test_M2_what_cannot_fit_is_not_begun(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in NEW))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(build_module.shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    for work in (lambda: build_index(corpus, old), lambda: add(corpus, old), lambda: build_index(corpus, tmp_path / "new")):
        with pytest.raises(StorageFull, match=r"an index of c.jsonl needs about [\d.]+ [kM]B, the disk of '.*' has 100.0 kB free"):
            work()
    assert verify(old).passed
    assert len(list(old.glob("data-*"))) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("point", ["add_document", "commit", "card"])
@pytest.mark.parametrize("work", ["build", "add", "merge"])
def test_M2_a_disk_that_fills_up_leaves_the_old_index(old: Path, monkeypatch: pytest.MonkeyPatch, work: str, point: str):
    """Every step that writes is made to fail as a full disk makes it fail."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def killed(*_: object, **__: object) -> None:
        raise ValueError("An error occurred in a thread: 'An index writer was killed.'")

    usage = shutil.disk_usage(old)
    if point == "add_document":
        monkeypatch.setattr(build_module.shutil, "disk_usage", lambda _: usage._replace(free=4096))
        monkeypatch.setattr(build_module, "require_space", lambda *_: None)
        monkeypatch.setattr(edit_module, "require_space", lambda *_: None)
        target = edit_module if work == "merge" else __import__("inward.retrieval.intake", fromlist=["entry"])
        monkeypatch.setattr(target, "entry", killed)
    elif point == "commit":
        monkeypatch.setattr(build_module, "commit", full)
        monkeypatch.setattr(edit_module, "commit", full)
    else:
        monkeypatch.setattr(os, "replace", full)
    jobs = {"build": lambda: build_index(NEW, old), "add": lambda: add(NEW, old), "merge": lambda: merge(old)}
    with pytest.raises(StorageFull, match=r"the disk of '.*index' is full \(.* written.* free\); nothing has changed"):
        jobs[work]()
    monkeypatch.undo()
    assert verify(old).passed
    assert len(BM25Retriever(old)) == 300
    assert len(list(old.glob("data-*"))) == 1
    assert add([{"id": "x", "text": "zebra"}], old).added == 1


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB; without the right to mount one, a folder whose disk says it is full is not the same, so root only."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = os.name == "posix" and shutil.which("mount") and os.geteuid() == 0
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=False).returncode:
        yield Path()
        return
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_M2_a_real_full_disk(tiny_disk: Path, tmp_path: Path):
    if tiny_disk == Path():
        return  # the injected failures above stand for it where nobody may mount
    rows = [{"id": f"{n}", "text": " ".join(f"w{n * 100 + i}" for i in range(100))} for n in range(8000)]
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(StorageFull, match="needs about"):
        build_index(corpus, tiny_disk / "index")
    assert list(tiny_disk.iterdir()) == []
    build_index(OLD, tiny_disk / "index", size=0)
    for work in (lambda: build_index(iter(rows), tiny_disk / "index"), lambda: add(iter(rows), tiny_disk / "index")):
        with pytest.raises(StorageFull, match="is full"):
            work()
        assert verify(tiny_disk / "index").passed
        assert len(BM25Retriever(tiny_disk / "index")) == 300
    assert shutil.disk_usage(tiny_disk).free > 3_000_000  # and nothing lies about
