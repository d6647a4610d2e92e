"""Look inward before you look up: the model's own internal states decide whether to retrieve.

Public names load when they are first used; `import inward` itself loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inward.door import ask
    from inward.errors import (
        BadCorpus,
        BadInput,
        CaptureMissing,
        ContextLengthExceeded,
        IndexUnusable,
        InwardError,
        MissingExtra,
        ModelError,
        OutOfMemory,
        StorageFull,
        UnknownName,
        Unsupported,
        UsageError,
    )
    from inward.evals.run import evaluate
    from inward.lm import load_lm
    from inward.prompts import PromptTemplate
    from inward.retrieval import build_index, load_retriever
    from inward.signals import load_signal
    from inward.strategies import load_strategy
    from inward.trace import Outcome
    from inward.types import Answer, Capture, Completion, Generation, Message, Passage, Reading, Sampling, Usage

_PUBLIC = {
    "Answer": "types",
    "BadCorpus": "errors",
    "BadInput": "errors",
    "Capture": "types",
    "CaptureMissing": "errors",
    "Completion": "types",
    "ContextLengthExceeded": "errors",
    "Generation": "types",
    "IndexUnusable": "errors",
    "InwardError": "errors",
    "Message": "types",
    "MissingExtra": "errors",
    "ModelError": "errors",
    "OutOfMemory": "errors",
    "Outcome": "trace",
    "Passage": "types",
    "PromptTemplate": "prompts",
    "Reading": "types",
    "Sampling": "types",
    "StorageFull": "errors",
    "UnknownName": "errors",
    "Unsupported": "errors",
    "Usage": "types",
    "UsageError": "errors",
    "ask": "door",
    "build_index": "retrieval",
    "evaluate": "evals.run",
    "load_lm": "lm",
    "load_retriever": "retrieval",
    "load_signal": "signals",
    "load_strategy": "strategies",
}

__all__ = [
    "Answer",
    "BadCorpus",
    "BadInput",
    "Capture",
    "CaptureMissing",
    "Completion",
    "ContextLengthExceeded",
    "Generation",
    "IndexUnusable",
    "InwardError",
    "Message",
    "MissingExtra",
    "ModelError",
    "OutOfMemory",
    "Outcome",
    "Passage",
    "PromptTemplate",
    "Reading",
    "Sampling",
    "StorageFull",
    "UnknownName",
    "Unsupported",
    "Usage",
    "UsageError",
    "__version__",
    "ask",
    "build_index",
    "evaluate",
    "load_lm",
    "load_retriever",
    "load_signal",
    "load_strategy",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
