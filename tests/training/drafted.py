"""A model whose states can be computed again from what it wrote, so that a row that is another's is seen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from inward.evals.questions import load_questions
from inward.prompts import PromptTemplate
from inward.testing import FixedRetriever, FunctionLM, prompt_text
from inward.training.drafting import DraftData, DraftPlan, write_drafts
from inward.types import Capture, Passage, Prompt

LAYERS, WIDTH = (1, 2, 4), 6
PLAN = DraftPlan(capture=Capture(layers=LAYERS), prompt=PromptTemplate.load(), prompt_states=True, last_states=True, concurrency=7)


def number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big")


def knows(question: str, passages: bool) -> bool:
    """Whether the model answers this question: a third of them unaided, half with passages."""
    return number(f"{question}{passages}") % 6 < (3 if passages else 2)


def asked(prompt: str) -> str:
    return prompt.rpartition("Question:")[2].partition("\n")[0].strip()


def said(prompt: str) -> str:
    question = asked(prompt)
    right = knows(question, "a passage of" in prompt)
    return f"Thinking of {question}. Answer: {'gold' if right else 'lead'} {number(question) % 97}."


def token_state(text: str, layer: int, place: int) -> np.ndarray:
    """A token's state: whether the text is right in the first two numbers, noise that only this token has in the others."""
    noise = np.random.default_rng(number(f"{text}|{layer}|{place}")).normal(0, 1, WIDTH)
    noise[0] = noise[0] / 2 + (1.0 if "gold" in text else -1.0)
    return noise.astype(np.float32)


def states(text: str, capture: Capture) -> np.ndarray:
    count = len(text.split())
    whole = np.stack([[token_state(text, layer, place) for place in range(count)] for layer in capture.layers])
    return whole if capture.pool == "none" else whole.mean(1)


class Model(FunctionLM):
    """Answers, with states of prompts too."""

    fingerprint = "the model"
    slow = 0.0

    def __init__(self) -> None:
        super().__init__(
            said, scores={"logprobs": lambda text: -0.5, "entropies": lambda text: 0.25, "energies": lambda text: 9.0}, states=states
        )

    async def generate(self, prompt: Prompt, sampling=None, *, capture=None):
        import asyncio
        from dataclasses import replace

        if self.slow:
            await asyncio.sleep(self.slow)
        made = await super().generate(prompt, sampling, capture=capture)
        if capture is not None and capture.over == "prompt_last":
            text = f"prompt of {asked(prompt_text(prompt))}"
            return replace(made, prompt_state=np.stack([token_state(text, layer, -1) for layer in capture.layers]))
        return made


class Index(FixedRetriever):
    """Finds one passage that names the query."""

    fingerprint = "the index"

    async def search(self, query: str, k: int = 5, *, where=None):
        self._passages = (Passage(id=f"p{number(query)}", text=f"a passage of {query[:20]}"),)
        return await super().search(query, k)


def data(count: int = 30, *, name: str = "d", passages: bool = True) -> DraftData:
    rows = [
        {"id": str(n), "question": f"What is thing {name}{n}?", "answers": [f"gold {number(f'What is thing {name}{n}?') % 97}"]}
        for n in range(count)
    ]
    return DraftData(
        name=name, questions=load_questions(rows, dataset=name), index="i" if passages else None, retriever=Index() if passages else None
    )


def both(count: int = 30) -> Sequence[DraftData]:
    return (data(count), data(count // 3, name="e", passages=False))


if __name__ == "__main__":
    lm = Model()
    lm.slow = 0.01
    write_drafts(both(), lm, PLAN, Path(sys.argv[1]))
