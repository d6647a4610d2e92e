"""Look inward before you look up: adaptive retrieval decided by the model's own internal states."""

__version__ = "0.1.0"
