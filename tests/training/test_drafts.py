"""Drafts on the disk: every row is its own draft's, whatever was killed, batched or ordered otherwise."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from drafted import LAYERS, PLAN, Index, Model, both, data, knows, states, token_state

from inward.errors import InwardError, UsageError
from inward.training.drafting import write_drafts
from inward.training.drafts import DRAFTS, STATES, Drafts, QuestionDrafts, read_drafts
from inward.types import Capture

HERE = Path(__file__).parent


def made(folder: Path, **changes: object) -> Drafts:
    write_drafts(both(), Model(), replace(PLAN, **changes), folder)
    return read_drafts(folder)


def check_rows(drafts: Drafts) -> None:
    """Compute every row again from the text that its line holds."""
    found = drafts.of(drafts.rows)
    last = {mode: drafts.others(f"{mode}:last") for mode in ("without", "with")}
    prompts = drafts.others("prompt")
    for row, state in zip(drafts.rows, found, strict=True):
        text = row.draft.text if row.draft.text.endswith(".") else f"{row.draft.text}."
        expected = states(text, Capture(layers=LAYERS))
        assert np.allclose(state, expected, rtol=1e-5, atol=1e-6), (row.id, row.draft.mode)
        end = np.stack([token_state(text, layer, len(text.split()) - 1) for layer in LAYERS])
        assert np.allclose(drafts.states[last[row.draft.mode][row.id]], end)
        before = np.stack([token_state(f"prompt of {row.question.question}", layer, -1) for layer in LAYERS])
        assert np.allclose(drafts.states[prompts[row.id]], before)
        assert row.question.question in row.draft.text
        assert ("gold" in row.draft.short) == knows(row.question.question, row.draft.mode == "with")


def test_every_row_is_its_own_drafts(tmp_path: Path):
    drafts = made(tmp_path)
    assert len(drafts.questions) == 40
    assert [row.draft.mode for row in drafts.rows].count("with") == 30
    assert len(drafts.rows) == 70
    check_rows(drafts)
    assert [q.id for q in drafts.questions] == [f"d/{n}" for n in range(30)] + [f"e/{n}" for n in range(10)]
    first = drafts.questions[0].drafts
    assert first[0].signals["mean-nll"] == pytest.approx(0.5)
    assert first[1].query == f"{drafts.questions[0].question.question} {first[0].text}"


def test_D2_alone_is_batched(tmp_path: Path):
    one, many = made(tmp_path / "1", concurrency=1), made(tmp_path / "40", concurrency=40)
    assert [row.draft for row in one.rows] == [row.draft for row in many.rows]
    assert np.array_equal(one.of(one.rows), many.of(many.rows))


def test_layers_are_taken_by_name(tmp_path: Path):
    drafts = made(tmp_path)
    whole = drafts.of(drafts.rows)
    assert np.array_equal(drafts.of(drafts.rows, (4, 1)), whole[:, [2, 0]])
    with pytest.raises(UsageError, match=r"layers \[1, 2, 4\], not of \[3\]"):
        drafts.of(drafts.rows, (1, 3))


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_C1_killed_at_twenty_moments_no_row_is_lost_or_doubled(tmp_path: Path):
    rng = random.Random(0)
    folder = tmp_path / "killed"
    command = [sys.executable, str(HERE / "drafted.py"), str(folder)]
    subprocess.run([*command[:-1], str(tmp_path / "whole")], check=True, timeout=120)
    alive = 0
    for _ in range(20):
        before = size(folder / STATES)
        process = subprocess.Popen(command)
        while process.poll() is None and size(folder / STATES) == before:  # the first write after the start, and then some
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        alive += process.wait() == -signal.SIGKILL
    assert alive >= 5, "nearly every process had ended before it was killed"
    subprocess.run(command, check=True, timeout=120)
    killed, whole = read_drafts(tmp_path / "killed"), read_drafts(tmp_path / "whole")
    check_rows(killed)
    assert [q.id for q in killed.questions] == [q.id for q in whole.questions]
    assert [row.draft for row in killed.rows] == [row.draft for row in whole.rows]
    assert np.array_equal(killed.of(killed.rows), whole.of(whole.rows))


@pytest.mark.parametrize("cut", ["line", "states", "both", "foreign"])
def test_what_was_cut_short_is_drafted_again_and_nothing_else(cut: str, tmp_path: Path):
    whole = made(tmp_path)
    before = whole.of(whole.rows).copy()
    lines, raw = (tmp_path / DRAFTS).read_bytes(), bytearray((tmp_path / STATES).read_bytes())
    if cut in ("line", "both"):
        (tmp_path / DRAFTS).write_bytes(lines[:-7])
    if cut in ("states", "both"):
        (tmp_path / STATES).write_bytes(raw[:-5])
    if cut == "foreign":
        raw[100] ^= 255
        (tmp_path / STATES).write_bytes(raw)
    asked = []

    class Counting(Model):
        async def generate(self, prompt, sampling=None, *, capture=None):
            asked.append(prompt)
            return await super().generate(prompt, sampling, capture=capture)

    write_drafts(both(), Counting(), PLAN, tmp_path)
    drafts = read_drafts(tmp_path)
    check_rows(drafts)
    assert np.array_equal(drafts.of(drafts.rows), before)
    assert 2 <= len(asked) <= 8, "one or two questions, and one token for the width"


def test_states_of_another_file_are_refused(tmp_path: Path):
    made(tmp_path)
    raw = (tmp_path / STATES).read_bytes()
    (tmp_path / STATES).write_bytes(raw[4:] + raw[:4])
    with pytest.raises(InwardError, match=r"states of 'd/0'.* are not those that were written"):
        read_drafts(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"), [({"k": 3}, "k was 5, is now 3"), ({"query": "question"}, "query was"), ({"seed": 2}, "seed was 0, is now 2")]
)
def test_drafts_of_another_kind_in_the_same_folder_are_refused(change: dict, said: str, tmp_path: Path):
    made(tmp_path)
    with pytest.raises(UsageError, match=said):
        made(tmp_path, **change)
    with pytest.raises(UsageError, match=r"data\.d was"):
        write_drafts([data(5)], Model(), PLAN, tmp_path)


def test_a_retriever_that_fails_is_a_recorded_failure(tmp_path: Path):
    class Failing(Index):
        async def search(self, query, k=5, *, where=None):
            if "thing d7?" in query:
                raise InwardError("the index is gone")
            return await super().search(query, k)

    sets = [replace(data(12), retriever=Failing())]
    write_drafts(sets, Model(), PLAN, tmp_path)
    drafts = read_drafts(tmp_path)
    (failed,) = drafts.failed
    assert (failed.id, failed.drafts, failed.rows) == ("d/7", (), ())
    assert "the index is gone" in (failed.error or "")
    assert len(drafts.rows) == 22
    check_rows(drafts)
    write_drafts([data(12)], Model(), PLAN, tmp_path)
    assert len(read_drafts(tmp_path).failed) == 1
    write_drafts([data(12)], Model(), PLAN, tmp_path, retry_failed=True)
    again = read_drafts(tmp_path)
    assert not again.failed
    assert len(again.rows) == 24
    check_rows(again)


def test_the_same_name_twice_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="need different names"):
        write_drafts([data(3), data(3)], Model(), PLAN, tmp_path)


def test_a_draft_without_tokens_has_no_row(tmp_path: Path):
    class Mute(Model):
        def _answer_of(self, prompt: str) -> str:
            return ""

    lm = Mute()
    spoken = lm._answer
    lm._answer = lambda prompt: "" if "thing d3?" in prompt.rpartition("Question:")[2] else spoken(prompt)
    lm._states = lambda text, capture: states(text, capture) if text else np.empty((len(LAYERS), 0, 6), np.float32)
    write_drafts([data(6)], lm, PLAN, tmp_path)
    drafts = read_drafts(tmp_path)
    assert {row.question.id for row in drafts.rows} == {"0", "1", "2", "4", "5"}
    check_rows(drafts)
    line = msgspec.json.decode((tmp_path / DRAFTS).read_bytes().splitlines()[3], type=QuestionDrafts)
    assert line.drafts[0].tokens == 0
    assert os.path.getsize(tmp_path / STATES) == 6 * 5 * 4 * len(LAYERS) * 6
