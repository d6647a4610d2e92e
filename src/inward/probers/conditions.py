"""What a prober meets: the model, its engine, and the prompt by which drafts are written."""

from __future__ import annotations

from typing import Any

from inward.prompts import PromptTemplate
from inward.protocols import LM


def conditions(lm: LM, prompt: PromptTemplate | None = None) -> dict[str, Any]:
    """Return the fields of a card that can be known here, see `check_fits`; None prompt is the bundled one."""
    template = prompt or PromptTemplate.load()
    backend = getattr(lm, "backend", None)
    found: dict[str, Any] = {
        "model": getattr(lm, "fingerprint", None),
        "prompt": template.fingerprint,
        "stop": tuple(template.stop),
        "max_tokens": template.max_tokens,
    }
    if backend is not None:
        found["engine"] = getattr(backend, "engine", type(backend).__name__)
        found["dtype"] = str(getattr(backend, "dtype", "")).removeprefix("torch.")
    return {name: value for name, value in found.items() if value is not None and value != ""}


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Return every second block from one third of the depth to the end (Probing-RAG, section 3.1: 6 to 16 of Gemma-2B's 18)."""
    return tuple(range(num_layers // 3, num_layers, 2))
