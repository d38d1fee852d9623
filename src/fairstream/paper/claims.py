"""The paper's claims, recomputed, and the rules by which each gets its verdict.

- An **effect** (X is better than Y by p %) holds if the interval of ours is above zero, its size is at
  least half of the paper's, and, where the paper claims it, it appears in all cases. With an interval
  above zero alone it holds in part. An interval that contains zero is inconclusive; below zero the effect
  does not hold.
- **No worse** (X matches or beats Y) holds unless the interval is below zero.
- A **price** (X costs only p %) holds if the interval ends below twice the paper's, in part if the
  value is below four times.
- A **likeness** (X is about Y) holds if the interval of the mean difference ends below a tenth, in
  part if the difference is below a quarter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from fairstream.evaluation import Estimate
from fairstream.paper.catalogue import Catalogue, What
from fairstream.paper.cells import FEW, PAST, Cell, Cells, Drawn, Effect, difference, gain, reduction
from fairstream.paper.findings import NOT_IN_STORE, Choice, Claim, Verdict, graded
from fairstream.paper.settings import METRICS, PARTS, Part, Setting, swept
from fairstream.paper.timing import time_claims

N_CELLS = len(PARTS) * len(METRICS)
Kind = Literal["effect", "no worse", "price", "likeness"]
_REMARKS = {
    "Adver": "Adver is pre-trained for fewer epochs than the others",
    FEW: "with λ from as few values as the other has",
    PAST: "with λ chosen in each period by the periods before",
}


@dataclass(frozen=True)
class Statement:
    """A claim about methods, averaged over the cells."""

    question: str
    text: str
    kind: Kind
    paper: float | None
    methods: tuple[str, str]
    effect: Callable[[Cell], Drawn]
    everywhere: bool = False  # whether the paper claims it for all cases


def _lower(question: str, method: str, than: str, paper: float | None = None, **more: bool) -> Statement:
    text = f"{method} has a smaller |PD| than {than}"
    return Statement(question, text, "effect", paper, (method, than), reduction(method, than), **more)


def _better(question: str, method: str, than: str, paper: float | None = None, **more: bool) -> Statement:
    text = f"{method} performs better than {than}"
    return Statement(question, text, "effect", paper, (method, than), gain(method, than), **more)


def _costs(question: str, method: str, than: str, paper: float) -> Statement:
    text = f"{method} costs little performance against {than}"
    return Statement(question, text, "price", paper, (method, than), reduction(method, than, "performance"))


def _moves(group: str, verb: str, effect: Callable[[Cell], Drawn], paper: float) -> Statement:
    text = f"FADE {verb} the {group} group's performance against Finetune's"
    return Statement("RQ2", text, "effect", paper, ("FADE", "Finetune"), effect, everywhere=True)


def _matches(how: str, effect: Callable[[Cell], Drawn]) -> Statement:
    return Statement("RQ5", f"DH's {how}", "no worse", None, (FEW, "FADE[NeuralNDCG]"), effect)


STATEMENTS = (
    _better("RQ1", "Retrain", "Pretrain", 9.01, everywhere=True),
    _better("RQ1", "Finetune", "Pretrain", 4.61, everywhere=True),
    _better("RQ1", "Retrain-Fair", "Pretrain-Fair", 4.66),
    _better("RQ1", "FADE", "Pretrain-Fair", 4.09),
    _lower("RQ1", "Pretrain", "Retrain"),
    _lower("RQ2", "FADE", "Finetune", 48.91, everywhere=True),
    _lower("RQ2", PAST, "Finetune"),
    _lower("RQ2", "Retrain-Fair", "Retrain", 47.60, everywhere=True),
    _costs("RQ2", "FADE", "Finetune", 2.44),
    _costs("RQ2", PAST, "Finetune", 2.44),
    _costs("RQ2", "Retrain-Fair", "Retrain", 0.495),
    _moves("disadvantaged", "raises", gain("FADE", "Finetune", "disadvantaged"), 2.06),
    _moves("advantaged", "lowers", reduction("FADE", "Finetune", "advantaged"), 3.37),
    _lower("RQ2", "Finetune", "Retrain", 14.79, everywhere=True),
    _better("RQ2", "Finetune", "Retrain", 1.38, everywhere=True),
    _lower("RQ2", FEW, "Retrain-Fair", 16.47),
    _costs("RQ2", FEW, "Retrain-Fair", 0.61),
    _lower("RQ2", FEW, "FADE-Abs"),
    _lower("RQ3", FEW, "Adver", 36.53),
    _better("RQ3", FEW, "Adver", 1.49),
    _lower("RQ3", FEW, "Rerank"),
    Statement(
        "RQ3",
        "Rerank is about as unequal as Finetune",
        "likeness",
        None,
        ("Rerank", "Finetune"),
        difference("Rerank", "Finetune"),
    ),
    _matches("|PD| matches NeuralNDCG's or is smaller", reduction(FEW, "FADE[NeuralNDCG]")),
    _matches("performance matches NeuralNDCG's or is better", gain(FEW, "FADE[NeuralNDCG]")),
    _lower("RQ5", FEW, "FADE[ApproxNDCG]"),
    _better("RQ5", FEW, "FADE[ApproxNDCG]"),
)


def all_claims(catalogue: Catalogue, choices: Sequence[Choice]) -> list[Claim]:
    """Every claim with its verdict, question by question."""
    first, others = catalogue.seeds[:1], catalogue.seeds[1:]  # the first has chosen λ, so the others judge it
    judges = [Cells(catalogue, choices, seeds) for seeds in (others, first) if seeds]
    claims = [_claim(statement, judges) for statement in STATEMENTS]
    claims += time_claims(catalogue.store)
    claims += [claim(catalogue) for claim in (_late, _weight, _epochs, _temperature, _negatives)]
    return sorted(claims, key=lambda claim: claim.question)


def _claim(statement: Statement, judges: Sequence[Cells]) -> Claim:
    # The effect of the seeds with the most cells; `max` keeps the first of equals.
    effects = (cells.mean(statement.methods, statement.effect) for cells in judges)
    effect = max((effect for effect in effects if effect), key=lambda effect: effect.n_cells, default=None)
    text = statement.text if statement.paper is None else f"{statement.text} (by {statement.paper:g} % on average)"
    if effect is None:
        return _untested(statement.question, text, statement.paper)
    ours, reason = effect.interval, _reason(statement, effect)
    verdict = judged(statement.kind, ours, statement.paper)
    if verdict == "holds" and statement.everywhere and effect.n_positive < effect.n_cells:
        verdict = "holds in part"
    return Claim(statement.question, text, statement.paper, ours.value, ours.interval, "%", verdict, reason)


def _reason(statement: Statement, effect: Effect) -> str:
    """Return the evidence for the verdict, with the remarks that readers need."""
    where = f"above 0 in {effect.n_positive} of {effect.n_cells} cases (data set × model × metric, Task-R)"
    left = [f"{N_CELLS - effect.n_cells} more are not run"] if effect.n_cells < N_CELLS else []
    apart = [f"{name} {each.value:.3g} ({each.low:.3g} to {each.high:.3g})" for name, each in effect.by_dataset.items()]
    seeds = [f"{effect.n_seeds} seed{'s' if effect.n_seeds > 1 else ''}"]
    remarks = [_REMARKS[method] for method in statement.methods if method in _REMARKS]
    if statement.kind == "price":
        remarks.append("the rule that chooses λ keeps 95 %")
    return "; ".join([where, *left, *(apart if len(apart) > 1 else []), *seeds, *remarks])


def judged(kind: Kind, effect: Estimate, paper: float | None) -> Verdict:
    """Return the verdict by the rules above.

    >>> judged("effect", Estimate(40, (30, 50)), 48.91), judged("effect", Estimate(10, (-5, 25)), 48.91)
    ('holds', 'cannot be told')
    >>> judged("effect", Estimate(10, (5, 15)), 48.91), judged("effect", Estimate(-9, (-15, -3)), 48.91)
    ('holds in part', 'does not hold')
    >>> judged("price", Estimate(12, (10, 14)), 2.44), judged("likeness", Estimate(3, (1, 6)), None)
    ('does not hold', 'holds')
    """
    if kind == "effect":
        if effect.low <= 0 <= effect.high:
            return "cannot be told"
        return graded(effect.low > 0 and effect.value >= (paper or 0) / 2, effect.low > 0)
    if kind == "no worse":
        return graded(effect.high >= 0, False)
    if kind == "price":
        return graded(effect.high <= 2 * (paper or 1), effect.value <= 4 * (paper or 1))
    return graded(effect.high <= 10, effect.value <= 25)


_LATE = range(7, 10)
_ML_MF: Part = ("movielens-1m", "MF")


def _late(catalogue: Catalogue) -> Claim:
    text = "On MovieLens, fine-tuned MF falls below retrained MF in the late periods 7–9 (NDCG@20, by 6.5 %)"
    fine, again = (
        catalogue.over_seeds(_ML_MF, Setting.of(method), "NDCG@20", "performance", _LATE)
        for method in ("Finetune", "Retrain")
    )
    if fine is None or again is None:
        return _untested("RQ2", text, 6.5)
    below = 100 * (1 - fine / again)
    reason = f"Finetune {fine:.4f}, Retrain {again:.4f}"
    return Claim("RQ2", text, 6.5, below, None, "%", graded(below >= 3.25, below > 0), reason)


def _weight(catalogue: Catalogue) -> Claim:
    text = "A larger λ lowers the advantaged group's performance and raises the disadvantaged group's"
    largest = max(value for value in catalogue.scale.weights if value <= 3.0)
    directions: dict[What, int] = {"advantaged": -1, "disadvantaged": 1}
    moved = []
    for part in catalogue.parts():
        for metric in METRICS:
            for what, sign in directions.items():
                start, end = (_at(catalogue, part, "fairness_weight", value, metric, what) for value in (0.0, largest))
                if start is not None and end is not None:
                    moved.append(sign * (end - start) > 0)
    if not moved:
        return _untested("RQ6", text, 100.0)
    share = 100 * fmean(moved)
    reason = f"{sum(moved)} of {len(moved)} lines move so from λ = 0 to {largest:g}"
    return Claim("RQ6", text, 100.0, share, None, "%", graded(share >= 90, share >= 75), reason)


def _epochs(catalogue: Catalogue) -> Claim:
    text = "On MovieLens with MF, performance peaks at 5 to 10 epochs per update and then declines"
    values = _line(catalogue, "update_epochs", catalogue.scale.epochs)
    if len(values) < 3:
        return _untested("RQ6", text, 5.0, "")
    peak, most = max(values, key=lambda epochs: values[epochs]), max(values)
    fallen = 100 * (1 - values[most] / values[peak])
    reason = f"peak at {peak:g} epochs; at {most:g} it is {fallen:.1f} % lower"
    return Claim(
        "RQ6", text, 5.0, peak, None, "", graded(5 <= peak <= 10 and fallen > 1, 1 < peak < most and fallen > 1), reason
    )


def _temperature(catalogue: Catalogue) -> Claim:
    text = "FADE is not sensitive to τ of 2 or more; a small τ ruins the advantaged group (MovieLens, MF, NDCG@20)"
    values = _line(catalogue, "temperature", catalogue.scale.temperatures, "advantaged")
    large = [value for tau, value in values.items() if tau >= 2]
    if len(large) < 2 or min(values) >= 1:
        return _untested("RQ6", text, 57.3)
    spread = 100 * (max(large) / min(large) - 1)
    lost = 100 * (1 - values[min(values)] / max(large))
    reason = f"τ ≥ 2 differ by {spread:.1f} %; at τ = {min(values):g} it is {lost:.1f} % lower"
    verdict = graded(spread <= 2 and lost > 10, spread <= 2 or lost > 10)
    return Claim("RQ6", text, 57.3, lost, None, "%", verdict, reason)


def _negatives(catalogue: Catalogue) -> Claim:
    text = "Performance hardly depends on μ, so 4 is enough"
    tried, spreads = catalogue.scale.n_negatives, []
    for part in catalogue.parts():
        for metric in METRICS:
            points = [_at(catalogue, part, "n_fairness_negatives", mu, metric, "performance") for mu in tried]
            known = [value for value in points if value is not None]
            if len(known) > 1:
                spreads.append(100 * (max(known) / min(known) - 1))
    if not spreads:
        return _untested("RQ6", text, None)
    spread = fmean(spreads)
    reason = f"largest over smallest value, mean of {len(spreads)} panels"
    return Claim("RQ6", text, None, spread, None, "%", graded(spread <= 3, spread <= 6), reason)


def _line(
    catalogue: Catalogue, parameter: str, values: Sequence[float], what: What = "performance"
) -> dict[float, float]:
    """MovieLens, MF, NDCG@20 along a sweep."""
    points = {value: _at(catalogue, _ML_MF, parameter, value, "NDCG@20", what) for value in values}
    return {value: point for value, point in points.items() if point is not None}


def _at(catalogue: Catalogue, part: Part, parameter: str, value: float, metric: str, what: What) -> float | None:
    return catalogue.over_seeds(part, swept(parameter, value), metric, what)


def _untested(question: str, text: str, paper: float | None, unit: Literal["%", ""] = "%") -> Claim:
    return Claim(question, text, paper, None, None, unit, "not tested", NOT_IN_STORE)
