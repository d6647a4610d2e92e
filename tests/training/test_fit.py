"""From drafts to a prober: parts that share no question, calibration on its own part, and numbers that can be computed again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drafted import LAYERS, PLAN, Index, Model, data, knows, number, states
from sklearn.metrics import roc_auc_score

from inward.errors import BadInput, UsageError
from inward.evals.gates import ece
from inward.evals.questions import text_hash
from inward.evals.run import evaluate
from inward.probers import Prober
from inward.probers.train import PARTS, Recipe
from inward.strategies import load_strategy
from inward.training.drafting import DraftData, write_drafts
from inward.training.drafts import Drafts, read_drafts
from inward.training.fit import FitPlan, Fitted, fit, logistic, tabulate
from inward.training.labels import load_label
from inward.training.make import evaluate_prober, recalibrate
from inward.training.measures import measure
from inward.types import Capture

QUICK = Recipe(hidden=8, depth=1, epochs=15, learning_rate=3e-3)


def plan(**changes: object) -> FitPlan:
    return replace(FitPlan(label=load_label("answer"), recipe=QUICK), **changes)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> Drafts:
    folder = tmp_path_factory.mktemp("drafts")
    write_drafts([data(160), data(120, name="e")], Model(), replace(PLAN, concurrency=50), folder)
    return read_drafts(folder)


@pytest.fixture(scope="module")
def fitted(drafts: Drafts) -> Fitted:
    return fit(drafts, plan())


def test_parts_share_no_question_and_are_in_each_set(drafts: Drafts, fitted: Fitted):
    table = fitted.table
    by_key: dict[str, set[str]] = {}
    for row, part in zip(table.rows, table.parts, strict=True):
        by_key.setdefault(row.key, set()).add(part)
    assert all(len(parts) == 1 for parts in by_key.values())
    count = Counter((row.dataset, part) for row, part in zip(table.rows, table.parts, strict=True) if row.draft.mode == "without")
    for name, whole in (("d", 160), ("e", 120)):
        for part, share in zip(PARTS, (0.6, 0.1, 0.2, 0.1), strict=True):
            assert count[name, part] == pytest.approx(share * whole, abs=1)
    assert sum(fitted.prober.card.rows.values()) == len(table.rows) == 560


def test_equal_questions_of_two_sets_go_together(tmp_path: Path):
    one = data(40)
    write_drafts([one, DraftData(name="e", questions=one.questions, index="i", retriever=Index())], Model(), PLAN, tmp_path)
    table = tabulate(read_drafts(tmp_path), plan())
    parts: dict[str, set[str]] = {}
    for row, part in zip(table.rows, table.parts, strict=True):
        parts.setdefault(row.question.id, set()).add(part)
    assert all(len(found) == 1 for found in parts.values())


def test_labels_follow_their_drafts(fitted: Fitted):
    for row, right in zip(fitted.table.rows, fitted.table.right, strict=True):
        assert right == knows(row.question.question, row.draft.mode == "with")


def test_what_is_measured_can_be_computed_again(drafts: Drafts, fitted: Fitted):
    """Per data set and mode, on the test part alone, against scikit-learn."""
    table, prober = fitted.table, fitted.prober
    test = table.of("test")
    margins = prober.margins(drafts.of([table.rows[i] for i in test]))
    for measured in prober.card.measured:
        taken = [
            n for n, i in enumerate(test) if measured.data in ("all", table.rows[i].dataset) and table.rows[i].draft.mode == measured.mode
        ]
        right = table.right[test][taken]
        assert (measured.right, measured.wrong) == (right.sum(), (~right).sum())
        for place, layer in enumerate(LAYERS):
            values = margins[taken, place]
            assert measured.auroc[str(layer)] == pytest.approx(roc_auc_score(~right, values))
            assert measured.accuracy[str(layer)] == pytest.approx(((values < 0) == right).mean())
        assert measured.auroc["combined"] == pytest.approx(roc_auc_score(~right, margins[taken].sum(1)))
    assert {(m.data, m.mode) for m in prober.card.measured} == {(d, m) for d in ("d", "e", "all") for m in ("without", "with")}
    pooled = next(m for m in prober.card.measured if (m.data, m.mode) == ("all", "without"))
    assert pooled.auroc["combined"] is not None
    assert pooled.auroc["combined"] > 0.9, "the states say it plainly"


def test_thresholds_are_chosen_on_the_calibration_part_alone(drafts: Drafts, fitted: Fitted):
    table, prober = fitted.table, fitted.prober
    mine = [i for i in table.of("calibration") if table.rows[i].draft.mode == "without"]
    assert len(prober.calibration) == len(mine) == 56
    margins = prober.margins(drafts.of([table.rows[i] for i in mine]))
    assert np.allclose([row.margins for row in prober.calibration], margins, rtol=1e-5)
    for row, i in zip(prober.calibration, mine, strict=True):
        text = table.rows[i].question.question
        assert (row.right_without, row.right_with, row.data) == (knows(text, False), knows(text, True), table.rows[i].dataset)
        assert row.lost == (knows(text, True) and not knows(text, False))
    assert prober.card.thresholds[0].name == "balanced"
    assert prober.card.thresholds[0].n == 56


def test_confidence_is_calibrated_at_the_natural_rate(drafts: Drafts, fitted: Fitted):
    table, prober = fitted.table, fitted.prober
    for mode in ("without", "with"):
        mine = [i for i in table.of("calibration") if table.rows[i].draft.mode == mode]
        readings = [prober.read(state) for state in drafts.of([table.rows[i] for i in mine])]
        sure = [prober.confidence(reading, with_passages=mode == "with") for reading in readings]
        yes, n = int(table.right[mine].sum()), len(mine)
        targets = (yes * (yes + 1) / (yes + 2) + (n - yes) / (n - yes + 2)) / n  # Platt's; a fit by likelihood meets their mean
        assert np.mean(sure) == pytest.approx(targets, abs=2e-3)
        assert roc_auc_score(table.right[mine], sure) > 0.9


def test_shuffled_labels_teach_nothing(drafts: Drafts):
    rng = np.random.default_rng(0)
    shuffled = dict(zip([row.id + row.draft.mode for row in drafts.rows], rng.random(len(drafts.rows)) < 0.4, strict=True))
    label = replace(load_label("answer"), of=lambda draft, question: bool(shuffled[f"{question.dataset}/{question.id}{draft.mode}"]))
    prober = fit(drafts, plan(label=label)).prober
    pooled = next(m for m in prober.card.measured if (m.data, m.mode) == ("all", "without"))
    assert 0.15 < (pooled.auroc["combined"] or 0) < 0.85, "28 drafts: two standard errors are 0.22; of true labels it is above 0.9"


def test_W5_saved_and_opened_it_decides_the_same(fitted: Fitted, tmp_path: Path):
    """The chain: drafts, training, calibration, the strategy; the prober that was saved and the one that was made say the same."""
    fitted.prober.save_pretrained(tmp_path / "p")
    again = Prober.from_pretrained(tmp_path / "p")
    assert again.fingerprint == fitted.prober.fingerprint
    assert again.calibration == fitted.prober.calibration
    questions = [f"What is new {n}?" for n in range(60)]
    outcomes = []
    for prober in (fitted.prober, str(tmp_path / "p")):
        strategy = load_strategy("probing-rag", lm=Model(), retriever=Index(), prober=prober, max_retrievals=1)
        outcomes.append(asyncio.run(evaluate(strategy, questions)))
    assert [[g.value for g in o.gates] for o in outcomes[0]] == [[g.value for g in o.gates] for o in outcomes[1]]
    agrees = [outcome.gates[0].open != knows(outcome.question, False) for outcome in outcomes[0]]
    assert np.mean(agrees) > 0.85
    states_read = states(outcomes[0][0].events[0].texts[0], Capture(layers=LAYERS))
    assert outcomes[0][0].gates[0].value == pytest.approx(fitted.prober.read(states_read).value, rel=1e-5)


def test_questions_kept_for_testing_are_refused(drafts: Drafts):
    key = text_hash("what is thing D7 ?")
    with pytest.raises(BadInput, match=r"1 questions are among those kept for testing, such as 'd/7'"):
        fit(drafts, plan(test_keys=frozenset({key})))


def test_one_class_is_refused(tmp_path: Path):
    class Always(Model):
        def __init__(self) -> None:
            super().__init__()
            self._answer = lambda prompt: (
                f"So. Answer: gold {number(prompt.rpartition('Question:')[2].partition(chr(10))[0].strip()) % 97}."
            )

    write_drafts([data(40)], Always(), PLAN, tmp_path)
    with pytest.raises(BadInput, match=r"has \d+ right and 0 wrong drafts"):
        fit(read_drafts(tmp_path), plan())


def test_a_prober_is_not_measured_on_what_made_it(drafts: Drafts, fitted: Fitted, tmp_path: Path):
    for use in (evaluate_prober, lambda p, d: recalibrate(p, d, ["balanced"])):
        with pytest.raises(UsageError, match=r"was made with 280 of these questions, such as 'd/0'"):
            use(fitted.prober, drafts)
    write_drafts([data(50, name="new")], Model(), PLAN, tmp_path)
    fresh = read_drafts(tmp_path)
    (without, with_) = evaluate_prober(fitted.prober, fresh)
    assert (without.right + without.wrong, with_.right + with_.wrong) == (50, 50)
    moved = recalibrate(fitted.prober, fresh, ["retrieval-rate=0.5"])
    assert len(moved.calibration) == 50
    assert moved.card.thresholds[0].retrieval_rate == pytest.approx(0.5, abs=0.03)
    other = fitted.prober.__class__(fitted.prober.probes, replace_card(fitted.prober, prompt="another"))
    with pytest.raises(UsageError, match="made for prompt 'another'"):
        evaluate_prober(other, fresh)


def replace_card(prober: Prober, **changes: object):
    import msgspec

    return msgspec.structs.replace(prober.card, **changes)


def test_a_data_set_with_one_class_has_no_auroc(drafts: Drafts, fitted: Fitted):
    rows = [row for row in drafts.rows if row.draft.mode == "without"][:5]
    (found,) = measure(np.zeros((5, 3), np.float32), rows, np.ones(5, bool), LAYERS, fitted.prober)
    assert set(found.auroc.values()) == {None}


def test_R2_the_card_says_how_the_prober_was_made(tmp_path: Path):
    write_drafts([data(20)], Model(), PLAN, tmp_path)
    shares = {"train": 1.0, "early-stopping": 1.0, "calibration": 1.0, "test": 1.0}
    card = fit(read_drafts(tmp_path), plan(shares=shares, recipe=Recipe(hidden=4, depth=1, epochs=2, seed=3))).prober.card
    assert sum(n for part, n in card.rows.items() if part.endswith("without passages")) == 20
    assert sum(n for part, n in card.rows.items() if part.endswith("with passages")) == 20
    for part, n in card.rows.items():
        assert 0 <= card.right[part] <= n
    assert sum(card.right.values()) == sum(knows(f"What is thing d{n}?", with_) for n in range(20) for with_ in (False, True))
    recipe = card.training["recipe"]
    assert (recipe.learning_rate, recipe.batch, recipe.seed) == (1e-4, 64, 3)
    assert (card.layers, card.site, card.pool, card.training["shares"]) == (LAYERS, "resid_post", "mean", shares)
    assert "end token" in card.positions


def test_X10_raw_scores_become_a_monotone_confidence():
    rng = np.random.default_rng(5)
    raw = rng.normal(0, 4, 200)
    right = rng.random(200) < 1 / (1 + np.exp(0.4 * raw + 0.8))
    a, b = logistic(raw[:100], right[:100])
    sure = 1 / (1 + np.exp(-(a + b * raw)))
    assert ((sure > 0) & (sure < 1)).all()
    order = np.argsort(raw)
    assert (np.diff(sure[order]) <= 0).all(), "surer where the score is lower"
    held = right[100:].astype(float).tolist()
    before = ece((1 / (1 + np.exp(np.clip(raw[100:], -60, 60)))).tolist(), held).value
    assert (ece(sure[100:].tolist(), held).value or 0) <= (before or 0)
    assert roc_auc_score(~right, raw) == pytest.approx(roc_auc_score(right, sure))
