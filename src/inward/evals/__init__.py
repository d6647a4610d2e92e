"""Many questions at once, with failures as data."""

from inward.evals.run import answer, evaluate

__all__ = ["answer", "evaluate"]
