"""The prompts that the language-model benchmarks share: one four-shot prefix, 64 short questions."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

_SUBJECTS = "river mountain desert island lake bridge tower castle painter composer poet king queen explorer inventor planet".split()
_PLACES = "France Japan Brazil Kenya".split()


def prefix(encode: Any, tokens: int = 480) -> str:
    """Return text of four worked questions, about `tokens` tokens long."""
    shots = [
        ("Which is larger, the Sun or the Earth?", "The Sun is a star and the Earth is a planet that goes around it.", "the Sun"),
        ("In which season do most trees lose their leaves?", "Deciduous trees shed their leaves before the winter.", "autumn"),
        ("What do bees collect from flowers?", "Bees visit flowers and carry something sweet home.", "nectar"),
        ("Who was older, the father or his son?", "A father is born before his son.", "the father"),
    ]
    filler = "Think about what is known for certain, say it in one plain sentence, and only then give the answer."
    texts = [f"Question: {q}\nRationale: {r}" for q, r, _ in shots]
    while True:
        text = "".join(f"{t}\nAnswer: {a}\n\n" for t, (_, _, a) in zip(texts, shots, strict=True))
        if len(encode(text)) >= tokens:
            return text
        shortest = min(range(4), key=lambda i: len(texts[i]))
        texts[shortest] += f" {filler}"


def questions() -> list[str]:
    """Return 64 different questions."""
    return [f"What is the best known {subject} of {place}, and why do people remember it?" for subject in _SUBJECTS for place in _PLACES]


def prompts(encode: Any) -> list[str]:
    """Return 64 prompts that share the prefix."""
    shared = prefix(encode)
    return [f"{shared}Question: {question}\nRationale:" for question in questions()]


def machine() -> str:
    """Describe this machine in a line."""
    import torch
    import transformers

    cpu = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = f"{len(names)} cores of {names[0]}" if names else cpu
    return f"{cpu}; Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads"
