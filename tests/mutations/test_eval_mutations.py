"""Faults put into the harness, thresholds and probers, each seen by the test that holds the guarantee."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
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
import test_report
import test_runs

import test_calibration
from inward.errors import InwardError
from inward.evals import answers


def infinite_threshold(tmp_path: Path) -> None:
    strategies = [{"name": "gated(mean-nll)", "options": {"threshold": float("inf")}}]
    test_runs.test_a_run_knows_itself_again_whatever_json_makes_of_it({"strategies": strategies}, tmp_path)


def all_alike() -> None:
    test_intervals.test_where_all_agree_the_interval_is_the_exact_one(5)


def two_unaided(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "again").mkdir()
    test_report.test_of_two_unaided_runs_the_whole_one_judges_the_gates_and_that_is_said(
        test_report.make_runs(tmp_path / "runs"), tmp_path / "again"
    )


CHECKS: dict[str, Callable[..., object]] = {
    "settings": test_runs.test_an_option_that_no_strategy_has_is_refused_in_a_setting_too,
    "unknown_run": test_runs.test_outcomes_of_an_unknown_run_are_not_adopted,
    "models": test_runs.test_models_are_told_apart_by_name_and_options,
    "two_unaided": two_unaided,
    "rate": lambda: test_calibration.test_a_rate_that_is_a_whole_number_of_questions_is_met_exactly(50),
    "blank_line": test_runs.test_a_blank_line_is_none,
    "infinite_threshold": infinite_threshold,
    "kept_failures": test_runs.test_what_failed_is_kept_until_it_can_be_asked_again,
    "unaided": test_report.test_each_run_is_set_against_the_unaided_run_of_its_own_prompt_and_model,
    "changed_gold": test_questions.test_changed_gold_is_other_data,
    "columns": test_questions.test_a_named_column_wins_over_a_field_of_that_name,
    "free_names": test_questions.test_a_number_never_takes_a_texts_name,
    "one_passage": test_metrics.test_one_passage_under_two_gold_names_is_a_perfect_ranking,
    "empty_name": test_metrics.test_a_passage_without_title_is_no_gold_passage_without_name,
    "all_alike": all_alike,
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

F, G, Q, M = "evals.folder:", "evals.gathering:Gathering.", "evals.questions:", "evals.metrics:"
FAULTS = [
    Fault("a half line is kept", f"{F}cut_torn_line", "if keep < end:", "if False:", "torn_line"),
    Fault("the last whole line goes too", f"{F}cut_torn_line", "keep = start + found + 1", "keep = start", "torn_line"),
    Fault("a setting's options are not looked at", "evals.suite:_check_settings", "if name not in known:", "if False:", "settings"),
    Fault("outcomes are adopted", f"{F}RunFolder.begin", "lines.stat().st_size", "False", "unknown_run"),
    Fault("one model for all", "evals.suite:Loaded.lm", "!= asked", "is None", "models"),
    Fault("the last unaided run is the reference", "evals.report:_unaided", "> len(getattr", ">= 0 * len(getattr", "two_unaided"),
    Fault("rates are compared as shares", "calibration:retrieval_rate", "ranked.n - ranked.skipped(t) <= most",
          "1 - ranked.skipped(t) / ranked.n <= rate", "rate"),
    Fault("final files are in the order of finishing", f"{F}RunFolder.put_in_order", "source.seek(places[id])", "pass", "torn_line"),
    Fault("everything is asked again", f"{F}RunFolder.done", "done.add(line.value.id)", "done.add(line.raw)", "torn_line"),
    Fault("lines begin where the one before began", f"{F}numbered", "start += len(raw)", "start += len(raw) - 1", "blank_line"),
    Fault("a finished run is run again", "evals.suite:_run_all", "todo or not _is_finished(made)", "True", "finished_is_left"),
    Fault("another run is let in", f"{F}check_same", "if differs:", "if False:", "another_run"),
    Fault("another model is let in", f"{F}RunFolder.begin", "check_same(old, run.identity, self.path)", "pass", "another_model"),
    Fault("values are compared as they are in memory", f"{F}check_same", "_flat(plain(", "_flat((", "infinite_threshold"),
    Fault("an id may come twice", f"{F}numbered", "if value.id in seen:", "if False:", "damaged_line"),
    Fault("failed questions are kept", "evals.suite:_run_all", "set(folder.failed) if retry_failed else set()", "set()", "failures"),
    Fault("failed questions are dropped before the model is there", "evals.suite:_run_all", "            done = folder.done()",
          "            done = folder.done()\n            retry_failed and folder.failed and folder.drop_failed()", "kept_failures"),
    Fault("records are those of the neighbour", "evals.suite:_ask", "todo[finished.place]", "todo[finished.place - 1]", "whole_folder"),
    Fault("no lock", f"{F}RunFolder.__enter__", "self._lock.acquire(timeout=0)", "pass", "lock"),
    Fault("equal scores stay equal", f"{F}trec_lines", "last - max(_STEP, 2 * ulp(last))", "last", "trec"),
    Fault("the unaided run is the first of its data", "evals.report:make_report", "unaided.get(s.conditions)",
          "next(iter(unaided.values()), None)", "unaided"),
    Fault("a sample depends on the order", f"{Q}choose", "(_rank(sample_seed, id), id)", "0", "sample"),
    Fault("the seed does not matter", f"{Q}_rank", "{seed}", "0", "sample"),
    Fault("gold passages are not part of the data", "evals.gathering:data_hash", ", q.supporting]", "]", "changed_gold"),
    Fault("a field wins over the named column", f"{Q}_by_columns", "own | {name", "{name", "columns"),
    Fault("an id is the row's number", f"{G}take", "made_id(raw.question, answers)", "str(self.rows)", "made_ids"),
    Fault("numbers and texts are one id", f"{G}take", "isinstance(raw.id, str), id)", "True, id)", "distinct_ids"),
    Fault("a number takes a text's name", f"{G}result", "while not is_text and name in taken:", "if not is_text and name in taken:",
          "free_names"),
    Fault("recall counts passages", f"{M}_gold_names", "({id, passage.document, passage.title} - {\"\"}) & set(record.supporting)",
          "{id}", "by_hand"),
    Fault("recall looks at every search", f"{M}_found", "record.searches[0]", "record.searches[-1]", "by_hand"),
    Fault("a failed question counts by its text", f"{M}_answer", "0.0 if record.error is not None else value", "value", "failed_is_wrong"),
    Fault("nothing equals nothing", "evals.normalise:Normaliser.normal", "found or not self.keeps_bare", "True", "no_answer"),
    Fault("names of one passage count apart", f"{M}_share_of_best_gain", "max(0, len(new) - 1)", "0", "one_passage"),
    Fault("an empty name is a name", f"{M}_gold_names", ' - {""}', "", "empty_name"),
    Fault("all alike is beyond doubt", "evals.intervals:means", "doubt = 1 - 0.025 ** (1 / int(count))", "doubt = 0.0", "all_alike"),
    Fault("undefined counts as zero", "evals.intervals:means", "sum() / count)", "sum() / len(matrix))", "left_out"),
    Fault("Holm without its steps", "evals.intervals:holm", "len(ranked) - rank", "len(ranked)", "holm"),
    Fault("a broken value is certain", "evals.gates:_rank", "np.where(np.isfinite(uncertain), uncertain, np.inf)",
          "np.where(np.isfinite(uncertain), uncertain, -np.inf)", "broken_value"),
    Fault("the unsure come first", "evals.gates:_aurc", "np.cumsum(share)", "np.cumsum(share[::-1])", "aurc"),
    Fault("layers are saved in another order", "probers.network:join", "for layer in layers]", "for layer in sorted(layers, reverse=True)]",
          "saved_prober"),
    Fault("no temperatures", "probers.prober:Prober.logits", "/ temperatures[:, None]", "", "verdicts"),
    Fault("sure is unsure", "probers.prober:Prober.margins", "logits[..., 0] - logits[..., 1]", "logits[..., 1] - logits[..., 0]",
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


@pytest.fixture(autouse=True)
def remembers_nothing_faulty() -> Iterator[None]:
    answers._remembered.cache_clear()
    yield
    answers._remembered.cache_clear()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_the_check_sees(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check = CHECKS[fault.check]
    random.seed(0)
    put(fault, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, InwardError, msgspec.DecodeError)):
        call(check, tmp_path, monkeypatch)


def test_every_check_has_its_fault():
    assert {fault.check for fault in FAULTS} == set(CHECKS)
