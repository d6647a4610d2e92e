"""`inward metrics`: what is measured, in words."""

from __future__ import annotations

import click
import msgspec

from inward.evals.metrics import METRICS
from inward.evals.normalise import DEFAULT, NORMALISERS
from inward.flags import HELP

OF_A_RUN = {
    "skip error": "share of wrong answers among the questions answered, and answered without retrieval",
    "consistency": "of the questions right without retrieval (a no-retrieval run alike in model, prompt and seed), the share still right",
    "AUROC": "probability that a wrong unaided answer is the more uncertain one of a wrong and a right one; ties count half",
    "PR-AUC": "average precision of finding wrong unaided answers by falling uncertainty",
    "AURC": "mean error among the most certain answers, over all coverages; lower is better",
    "PRR": "share of the possible gain that the ranking brings over chance: 1 is the best ranking, 0 is chance",
    "ECE": "distance of confidence and share of right answers, over ten bins of equal width; needs a calibration",
}
"""Name -> definition of what is measured of a run, not of a question."""


@click.group(context_settings=HELP)
def metrics() -> None:
    """Say what is measured."""


@metrics.command("list", context_settings=HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per metric and line.")
def list_metrics(as_json: bool) -> None:
    """Print every metric with its definition and an example."""
    for metric in METRICS.values():
        if as_json:
            row = {"name": metric.name, "kind": metric.kind, "definition": metric.definition, "example": metric.example}
            click.echo(msgspec.json.encode(row))
        else:
            click.echo(f"{metric.name:<17} {metric.definition}\n{'':<17} {metric.example}")
    for name, definition in OF_A_RUN.items():
        if as_json:
            click.echo(msgspec.json.encode({"name": name, "kind": "run", "definition": definition, "example": ""}))
        else:
            click.echo(f"{name:<17} {definition}")
    if not as_json:
        others = ", ".join(name for name in NORMALISERS if name != DEFAULT)
        click.echo(f"\nAnswers are compared in the form {DEFAULT!r} unless another is named: {others}. Means come with 95 % intervals.")
