"""The paper's claims, recomputed, and the rules by which each gets its verdict.

An **effect** (X is better than Y by p %) holds if ours has the same direction, an interval that
leaves out zero, and at least half of the paper's size; with the right direction alone it holds in
part. A **price** (X costs only p %) holds up to twice the paper's, in part up to four times. A
**likeness** (X is about Y) holds within a tenth, in part within a quarter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fairstream.experiment.paired import Interval
from fairstream.experiment.paper.catalogue import Catalogue
from fairstream.experiment.paper.cells import Cell, Cells, Drawn, gain, reduction
from fairstream.experiment.paper.experiments import PARTS
from fairstream.experiment.paper.findings import NOT_THERE, Choice, Claim, Seconds, Verdict, graded
from fairstream.experiment.paper.settings import METRICS
from fairstream.experiment.paper.sweep_claims import sweep_claims
from fairstream.experiment.paper.time_claims import time_claims

N_CELLS = len(PARTS) * len(METRICS)
Kind = Literal["effect", "price", "likeness"]


@dataclass(frozen=True)
class Statement:
    """A claim about methods, averaged over the cells."""

    question: str
    text: str
    kind: Kind
    paper: float | None
    methods: tuple[str, ...]
    effect: Callable[[Cell], Drawn]


def _lower(method: str, than: str, paper: float | None, question: str) -> Statement:
    text = f"{method} has a smaller |PD| than {than}"
    return Statement(question, text, "effect", paper, (method, than), reduction(method, than))


def _better(method: str, than: str, paper: float | None, question: str) -> Statement:
    text = f"{method} performs better than {than}"
    return Statement(question, text, "effect", paper, (method, than), gain(method, than))


def _costs(method: str, than: str, paper: float, question: str) -> Statement:
    text = f"{method} costs little performance against {than}"
    return Statement(question, text, "price", paper, (method, than), reduction(method, than, "performance"))


STATEMENTS = (
    _better("Retrain", "Pretrain", 9.01, "RQ1"),
    _better("Finetune", "Pretrain", 4.61, "RQ1"),
    _better("Retrain-Fair", "Pretrain-Fair", 4.66, "RQ1"),
    _better("FADE", "Pretrain-Fair", 4.09, "RQ1"),
    _lower("FADE", "Finetune", 48.91, "RQ2"),
    _lower("Retrain-Fair", "Retrain", 47.60, "RQ2"),
    _costs("FADE", "Finetune", 2.44, "RQ2"),
    _costs("Retrain-Fair", "Retrain", 0.495, "RQ2"),
    Statement(
        "RQ2",
        "FADE raises the disadvantaged group above Finetune's",
        "effect",
        2.06,
        ("FADE", "Finetune"),
        gain("FADE", "Finetune", "disadvantaged"),
    ),
    Statement(
        "RQ2",
        "FADE lowers the advantaged group below Finetune's",
        "effect",
        3.37,
        ("FADE", "Finetune"),
        reduction("FADE", "Finetune", "advantaged"),
    ),
    _lower("Finetune", "Retrain", 14.79, "RQ2"),
    _better("Finetune", "Retrain", 1.38, "RQ2"),
    _lower("FADE", "Retrain-Fair", 16.47, "RQ2"),
    _costs("FADE", "Retrain-Fair", 0.61, "RQ2"),
    _lower("FADE", "FADE-Abs", None, "RQ2"),
    _lower("FADE", "Adver", 36.53, "RQ3"),
    _better("FADE", "Adver", 1.49, "RQ3"),
    _lower("FADE", "Rerank", None, "RQ3"),
    Statement(
        "RQ3",
        "Rerank is about as unequal as Finetune",
        "likeness",
        None,
        ("Rerank", "Finetune"),
        reduction("Rerank", "Finetune"),
    ),
    _lower("FADE", "FADE[NeuralNDCG]", None, "RQ5"),
    _better("FADE", "FADE[NeuralNDCG]", None, "RQ5"),
    _better("FADE", "FADE[ApproxNDCG]", None, "RQ5"),
)


def all_claims(catalogue: Catalogue, choices: Sequence[Choice], seconds: Sequence[Seconds]) -> Iterator[Claim]:
    """Every claim with its verdict, question by question."""
    cells = Cells(catalogue, choices)
    found = [_claim(statement, cells) for statement in STATEMENTS]
    found += time_claims(catalogue.store, seconds)
    found += sweep_claims(catalogue)
    yield from sorted(found, key=lambda claim: claim.question)


def _claim(statement: Statement, cells: Cells) -> Claim:
    paper = "" if statement.paper is None else f" (by {statement.paper:g} % on average)"
    found = cells.mean(statement.methods, statement.effect)
    if found is None:
        return Claim(
            statement.question, statement.text + paper, statement.paper, None, None, "%", "not tested",
            NOT_THERE,
        )  # fmt: skip
    interval, n_shown, n_cells = found
    verdict = judged(statement.kind, interval, statement.paper)
    left = f"; the other {N_CELLS - n_cells} are not run" if n_cells < N_CELLS else ""
    sign = "positive" if statement.kind == "effect" else "above 0"
    return Claim(
        statement.question, statement.text + paper, statement.paper, interval.value, (interval.low, interval.high),
        "%", verdict, f"{sign} in {n_shown} of {n_cells} cases (data set × model × metric, Task-R){left}",
    )  # fmt: skip


def judged(kind: Kind, found: Interval, paper: float | None) -> Verdict:
    """The verdict by the rules above.

    >>> judged("effect", Interval(40, 30, 50), 48.91), judged("effect", Interval(10, -5, 25), 48.91)
    ('holds', 'holds in part')
    >>> judged("price", Interval(12, 10, 14), 2.44), judged("likeness", Interval(-3, -9, 2), None)
    ('does not hold', 'holds')
    """
    if kind == "effect":
        return graded(found.low > 0 and found.value >= (paper or 0) / 2, found.value > 0)
    if kind == "price":
        return graded(found.value <= 2 * (paper or 1), found.value <= 4 * (paper or 1))
    return graded(abs(found.value) <= 10, abs(found.value) <= 25)
