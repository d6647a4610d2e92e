"""Converts a tiny model in a process of its own, so that tests can run two of them, or kill one.

python convert_tiny.py GGUF_FILE FOLDER
"""

from __future__ import annotations

import hashlib
import logging
import sys
from pathlib import Path

import toy_gguf

from inward.lm.bundled import Bundled, converted


def tiny(gguf: Path, parts: list[Path] | None = None, **changes) -> Bundled:
    """Describe a tiny GGUF file as if a package carried it."""
    data = gguf.read_bytes()
    fields = {
        "title": "nobody/tiny",
        "licence": "Tiny Terms",
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "parts": lambda: parts or [gguf],
        "config": toy_gguf.CONFIG,
        "parameters": 27_008,
    }
    return Bundled(**{**fields, **changes})


if __name__ == "__main__":
    import torch
    import transformers  # noqa: F401 - imported before the clock of the killing test starts

    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(f"{converted(tiny(Path(sys.argv[1])), Path(sys.argv[2]))}\n")
