"""Probers: small networks that read, from a draft's internal states, whether the model knows."""

from __future__ import annotations

from inward.probers.prober import Prober

__all__ = ["Prober"]
