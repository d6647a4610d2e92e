"""`inward prober`: the chain from questions to answers on a real tiny model, and what is refused before any work starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drafted import PLAN, Model, data
from fitting import QUICK_FLAGS

from inward import cli
from inward.lm import BatchedLM
from inward.probers import Prober
from inward.testing import tiny_lm
from inward.training import make
from inward.training.drafting import write_drafts
from inward.training.drafts import read_drafts

QUESTIONS = 40


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Questions on which a tiny random model is as often right as wrong: the columns say so."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"id": str(n), "question": f"What is {n}?", "answers": ["x"], "right_without": n % 2 == 0, "right_with": n % 3 == 0}
        for n in range(QUESTIONS)
    ]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "p.toml").write_text('rationale = ""\nmax_tokens = 4\nstop = ["\\n"]\n')
    return "qa.jsonl"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> BatchedLM:
    """A tiny model under the name `tiny`."""
    lm = tiny_lm("llama")
    monkeypatch.setattr(make, "load_lm", lambda name, **_: lm)
    monkeypatch.setattr("inward.lm.load_lm", lambda name, **_: lm)
    return lm


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


TRAIN = (
    "prober",
    "train",
    "made",
    "--data",
    "qa.jsonl",
    "--model",
    "tiny",
    "--prompt",
    "p.toml",
    "--label",
    "column",
    "--set",
    "layers=0,1",
)


def test_from_questions_to_a_prober_and_its_thresholds(questions: str, tiny: BatchedLM, capsys: pytest.CaptureFixture[str]):
    assert run(*TRAIN, *QUICK_FLAGS, "--threshold", "balanced", "--threshold", "retrieval-rate=0.5") == 0
    said = capsys.readouterr().out
    assert "reads        resid_post, blocks 0, 1" in said
    assert "AUROC" in said
    assert (Path("made") / "plots" / "accuracy.svg").exists()
    assert (Path("made") / "plots" / "logits.svg").exists()
    prober = Prober.from_pretrained("made")
    assert prober.card.label == "column"
    assert prober.card.model == tiny.fingerprint
    assert len(prober.card.question_hashes) == QUESTIONS
    assert [t.name for t in prober.card.thresholds] == ["balanced", "retrieval-rate=0.5"]
    before = read_drafts("made/drafts").rows
    assert run(*TRAIN, *QUICK_FLAGS) == 0, "drafts that are there are not written again"
    assert [row.draft for row in read_drafts("made/drafts").rows] == [row.draft for row in before]
    capsys.readouterr()

    assert run("prober", "info", "made", "--json") == 0
    assert json.loads(capsys.readouterr().out)["label"] == "column"
    assert run("prober", "calibrate", "made", "--threshold", "retrieval-rate=0.25", "--save", "t.json") == 0
    assert "theta" in capsys.readouterr().out
    assert json.loads(Path("t.json").read_text())["scale"] == "logits"
    assert run("prober", "calibrate", "made", "--combine", "probabilities", "--save", "p.json") == 0
    assert json.loads(Path("p.json").read_text())["scale"] == "probabilities"


def test_a_prober_is_measured_and_calibrated_on_new_questions(questions: str, tiny: BatchedLM, capsys: pytest.CaptureFixture[str]):
    assert run(*TRAIN, *QUICK_FLAGS, "--set", "plots=false") == 0
    rows = [json.loads(line) for line in Path(questions).read_text().splitlines()]
    new = [{**row, "id": f"n{row['id']}", "question": f"Who is {row['id']}?"} for row in rows[:20]]
    Path("new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in new))
    capsys.readouterr()
    arguments = ("--data", "new.jsonl", "--drafts", "new-drafts", "--prompt", "p.toml")
    assert run("prober", "eval", "made", *arguments, "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["data"], line["mode"], line["right"] + line["wrong"]) for line in lines] == [("new", "without", 20), ("new", "with", 20)]
    assert run("prober", "calibrate", "made", *arguments, "--threshold", "retrieval-rate=0.5", "--out", "moved") == 0
    assert len(Prober.from_pretrained("moved").calibration) == 20
    assert len(Prober.from_pretrained("made").calibration) == 8
    assert run("prober", "eval", "made", "--drafts", "made/drafts") == 2
    assert "was made with 40 of these questions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("--label", "answr"), "answr"),
        (("--set", "recipe=papr"), "papr"),
        (("--set", "hiden=3"), "hiden"),
        (("--set", "epochs=many"), "--set"),
        (("--set", "layers=1,x"), "layers takes"),
        (("--set", "k=0"), "k takes a whole number of at least 1"),
        (("--set", "site=nowhere"), "site must be one of"),
        (("--set", "layers=9"), r"layers [9] do not exist"),
        (("--threshold", "max-skip-eror=0.1"), "max-skip-eror"),
        (("--test", "qa.jsonl"), "are among those kept for testing"),
        (("--data", "missing.jsonl"), "missing.jsonl"),
        (("--data", "qa=qa.jsonl"), "two data sets are called 'qa'"),
        (("--index", "other=demo"), "'other', which is no data set here"),
        (("--threshold", "max-skip-error=0.0001"), "cannot be certified"),
    ],
)
def test_what_cannot_work_is_refused(
    changed: tuple[str, str], said: str, questions: str, tiny: BatchedLM, capsys: pytest.CaptureFixture[str]
):
    assert run(*TRAIN, *QUICK_FLAGS, *changed) in (1, 2)
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_answers_are_needed_by_rules_that_compare(questions: str, tiny: BatchedLM, capsys: pytest.CaptureFixture[str]):
    assert run("prober", "train", "made") == 2
    assert "no questions are given" in capsys.readouterr().err
    assert run("prober", "info", "nowhere") == 1
    assert "nowhere" in capsys.readouterr().err


def test_failures_stop_training_unless_allowed(
    tmp_path: Path, questions: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Failing(Model):
        async def generate(self, prompt, sampling=None, *, capture=None):
            if "What is 7?" in str(prompt):
                raise RuntimeError("out of order")
            return await super().generate(prompt, sampling, capture=capture)

    monkeypatch.setattr(make, "load_lm", lambda name, **_: Failing())
    train = (*TRAIN, "--set", "plots=false", "--index", "-", *QUICK_FLAGS)
    assert run(*train) == 1
    assert "1 of 40 questions failed, such as 'qa/7' (RuntimeError: out of order)" in capsys.readouterr().err
    assert run(*train, "--set", "allow_failed=true") == 0
    monkeypatch.setattr(make, "load_lm", lambda name, **_: Model())
    assert run(*train, "--retry-failed") == 0
    assert len(read_drafts("made/drafts").rows) == 40


def test_drafts_of_another_prompt_do_not_fit_a_prober(tmp_path: Path, questions: str, tiny: BatchedLM, capsys: pytest.CaptureFixture[str]):
    assert run(*TRAIN, *QUICK_FLAGS, "--set", "plots=false") == 0
    write_drafts([data(12)], Model(), PLAN, tmp_path / "other")
    assert run("prober", "eval", "made", "--drafts", "other") == 2
    assert "made for model" in capsys.readouterr().err
