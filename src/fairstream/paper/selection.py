"""How λ (for Adver γ) is chosen, in the open.

The paper chooses it per method, data set, model and metric, by the numbers that it then reports.
We do the same by a rule that is written down: **the smallest mean |PD| among the values that keep
95 % of the performance that the same strategy has without fairness.** Beside it stands a choice
that could have been made on the day: in period t, the same rule by what the periods before had
shown on the events that came after them (Task-N of W_0 … W_{t−1}), with the models of all values
kept up side by side. Under the paper's protocol even these numbers carry its leak: training
knows what users will do later, and does not draw it as negatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from fairstream.paper.catalogue import Catalogue
from fairstream.paper.findings import Choice
from fairstream.paper.settings import JUDGED, METRICS, Family, ModelName, Setting

KEPT = 0.95
"""Share of the performance without fairness that must be kept."""


def best(tried: Mapping[float, tuple[float, float]], floor: float) -> float:
    """The value with the smallest |PD| among those whose performance reaches the floor; if none does, the best one.

    Of equals, the one that is better in the other respect.

    >>> best({0.5: (0.80, 0.02), 1.0: (0.79, 0.01), 4.0: (0.60, 0.00)}, floor=0.75)
    1.0
    >>> best({0.5: (0.70, 0.02), 1.0: (0.60, 0.01)}, floor=0.75)
    0.5
    """
    fit = {value: (gap, -performance) for value, (performance, gap) in tried.items() if performance >= floor}
    if fit:
        return min(fit, key=lambda value: fit[value])
    return max(tried, key=lambda value: (tried[value][0], -tried[value][1]))


def choose(catalogue: Catalogue, family: Family, dataset: str, model: ModelName, metric: str) -> Choice | None:
    """The choice for one panel, from the runs of the first seed; None where there is nothing to choose from."""
    if not catalogue.seeds:
        return None
    seed = catalogue.seeds[0]
    plain = (dataset, model, Setting.of(family.plain), seed)
    reference = catalogue.mean(plain, "R", metric, "performance")
    tried = {}
    for value in family.values:
        entry = (dataset, model, family.at(value), seed)
        performance = catalogue.mean(entry, "R", metric, "performance")
        gap = catalogue.mean(entry, "R", metric, "abs_pd")
        if performance is None or gap is None:
            continue  # not run yet, or a training that diverged
        tried[value] = (performance, gap)
    if reference is None or not tried:
        return None
    chosen = best(tried, KEPT * reference)
    by_the_past, past_result = _by_the_past(catalogue, family, (dataset, model), metric)
    return Choice(
        method=family.name,
        dataset=dataset,
        model=model,
        metric=metric,
        parameter=family.parameter,
        tried=tried,
        chosen=chosen,
        reason=_reason(family, metric, tried[chosen][0] >= KEPT * reference, len(family.values) - len(tried)),
        by_the_past=by_the_past,
        past_result=past_result,
    )


def _reason(family: Family, metric: str, keeps: bool, n_missing: int) -> str:
    reason = f"smallest mean |PD| of those that keep 95 % of {family.plain}'s {metric}"
    if not keeps:
        reason = f"none keeps 95 % of {family.plain}'s {metric}; the best of them"
    return reason + (f"; {n_missing} of {len(family.values)} values have no result" if n_missing else "")


def all_choices(catalogue: Catalogue) -> list[Choice]:
    """Every choice that the store's runs allow."""
    found = [
        choose(catalogue, family, dataset, model, metric)
        for dataset, model in catalogue.parts()
        for family in catalogue.scale.families(dataset)
        for metric in METRICS
    ]
    return [choice for choice in found if choice is not None]


def _by_the_past(
    catalogue: Catalogue, family: Family, part: tuple[str, ModelName], metric: str
) -> tuple[tuple[float, ...], tuple[float, float] | None]:
    """What is chosen in each period t by W_0 … W_{t−1} on the period after each, and how Task-R then goes."""
    seed = catalogue.seeds[0]
    plain = (*part, Setting.of(family.plain), seed)
    entries = {value: (*part, family.at(value), seed) for value in family.values}
    chosen, results = [], []
    for t in JUDGED:
        past = range(t)
        reference = catalogue.mean(plain, "N", metric, "performance", past)
        tried = {}
        for value, entry in entries.items():
            performance = catalogue.mean(entry, "N", metric, "performance", past)
            gap = catalogue.mean(entry, "N", metric, "abs_pd", past)
            if performance is not None and gap is not None:
                tried[value] = (performance, gap)
        if reference is None or not tried:
            break
        value = best(tried, KEPT * reference)
        now = [catalogue.value(entries[value], "R", t, metric, what) for what in ("performance", "abs_pd")]
        if now[0] is None or now[1] is None:
            break
        chosen.append(value)
        results.append((now[0], now[1]))
    if not results:
        return (), None
    performance, gap = (fmean(column) for column in zip(*results, strict=True))
    return tuple(chosen), (performance, gap)
