"""Faults put into the harness, thresholds and probers, each seen by the test that holds the guarantee."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mutating import Fault, put

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "evals"))
sys.path.insert(0, str(Path(__file__).parents[1] / "probers"))

import test_answers
import test_gates
import test_intervals
import test_metrics
import test_prober
import test_questions
import test_runs

import test_calibration
from inward.errors import InwardError

CHECKS: dict[str, Callable[..., object]] = {
    "torn_line": test_runs.test_C1_a_line_cut_in_half_is_asked_again_and_no_other,
    "finished_is_left": test_runs.test_a_finished_run_is_left_as_it_is_and_no_model_is_loaded,
    "another_run": test_runs.test_another_run_in_the_same_folder_is_refused,
    "another_model": test_runs.test_another_model_of_the_same_name_is_refused,
    "damaged_line": test_runs.test_a_damaged_line_in_the_middle_is_named,
    "failures": test_runs.test_a_failing_question_is_recorded_and_may_be_asked_again,
    "whole_folder": test_runs.test_a_run_has_a_folder_with_everything,
    "lock": test_runs.test_the_lock_is_needed,
    "trec": test_runs.test_scores_in_a_trec_file_fall_also_where_they_are_equal,
    "sample": test_questions.test_R5_the_same_sample_twice_and_from_a_shuffled_file,
    "made_ids": test_questions.test_an_id_made_from_the_content_survives_another_order,
    "distinct_ids": test_questions.test_S3_ids_are_distinct_texts,
    "by_hand": test_metrics.test_everything_by_hand,
    "failed_is_wrong": test_metrics.test_a_failed_question_is_wrong_and_listed,
    "no_answer": test_answers.test_no_answer_is_never_right,
    "left_out": test_intervals.test_what_is_not_defined_is_left_out_and_counted,
    "holm": test_intervals.test_holm_by_hand,
    "broken_value": test_gates.test_a_value_that_is_not_finite_is_the_most_uncertain,
    "aurc": test_gates.test_aurc_by_hand,
    "saved_prober": test_prober.test_W5_saved_and_opened_it_says_the_same,
    "verdicts": test_prober.test_the_value_is_the_sum_of_the_layers_verdicts,
    "skip_error": test_calibration.test_max_skip_error_by_hand,
    "ties": test_calibration.test_equal_values_are_skipped_together_or_not_at_all,
    "among_skipped": test_calibration.test_the_among_skipped_bound_by_hand,
    "consistency": test_gates.test_skip_error_and_consistency_by_hand,
}

F, Q, M = "evals.folder:", "evals.questions:", "evals.metrics:"
FAULTS = [
    Fault("a half line is kept", f"{F}_cut_torn_line", "if keep < end:", "if False:", "torn_line"),
    Fault("the last whole line goes too", f"{F}_cut_torn_line", "keep = start + found + 1", "keep = start", "torn_line"),
    Fault("final files are in the order of finishing", f"{F}RunFolder.finish", "source.seek(places[id])", "pass", "torn_line"),
    Fault("everything is asked again", f"{F}RunFolder.done", "done[record.id] = number", "done[str(number)] = number", "torn_line"),
    Fault("a finished run is run again", "evals.suite:_run_all", "todo or not _is_finished(made)", "True", "finished_is_left"),
    Fault("another run is let in", f"{F}check_same", "if differs:", "if False:", "another_run"),
    Fault("another model is let in", f"{F}RunFolder.begin", "check_same(old, run.identity, self.path)", "pass", "another_model"),
    Fault("an id may come twice", f"{F}RunFolder.done", "if record.id in done:", "if False:", "damaged_line"),
    Fault("failed questions are kept", f"{F}RunFolder.done", "without_failed and self.failed", "False", "failures"),
    Fault("records are those of the neighbour", "evals.suite:_ask", "todo[finished.place]", "todo[finished.place - 1]", "whole_folder"),
    Fault("no lock", f"{F}RunFolder.__enter__", "self._lock.acquire(timeout=0)", "pass", "lock"),
    Fault("equal scores stay equal", f"{F}trec_lines", "last - _STEP", "last", "trec"),
    Fault("a sample depends on the order", f"{Q}choose", "(_rank(sample_seed, id), id)", "0", "sample"),
    Fault("the seed does not matter", f"{Q}_rank", "{seed}", "0", "sample"),
    Fault("an id is the row's number", f"{Q}_Gathering.take", "made_id(raw.question, answers)", "str(self.rows)", "made_ids"),
    Fault("numbers and texts are one id", f"{Q}_Gathering.take", "isinstance(raw.id, str), id)", "True, id)", "distinct_ids"),
    Fault("recall counts passages", f"{M}_gold_names", "frozenset({id, passage.document, passage.title} & set(record.supporting))",
          "frozenset({id})", "by_hand"),
    Fault("recall looks at every search", f"{M}_found", "record.searches[0]", "record.searches[-1]", "by_hand"),
    Fault("a failed question counts by its text", f"{M}_answer", "0.0 if record.error is not None else value", "value", "failed_is_wrong"),
    Fault("nothing equals nothing", "evals.answers:exact_match", "if not answer.strip():", "if False:", "no_answer"),
    Fault("undefined counts as zero", "evals.intervals:means", "sum() / count)", "sum() / len(matrix))", "left_out"),
    Fault("Holm without its steps", "evals.intervals:holm", "len(ranked) - rank", "len(ranked)", "holm"),
    Fault("a broken value is certain", "evals.gates:_rank", "np.where(np.isfinite(uncertain), uncertain, np.inf)",
          "np.where(np.isfinite(uncertain), uncertain, -np.inf)", "broken_value"),
    Fault("the unsure come first", "evals.gates:_aurc", "np.cumsum(share)", "np.cumsum(share[::-1])", "aurc"),
    Fault("layers are saved in another order", "probers.network:join", "for layer in layers]", "for layer in sorted(layers, reverse=True)]",
          "saved_prober"),
    Fault("no temperatures", "probers.prober:Prober.logits", "/ temperatures[:, None]", "", "verdicts"),
    Fault("sure is unsure", "probers.prober:Prober.contributions", "sides[..., 0] - sides[..., 1]", "sides[..., 1] - sides[..., 0]",
          "verdicts"),
    Fault("no correction for the next question", "calibration:max_skip_error", "(ranked.losses(cut) + 1) / (ranked.n + 1) > alpha",
          "ranked.losses(cut) / ranked.n > alpha", "skip_error"),
    Fault("a question at the threshold is not skipped", "calibration:_Sorted.skipped", 'side="right"', 'side="left"', "ties"),
    Fault("the observed share instead of its bound", "calibration:max_skip_error_among_skipped",
          "beta.ppf(confidence, bad + 1, skipped - bad)", "bad / skipped", "among_skipped"),
    Fault("consistency over all questions", "evals.gates:consistency", "r if u == 1.0 else None", "r", "consistency"),
]  # fmt: skip


def call(check: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    check(**{name: given[name] for name in inspect.signature(check).parameters})


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_the_check_sees(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check = CHECKS[fault.check]
    random.seed(0)
    put(fault, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, InwardError)):
        call(check, tmp_path, monkeypatch)


def test_every_check_has_its_fault():
    assert {fault.check for fault in FAULTS} == set(CHECKS)
