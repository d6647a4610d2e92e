"""Writes the drafts of which the shipped prober is made: every training question of three sets, those without passages too.

    python drafts.py [--out work/drafts] [--threads 1]

About two hours on one core; it goes on where it was stopped. The same as `inward prober train ... --set layers=all`, which keeps fewer
states: here also those of each draft's last token and of the prompt's, for the study.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from inward import load_lm, load_retriever
from inward.evals.questions import load_questions
from inward.prompts import PromptTemplate
from inward.training.drafting import DraftData, DraftPlan, write_drafts
from inward.types import Capture

HERE = Path(__file__).parent
DATA = HERE.parents[2] / "shared" / "data"
SETS = ("nq", "triviaqa", "hotpotqa")
QUESTIONS_ONLY = "-qonly"
"""Ending of the names of sets whose questions have no passages."""


def sets(indexes: Path) -> list[DraftData]:
    """Return the questions of every set, and where their passages are."""
    found = []
    for name in SETS:
        questions = load_questions(DATA / name / "questions.train.jsonl.gz", dataset=name)
        index = indexes / name
        found.append(DraftData(name=name, questions=questions, index=str(index), retriever=load_retriever(str(index))))
        alone = DATA / name / "questions.train_qonly.jsonl.gz"
        if alone.exists():
            found.append(DraftData(name=name + QUESTIONS_ONLY, questions=load_questions(alone, dataset=name)))
    return found


def main() -> None:
    """Write what is not written yet."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=str(HERE / "work" / "drafts"))
    parser.add_argument("--indexes", default=str(HERE.parent / "evaluation" / "work" / "index"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lm = load_lm("demo")
    layers = tuple(range(lm.backend.num_layers))
    plan = DraftPlan(capture=Capture(layers=layers), prompt=PromptTemplate.load(), prompt_states=True, last_states=True)
    write_drafts(sets(Path(args.indexes)), lm, plan, args.out, model="demo", progress=True)


if __name__ == "__main__":
    main()
