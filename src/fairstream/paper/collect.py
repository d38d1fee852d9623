"""Collect the findings of a store: every number of the paper, and ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fairstream.experiments import Store
from fairstream.paper.catalogue import Catalogue, all_choices
from fairstream.paper.claims import all_claims
from fairstream.paper.findings import Choice, Findings, Place, Point, published_numbers
from fairstream.paper.settings import EXPERIMENTS, JUDGED, METRICS, PLAIN, RERANK, Setting, swept
from fairstream.paper.timing import seconds_table

_PARAMETERS = {
    "lambda": "fairness_weight",
    "epochs": "update_epochs",
    "tau": "temperature",
    "mu": "n_fairness_negatives",
}
_FIXED = {setting.method: setting for setting in (*PLAIN, RERANK)}


def findings_of(folder: Path) -> Findings:
    """The findings of a store."""
    catalogue = Catalogue(Store.opened(folder))
    return collect_findings(catalogue, all_choices(catalogue))


def collect_findings(catalogue: Catalogue, choices: Sequence[Choice]) -> Findings:
    """Return everything that a report shows."""
    return Findings(
        protocol=catalogue.plan["protocol"],
        seeds=catalogue.seeds,
        quick=catalogue.plan["quick"],
        points=tuple(_Reader(catalogue, choices).points()),
        claims=tuple(all_claims(catalogue, choices)),
        seconds=tuple(seconds_table(catalogue.store)),
        choices=tuple(choices),
        data=tuple(catalogue.data()),
        versions=catalogue.versions(),
        command=_command(catalogue),
        n_runs=catalogue.n_runs,
        n_missing=catalogue.n_missing,
        recovery=tuple(catalogue.recovery()),
        notes=_notes(catalogue),
    )


class _Reader:
    """Finds the run behind each place of the paper."""

    def __init__(self, catalogue: Catalogue, choices: Iterable[Choice]) -> None:
        self._catalogue = catalogue
        self._chosen = {(c.method, c.dataset, c.model, c.metric): c.chosen for c in choices}

    def points(self) -> Iterator[Point]:
        for place, number in published_numbers().items():
            yield self._point(place, number)
        for place in self._places_without_numbers():
            yield self._point(place, None)

    def _point(self, place: Place, paper: float | None) -> Point:
        setting, part = self._setting(place), (place.dataset, place.model)
        if setting is None:
            return Point(place, paper, None, None, 0, ())
        what: Any = place.series if place.x_name in _PARAMETERS else place.y_name
        periods = JUDGED if place.x is None or place.x_name != "period" else [int(place.x)]
        values = {}
        for seed in self._catalogue.seeds_of(*part, setting):
            entry = (*part, setting, seed)
            value = self._catalogue.mean(entry, place.task, place.metric, what, periods)
            if value is not None:
                values[self._catalogue.run_id(entry) or ""] = value
        return Point(
            place=place,
            paper=paper,
            ours=fmean(values.values()) if values else None,
            sd=stdev(values.values()) if len(values) > 1 else None,
            n_seeds=len(values),
            run_ids=tuple(values),
            shortened=self._catalogue.scale.shortened(setting, *part),
        )

    def _setting(self, place: Place) -> Setting | None:
        """Return the setting behind the series of a place; None before its value is chosen."""
        if place.x_name in _PARAMETERS:
            return swept(_PARAMETERS[place.x_name], place.x or 0.0)
        if place.series in _FIXED:
            return _FIXED[place.series]
        name = "FADE" if place.series == "FADE[DH]" else place.series
        value = self._chosen.get((name, place.dataset, place.model, place.metric))
        if value is None:
            return None
        families = self._catalogue.scale.families(place.dataset)
        return next(family.at(value) for family in families if family.name == name)

    def _places_without_numbers(self) -> Iterator[Place]:
        """Yield the places of figures whose numbers the paper does not give; the report shows ours alone."""
        tradeoff, trend = EXPERIMENTS["tradeoff"], EXPERIMENTS["performance"]
        for dataset, model in self._catalogue.parts():
            for metric in METRICS:
                for task, label in zip("RN", tradeoff.figures, strict=True):
                    for series in (*_FIXED, *tradeoff.chosen):
                        for what in ("performance", "abs_pd"):
                            yield Place(label, task, dataset, model, metric, series, "method", None, what)
                for task, label in zip("RN", trend.figures[1:], strict=True):
                    for series in (*(setting.method for setting in PLAIN), *trend.chosen):
                        for t in range(7):
                            yield Place(label, task, dataset, model, metric, series, "period", t, "performance")


def _command(catalogue: Catalogue) -> str:
    """Return the command for the runs of the plan, which may be a part of all runs."""
    plan, n_seeds, parts = catalogue.plan, len(catalogue.seeds), catalogue.parts()
    words = ["fairstream reproduce", f"--protocol {plan['protocol']}"]
    words += ["--quick"] if plan["quick"] else []
    words += [f"--seeds {n_seeds}"] if n_seeds > 1 else []
    datasets, models = (list(dict.fromkeys(part[at] for part in parts)) for at in (0, 1))
    words += [f"--dataset {datasets[0]}"] if len(datasets) == 1 else []
    words += [f"--model {models[0].lower()}"] if len(models) == 1 else []
    experiments = plan.get("experiments", ())
    words += [f"--experiment {name}" for name in experiments if len(experiments) < len(EXPERIMENTS)]
    return " ".join(words)


def _notes(catalogue: Catalogue) -> tuple[str, ...]:
    notes = []
    if not catalogue.plan["quick"]:
        notes.append(
            "Departures from the paper: NCF on MovieLens pre-trains 50 epochs instead of 100; Adver, whose "
            "discriminator takes ten steps a batch, 5 on MovieLens and 50 on ModCloth; FADE's λ is chosen from ten "
            "values, that of methods shown at one value from two; μ is swept over five values; Rerank is the fast "
            "solution."
        )
    notes.append(
        "λ and γ are chosen by the test data of the first seed, as in the paper; where there are other seeds, claims "
        "rest on those alone. Intervals do not include what another choice would have given."
    )
    if catalogue.plan["quick"]:
        notes.append(
            "A quick reproduction: MF runs at the paper's settings, with fewer values of λ, γ, epochs, τ and μ; what "
            "else was shortened stands in its row, and is not compared with the paper. Claims rest on all runs, these "
            "among them."
        )
    if catalogue.plan["protocol"] != "paper":
        notes.append(
            "Under this protocol other things are measured than in the paper (full ranking, true NDCG, newcomers "
            "included), so its numbers are not expected to agree; whether its claims hold is what is asked."
        )
    return tuple(notes)
