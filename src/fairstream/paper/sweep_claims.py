"""What the paper says of late periods (RQ2) and of its hyperparameters (RQ6)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from fairstream.paper.catalogue import Catalogue, What
from fairstream.paper.experiments import swept
from fairstream.paper.findings import NOT_THERE, Claim, graded
from fairstream.paper.settings import JUDGED, METRICS, ModelName, Setting

_LATE = range(7, 10)
_ML_MF: tuple[str, ModelName] = ("movielens-1m", "MF")


def sweep_claims(catalogue: Catalogue) -> list[Claim]:
    """All of them; those whose runs are missing as not tested."""
    return [_late(catalogue), _weight(catalogue), _epochs(catalogue), _temperature(catalogue), _negatives(catalogue)]


def _late(catalogue: Catalogue) -> Claim:
    text = "On MovieLens, fine-tuned MF falls below retrained MF in the late periods 7–9 (NDCG@20, by 6.5 %)"
    fine, again = (
        _over_seeds(catalogue, _ML_MF, Setting.of(method), "NDCG@20", "performance", _LATE)
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
            found = [_at(catalogue, part, "n_fairness_negatives", mu, metric, "performance") for mu in tried]
            there = [value for value in found if value is not None]
            if len(there) > 1:
                spreads.append(100 * (max(there) / min(there) - 1))
    if not spreads:
        return _untested("RQ6", text, None)
    spread = fmean(spreads)
    reason = f"largest over smallest value, mean of {len(spreads)} panels"
    return Claim("RQ6", text, None, spread, None, "%", graded(spread <= 3, spread <= 6), reason)


def _line(
    catalogue: Catalogue, parameter: str, values: Sequence[float], what: What = "performance"
) -> dict[float, float]:
    """MovieLens, MF, NDCG@20 along a sweep."""
    found = {value: _at(catalogue, _ML_MF, parameter, value, "NDCG@20", what) for value in values}
    return {value: point for value, point in found.items() if point is not None}


def _at(
    catalogue: Catalogue, part: tuple[str, ModelName], parameter: str, value: float, metric: str, what: What
) -> float | None:
    return _over_seeds(catalogue, part, swept(parameter, value), metric, what)


def _over_seeds(
    catalogue: Catalogue,
    part: tuple[str, ModelName],
    setting: Setting,
    metric: str,
    what: What,
    periods: Sequence[int] = JUDGED,
) -> float | None:
    entries = [(*part, setting, seed) for seed in catalogue.seeds_of(*part, setting)]
    found = [catalogue.mean(entry, "R", metric, what, periods) for entry in entries]
    there = [value for value in found if value is not None]
    return fmean(there) if there else None


def _untested(question: str, text: str, paper: float | None, unit: Literal["%", ""] = "%") -> Claim:
    return Claim(question, text, paper, None, None, unit, "not tested", NOT_THERE)
