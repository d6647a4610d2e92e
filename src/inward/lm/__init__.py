"""Language models: `load_lm` opens one, `BatchedLM` is what strategies see of it."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from inward.batching import Scheduler
from inward.errors import UnknownName, UsageError
from inward.protocols import Backend, Feature, Request
from inward.trace import Generated, Scored, current
from inward.types import Capture, Completion, Generation, Prompt, Sampling, as_prompt

__all__ = ["BatchedLM", "load_lm"]

_GREEDY = Sampling()
_BACKEND_OPTIONS = ("prefix_reuse", "budget")


class BatchedLM:
    """A backend behind `await`: calls of many questions ride in one running batch, and each leaves its trace."""

    def __init__(self, backend: Backend, name: str | None = None) -> None:
        """Serve `backend`."""
        self.backend = backend
        self.name: str = name or str(getattr(backend, "name", type(backend).__name__))
        self.scheduler = Scheduler(backend)

    def __repr__(self) -> str:
        return f"BatchedLM({self.name!r})"

    @property
    def supports(self) -> frozenset[Feature]:
        """What the backend can give."""
        return self.backend.supports

    @property
    def context(self) -> int:
        """The longest prompt and completion together, in tokens."""
        return self.backend.context

    @property
    def fingerprint(self) -> str:
        """Identity of the model, or its name where the backend knows no better."""
        return str(getattr(self.backend, "fingerprint", self.name))

    def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt as the model would read it."""
        return self.backend.count(as_prompt(prompt))

    async def generate(self, prompt: Prompt, sampling: Sampling = _GREEDY, *, capture: Capture | None = None) -> Generation:
        """Continue the prompt; `sampling.n` completions share one prefill.

        Raises:
            ContextLengthExceeded: the prompt leaves no room for `max_tokens`.
            Unsupported: the backend cannot give what is asked for.
        """
        trace = current()
        number = trace.issue()
        prompt = as_prompt(prompt)
        request = Request(prompt=prompt, sampling=sampling, capture=capture, draw_key=trace.draw_key, group=trace.id)
        self.backend.check(request)
        generation = await self.scheduler(request)
        texts = tuple(c.text for c in generation.completions)
        finishes = tuple(c.finish for c in generation.completions)
        trace.add(Generated(number=number, prompt=prompt, texts=texts, finishes=finishes, usage=generation.usage))
        return generation

    async def score(
        self, prompt: Prompt, continuation: str | Sequence[int], *, sampling: Sampling = _GREEDY, capture: Capture | None = None
    ) -> Completion:
        """Read given text or token ids as if they had been generated; nothing is sampled.

        `sampling` says which scores to bring (`token_scores`, `watch`); scoring a generation's own ids gives
        its scores and states back.
        """
        trace = current()
        number = trace.issue()
        prompt = as_prompt(prompt)
        given = continuation if isinstance(continuation, str) else tuple(int(i) for i in continuation)
        if not given:
            raise UsageError("score needs a continuation of at least one token, got none")
        request = Request(prompt=prompt, sampling=sampling, capture=capture, continuation=given, draw_key=trace.draw_key, group=trace.id)
        self.backend.check(request)
        generation = await self.scheduler(request)
        trace.add(Scored(number=number, prompt=prompt, text=generation.text, usage=generation.usage))
        return generation.completions[0]


def load_lm(name: str | Path | BatchedLM = "demo", **options: Any) -> BatchedLM:
    """Open a language model.

    Args:
        name: `"demo"` (the bundled google/gemma-3-270m), `"smollm2"` (SmolLM2-135M-Instruct, if its package is
            there), a hub id, a folder, or a GGUF file.
        **options: `prefix_reuse` and `budget` go to the backend; everything else (`revision`, `dtype`,
            `device`, `device_map`, `quantization`, `adapter`, `chat_template`, …) to
            `inward.lm.loading.load_pretrained`.

    Raises:
        ModelError: there is no such model, or it cannot be used.
        MissingExtra: an optional package is needed.
        UnknownName: an option that does not exist.
    """
    if isinstance(name, BatchedLM):
        return name
    from inward.lm.source import check_there

    check_there(name, options.get("gguf_file"))  # before seconds of imports
    from inward.lm.bundled import BUNDLED, bundled_path
    from inward.lm.loading import load_pretrained
    from inward.lm.transformers import TransformersBackend

    known = {*_BACKEND_OPTIONS, *list(signature(load_pretrained).parameters)[1:]}
    for option in options:
        if option not in known:
            raise UnknownName("option of load_lm", option, known)
    mine = {key: options.pop(key) for key in _BACKEND_OPTIONS if key in options}
    loaded = load_pretrained(bundled_path(str(name)) if str(name) in BUNDLED else name, **options)
    return BatchedLM(TransformersBackend(loaded, **mine), name=str(name))
