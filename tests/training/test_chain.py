"""The whole chain on a real chat model: drafts through its own template, a prober, a threshold, an answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from inward.evals.run import evaluate
from inward.lm import BatchedLM
from inward.probers import Prober
from inward.probers.train import Recipe
from inward.prompts import PromptTemplate
from inward.strategies import load_strategy
from inward.training import make
from inward.training.fit import FitPlan
from inward.training.labels import load_label
from inward.training.make import Sources, make_drafts, train_prober

LAYERS = (10, 20, 29)
COUNT = 40


@pytest.mark.real
def test_a_chat_model_needs_nothing_special(smollm: BatchedLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two hundred questions in `benchmarks`; forty here, whose labels are given: what counts is that every part fits the next."""
    assert "chat" in smollm.supports
    monkeypatch.setattr(make, "load_lm", lambda name, **_: smollm)
    rows = [
        {
            "id": str(n),
            "question": f"What is {n} plus {n % 7}?",
            "answers": [str(n + n % 7)],
            "right_without": n % 2 == 0,
            "right_with": n % 3 > 0,
        }
        for n in range(COUNT)
    ]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "p.toml").write_text('system = "Answer in one word."\nrationale = ""\nmax_tokens = 6\n')
    prompt = PromptTemplate.load(tmp_path / "p.toml")
    sources = Sources(data={"sums": str(tmp_path / "qa.jsonl")}, index={"": "demo"})
    drafts = make_drafts(sources, tmp_path / "drafts", model="smollm2", layers=LAYERS, prompt=prompt, k=1)
    assert len(drafts.rows) == 2 * COUNT
    plan = FitPlan(label=load_label("column"), recipe=Recipe(hidden=4, depth=1, epochs=4), thresholds=("retrieval-rate=0.5",))
    fitted = train_prober(drafts, tmp_path / "prober", plan)
    assert fitted.prober.card.model == smollm.fingerprint
    assert fitted.prober.card.layers == LAYERS

    strategy = load_strategy(
        "probing-rag",
        lm=smollm,
        retriever=sources.load()[0].retriever,
        prober=str(tmp_path / "prober"),
        prompt=prompt,
        k=1,
        max_retrievals=1,
    )
    outcomes = asyncio.run(evaluate(strategy, [row["question"] for row in rows[:12]]))
    assert not [outcome.error for outcome in outcomes if outcome.error]
    assert all(0 <= (outcome.confidence or 0) <= 1 for outcome in outcomes)
    # what the strategy read of its draft is what was kept of the same draft when the prober was made
    prober = Prober.from_pretrained(tmp_path / "prober")
    first = {row.question.question: row for row in drafts.rows if row.draft.mode == "without"}
    for outcome in outcomes:
        row = first[outcome.question]
        assert outcome.events[0].texts[0].strip().startswith(row.draft.short[:1])
        kept = prober.read(drafts.of([row], LAYERS)[0]).value
        assert outcome.gates[0].value == pytest.approx(kept, rel=1e-3, abs=1e-3)
    assert np.isfinite([gate.value for outcome in outcomes for gate in outcome.gates]).all()
