"""Faults put into the making of probers and into their strategy, each seen by the test that holds the guarantee."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mutating import Fault, put

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import test_drafts
import test_fit
from drafted import PLAN, Model, data

from inward.errors import InwardError
from inward.strategies import probing_rag
from inward.training.drafting import write_drafts
from inward.training.drafts import Drafts, read_drafts
from inward.training.fit import Fitted, fit
from knowing import knowing_prober


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> Drafts:
    folder = tmp_path_factory.mktemp("drafts")
    write_drafts([data(160), data(120, name="e")], Model(), replace(PLAN, concurrency=50), folder)
    return read_drafts(folder)


def fitted_of(drafts: Drafts) -> Fitted:
    return fit(drafts, test_fit.plan())


def rows_are_their_own(tmp_path: Path) -> None:
    test_drafts.test_every_row_is_its_own_drafts(tmp_path)


def resumed(tmp_path: Path) -> None:
    for cut in ("line", "states", "foreign"):
        test_drafts.test_what_was_cut_short_is_drafted_again_and_nothing_else(cut, tmp_path / cut)


CHECKS: dict[str, Callable[..., object]] = {
    "rows": rows_are_their_own,
    "resumed": resumed,
    "foreign_states": test_drafts.test_states_of_another_file_are_refused,
    "layers": test_drafts.test_layers_are_taken_by_name,
    "failure": test_drafts.test_a_retriever_that_fails_is_a_recorded_failure,
    "parts": lambda drafts: test_fit.test_parts_share_no_question_and_are_in_each_set(drafts, fitted_of(drafts)),
    "equal_questions": test_fit.test_equal_questions_of_two_sets_go_together,
    "measured": lambda drafts: test_fit.test_what_is_measured_can_be_computed_again(drafts, fitted_of(drafts)),
    "calibration": lambda drafts: test_fit.test_thresholds_are_chosen_on_the_calibration_part_alone(drafts, fitted_of(drafts)),
    "confidence": lambda drafts: test_fit.test_confidence_is_calibrated_at_the_natural_rate(drafts, fitted_of(drafts)),
    "kept_for_testing": test_fit.test_questions_kept_for_testing_are_refused,
    "seen": lambda drafts, tmp_path: test_fit.test_a_prober_is_not_measured_on_what_made_it(drafts, fitted_of(drafts), tmp_path),
    "saved": lambda drafts, tmp_path: test_fit.test_W5_saved_and_opened_it_decides_the_same(fitted_of(drafts), tmp_path),
}


def theta() -> None:
    values = {"prober": knowing_prober(), "threshold": None, "theta": 2.0, "combine": "logits"}
    assert probing_rag.settle(values)["threshold"] == -2.0


CHECKS["theta"] = theta
W, D, T = "training.drafting:", "training.drafts:", "training.fit:"
FAULTS = [
    Fault("a row takes its neighbour's states", f"{D}Drafts.rows", "made.place + offset", "max(0, made.place + offset - 1)", "rows"),
    Fault("states of the two drafts change places", f"{W}_draft", "np.stack([states[name] for name in rows])",
          "np.stack([states[name] for name in reversed(rows)])", "rows"),
    Fault("the last token is the first", f"{W}_states", "states[:, -1]", "states[:, 0]", "rows"),
    Fault("a pad is pooled", f"{W}_states", "states.mean(1)", "states.sum(1) / (states.shape[1] + 1)", "rows"),
    Fault("the prompt is another question's", f"{W}_prompt_state", "plan.prompt.build(question)", "plan.prompt.build('?')", "rows"),
    Fault("the next layer", f"{D}Drafts.of", "self.layers.index(layer)", "(self.layers.index(layer) + 1) % len(self.layers)", "layers"),
    Fault("states are not checked when a run goes on", f"{D}DraftFolder.done", "not _is_whole(file, line.value, self._row_bytes)",
          "False", "resumed"),
    Fault("what was left behind stays", f"{D}DraftFolder.done", "file.truncate(end)", "file.truncate(end) if False else None", "resumed"),
    Fault("states of another file are read", f"{D}_is_whole", "crc32(raw) == where.check", "True", "foreign_states"),
    Fault("a failure is done", f"{W}write_drafts", "kept.drop_failed()", "pass", "failure"),
    Fault("each draft goes to a part of its own", f"{T}tabulate", "strata = {row.key:", "strata = {row.key + row.draft.mode:", "parts"),
    Fault("equal questions part", f"{T}tabulate", "parts = part_questions(strata,",
          "strata = {r.id: r.dataset for r in rows}\n    rows = tuple(r.__class__(r.question, r.draft, r.place, r.id) for r in rows)\n"
          "    parts = part_questions(strata,", "equal_questions"),
    Fault("measured on what it was trained on", f"{T}fit", 'test = at["test"]', 'test = at["train"]', "measured"),
    Fault("calibrated on training rows", f"{T}fit", 'calibration = at["calibration"]', 'calibration = at["train"]', "calibration"),
    Fault("loss without the passages", f"{T}calibrate", 'row.draft.mode == "with"', 'row.draft.mode == "without"', "calibration"),
    Fault("one confidence for both kinds", f"{T}calibrate", "logistic(sums[modes == mode], right[modes == mode])",
          "logistic(sums, right)", "confidence"),
    Fault("test questions are let in", f"{T}tabulate", "row.key in plan.test_keys", "row.id in plan.test_keys", "kept_for_testing"),
    Fault("measured on what made it", "training.make:_refuse_seen", "row.key in seen", "row.id in seen", "seen"),
    Fault("saved without its temperatures", "probers.prober:Prober.save_pretrained", "msgspec.json.encode(self.card)",
          "msgspec.json.encode(msgspec.structs.replace(self.card, temperatures=(1.0,) * len(self.card.layers)))", "saved"),
    Fault("theta is the threshold", "strategies.probing_rag:settle", "else -theta", "else theta", "theta"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_the_check_sees(fault: Fault, drafts: Drafts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given = {"drafts": drafts, "tmp_path": tmp_path}
    check = CHECKS[fault.check]
    put(fault, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, InwardError, KeyError)):
        check(**{name: given[name] for name in inspect.signature(check).parameters})


def test_every_check_has_its_fault():
    assert {fault.check for fault in FAULTS} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_the_check_passes_without_a_fault(name: str, drafts: Drafts, tmp_path: Path):
    given = {"drafts": drafts, "tmp_path": tmp_path}
    CHECKS[name](**{key: given[key] for key in inspect.signature(CHECKS[name]).parameters})
