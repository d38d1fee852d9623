"""From a store to findings: every number of the paper beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fairstream.experiments import Store
from fairstream.paper.catalogue import Catalogue, all_choices
from fairstream.paper.claims import all_claims
from fairstream.paper.findings import Choice, Findings, Place, Point, published_numbers
from fairstream.paper.settings import DATASETS, EXPERIMENTS, METRICS, MODELS, PLAIN, RERANK, Setting, swept
from fairstream.paper.timing import seconds_table

_PARAMETERS = {
    "lambda": "fairness_weight",
    "epochs": "update_epochs",
    "tau": "temperature",
    "mu": "n_fairness_negatives",
}
_FIXED = {setting.method: setting for setting in (*PLAIN, RERANK)}


def findings_of(folder: Path) -> Findings:
    """All that a report shows of a store."""
    catalogue = Catalogue(Store.opened(folder))
    choices = all_choices(catalogue)
    seconds = seconds_table(catalogue.store)
    return Findings(
        protocol=catalogue.plan["protocol"],
        seeds=catalogue.seeds,
        quick=catalogue.plan["quick"],
        points=tuple(_Reader(catalogue, choices).points()),
        claims=tuple(all_claims(catalogue, choices, seconds)),
        seconds=tuple(seconds),
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
        published = published_numbers()
        for place, number in published.items():
            yield self._point(place, number)
        for place in self._places_without_numbers():
            yield self._point(place, None)

    def _point(self, place: Place, paper: float | None) -> Point:
        setting = self._setting(place)
        values, ids = [], []
        seeds = [] if setting is None else self._catalogue.seeds_of(place.dataset, place.model, setting)
        for seed in seeds:
            assert setting is not None
            entry = (place.dataset, place.model, setting, seed)
            what: Any = place.series if place.x_name in _PARAMETERS else place.y_name
            if place.x_name == "period":
                assert place.x is not None
                value = self._catalogue.value(entry, place.task, int(place.x), place.metric, what)
            else:
                value = self._catalogue.mean(entry, place.task, place.metric, what)
            if value is not None:
                values.append(value)
                ids.append(self._catalogue.run_id(entry) or "")
        return Point(
            place=place,
            paper=paper,
            ours=fmean(values) if values else None,
            sd=stdev(values) if len(values) > 1 else None,
            n_seeds=len(values),
            run_ids=tuple(ids),
            shortened=None if setting is None else self._catalogue.scale.shortened(setting, place.dataset, place.model),
        )

    def _setting(self, place: Place) -> Setting | None:
        """What the series at this place was made by; None where nothing has been chosen yet."""
        if place.x_name in _PARAMETERS:
            assert place.x is not None
            return swept(_PARAMETERS[place.x_name], place.x)
        if place.series in _FIXED:
            return _FIXED[place.series]
        name = "FADE" if place.series == "FADE[DH]" else place.series
        value = self._chosen.get((name, place.dataset, place.model, place.metric))
        if value is None:
            return None
        families = self._catalogue.scale.families(place.dataset)
        return next(family.at(value) for family in families if family.name == name)

    def _places_without_numbers(self) -> Iterator[Place]:
        """Figures whose numbers the paper's source does not give: ours stand alone."""
        tradeoff, trend = EXPERIMENTS["tradeoff"], EXPERIMENTS["performance"]
        for dataset, model in self._catalogue.parts():
            for metric in METRICS:
                for task, label in zip("RN", tradeoff.figures, strict=True):
                    for series in (*_FIXED, *tradeoff.chosen):
                        for what in ("performance", "abs_pd"):
                            yield _place(label, task, dataset, model, metric, series, "method", None, what)
                for task, label in zip("RN", trend.figures[1:], strict=True):
                    for series in (*(setting.method for setting in PLAIN), *trend.chosen):
                        for t in range(7):
                            yield _place(label, task, dataset, model, metric, series, "period", t, "performance")


def _place(*where: Any) -> Place:
    names = ("figure", "task", "dataset", "model", "metric", "series", "x_name", "x", "y_name")
    return Place(**dict(zip(names, where, strict=True)))


def _command(catalogue: Catalogue) -> str:
    """What to type for the runs of the plan, which may be a part of the whole."""
    plan, n_seeds, parts = catalogue.plan, len(catalogue.seeds), catalogue.parts()
    words = ["fairstream reproduce", f"--protocol {plan['protocol']}"]
    words += ["--quick"] if plan["quick"] else []
    words += [f"--seeds {n_seeds}"] if n_seeds > 1 else []
    datasets, models = ({part[at] for part in parts} for at in (0, 1))
    words += [f"--dataset {name}" for name in DATASETS if name in datasets] if len(datasets) == 1 else []
    words += [f"--model {name.lower()}" for name in MODELS if name in models] if len(models) == 1 else []
    return " ".join([*words, *(f"--experiment {name}" for name in _experiments(catalogue))])


def _experiments(catalogue: Catalogue) -> list[str]:
    """The experiments that are planned, where it is not all of them."""
    asked, whole = [], []
    for experiment in EXPERIMENTS.values():
        parts = [part for part in catalogue.parts() if part in experiment.parts]
        settings = [(*part, setting) for part in parts for setting in experiment.settings(catalogue.scale, part[0])]
        if settings:  # none in the time table, which is no run
            asked.append(experiment.name)
            whole += [experiment.name] if catalogue.planned.issuperset(settings) else []
    timed = ["time"] if any(cell.ours is not None for cell in seconds_table(catalogue.store)) else []
    return [] if whole == asked else [*whole, *timed]


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
