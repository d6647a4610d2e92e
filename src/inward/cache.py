"""Where things that were made once are kept: converted models, the demo index."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `$INWARD_CACHE`, or `inward` in `$XDG_CACHE_HOME` or `~/.cache`; it need not exist."""
    if named := os.environ.get("INWARD_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "inward"
