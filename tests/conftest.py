"""Shared fixtures, and a closing list of skips: a skip that is not on the short list of reasons fails in CI."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from inward.protocols import LM

ALLOWED_SKIPS = ("no GPU", "no server", "no shared data")
"""How the reason of an allowed skip begins."""

THREADS = 1
"""One thread: sums are then in one order, and other work on the machine cannot make torch ten times slower."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def gemma() -> LM:
    """The bundled base model, google/gemma-3-270m (Gemma terms)."""
    from inward import load_lm

    return load_lm("demo")


@pytest.fixture(scope="session")
def smollm() -> LM:
    """A real instruct model, SmolLM2-135M-Instruct (Apache-2.0)."""
    from inward import load_lm
    from inward.lm.bundled import smollm2_path

    return load_lm(smollm2_path())


LONGEST = ("test_docs.py", "test_conformance.py", "test_mutations.py", "test_decode.py", "test_bundled.py")
"""Files that take minutes: begun first, so that two processes end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the longest files to the front; within a file nothing moves."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(LONGEST)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured: relative errors and flips of the identities."""
    for report in terminalreporter.stats.get("passed", []):
        for what, found in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {what}: {found}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End, after pytest's own last line, with the skips and their reasons."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.collectonly:
        return
    reasons = _skip_reasons(reporter)
    for reason, count in sorted(reasons.items()):
        known = "" if _allowed(reason) else "  <- not an allowed reason"
        reporter.write_line(f"skips: {count} x {reason}{known}")
    if not reasons:
        reporter.write_line("skips: none")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail in CI when something was skipped that should have run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or os.environ.get("CI") != "true":
        return
    if any(not _allowed(reason) for reason in _skip_reasons(reporter)) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skip_reasons(reporter: pytest.TerminalReporter) -> Counter[str]:
    texts = (report.longrepr for report in reporter.stats.get("skipped", []))
    return Counter(str(text[2] if isinstance(text, tuple) else text).removeprefix("Skipped: ") for text in texts)


def _allowed(reason: str) -> bool:
    return reason.startswith(ALLOWED_SKIPS)
