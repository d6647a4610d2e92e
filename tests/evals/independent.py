"""Writes independent.json: what other scorers say of hand-made cases.

Run where torchmetrics is installed: python tests/evals/independent.py
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

CASES: list[tuple[str, list[str]]] = [
    ("the Beatles", ["Beatles"]),
    ("The Beatles!", ["beatles"]),
    ("Barack Hussein Obama", ["Barack Obama"]),
    ("yes it is", ["yes"]),
    ("", ["Paris"]),
    ("Paris", ["London", "Paris", "Rome"]),
    ("Montréal", ["Montreal", "City of Montréal", "Montréal"]),
    ("1990–95", ["1990-95"]),
    ("1990-95", ["1990-95"]),
    ("15,140", ["15140"]),
    ("15", ["15,140"]),
    ("U.S.A.", ["USA"]),
    ("a a a", ["a a b"]),
    ("new new york", ["new york york"]),
    ("An apple a day", ["the apple day"]),
    ("St. John's College, Cambridge", ["Cambridge University", "St John's College"]),
    ("  two\tspaces\nand lines ", ["two spaces and lines"]),
    ("«Le Monde»", ["Le Monde"]),
    ("no", ["No."]),
    ("none", ["no"]),
    ("İstanbul", ["istanbul"]),
    ("$5 million", ["5 million dollars", "five million"]),
    ("theater", ["the theater", "a theatre"]),
    ("the The", ["the"]),
]


def main() -> None:
    from torchmetrics.functional.text import squad

    rows = []
    for number, (answer, golds) in enumerate(CASES):
        found = squad(
            [{"prediction_text": answer, "id": str(number)}],
            [{"answers": {"answer_start": [0] * len(golds), "text": golds}, "id": str(number)}],
        )
        rows.append({"answer": answer, "golds": golds, "em": float(found["exact_match"]) / 100, "f1": float(found["f1"]) / 100})
    out = {"scorer": f"torchmetrics.functional.text.squad {version('torchmetrics')}", "cases": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
