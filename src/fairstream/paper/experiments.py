"""The paper's experiments: each figure, the question it belongs to, and the settings it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairstream.errors import ConfigurationError
from fairstream.paper.settings import (
    DATASETS,
    MODELS,
    SWEPT_WEIGHT,
    Family,
    ModelName,
    Scale,
    Setting,
)

PLAIN = tuple(Setting.of(method) for method in ("Pretrain", "Retrain", "Finetune"))
RERANK = Setting.of("Rerank")
PARTS = tuple((dataset, model) for dataset in DATASETS for model in MODELS)
"""Every data set with every model."""


@dataclass(frozen=True)
class Experiment:
    """What a figure (and its like for the other task) is made from."""

    name: str
    """What `--only` takes."""
    question: str
    figures: tuple[str, ...]
    fixed: Callable[[Scale], Sequence[Setting]]
    """Settings that it shows as they are."""
    chosen: tuple[str, ...] = ()
    """Families of which it shows what was chosen."""
    parts: tuple[tuple[str, ModelName], ...] = PARTS

    def families(self, scale: Scale, dataset: str) -> list[Family]:
        return [family for family in scale.families(dataset) if family.name in self.chosen]


def _swept(parameter: str, values: Callable[[Scale], Sequence[float]]) -> Callable[[Scale], list[Setting]]:
    return lambda scale: [swept(parameter, value) for value in values(scale)]


def swept(parameter: str, value: float) -> Setting:
    """FADE at one point of a sweep; λ = 0 is Finetune, and a default is not said twice.

    >>> swept("temperature", 3.0) == swept("update_epochs", 10) == swept("fairness_weight", 1.0)
    True
    """
    if parameter == "fairness_weight":
        return Setting.of("FADE", fairness_weight=value) if value > 0 else Setting.of("Finetune")
    defaults = {"temperature": 3.0, "update_epochs": 10, "n_fairness_negatives": 4}
    more = {} if value == defaults[parameter] else {parameter: value}
    return Setting.of("FADE", fairness_weight=SWEPT_WEIGHT, **more)


_ML_MF: tuple[tuple[str, ModelName], ...] = (("movielens-1m", "MF"),)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "observation",
            "RQ1",
            ("fig:observation",),
            lambda scale: (PLAIN[0], PLAIN[2]),
            ("FADE",),
            _ML_MF,
        ),
        Experiment(
            "tradeoff",
            "RQ1–RQ3",
            ("fig:trunc-tradeoff-taskR", "appenfig:trunc-tradeoff-taskN"),
            lambda scale: (*PLAIN, RERANK),
            ("FADE", "FADE-Abs", "Pretrain-Fair", "Retrain-Fair", "Adver"),
        ),
        Experiment(
            "trend",
            "RQ2",
            ("fig:trunc-trend-taskR", "appenfig:trunc-trend-taskN"),
            lambda scale: PLAIN[1:],
            ("Retrain-Fair", "FADE"),
        ),
        Experiment(
            "performance",
            "RQ2",
            (
                "appenfig:full-trend-perf-taskR",
                "appenfig:trunc-trend-perf-taskR",
                "appenfig:trunc-trend-perf-taskN",
            ),
            lambda scale: PLAIN,
            ("Retrain-Fair", "FADE"),
        ),
        Experiment("time", "RQ4", ("table:running_time",), lambda scale: (), ()),
        Experiment(
            "softrank",
            "RQ5",
            ("appenfig:trunc-softrank-taskR", "appenfig:trunc-softrank-taskN"),
            lambda scale: (PLAIN[2],),
            ("FADE", "FADE[NeuralNDCG]", "FADE[ApproxNDCG]"),
        ),
        Experiment(
            "lambda",
            "RQ6",
            ("fig:scaling", "appenfig:trunc-param-lambda-taskR", "appenfig:trunc-param-lambda-taskN"),
            _swept("fairness_weight", lambda scale: (0.0, *scale.weights)),
        ),
        Experiment(
            "epochs",
            "RQ6",
            ("fig:params", "appenfig:trunc-param-tepoch-taskR", "appenfig:trunc-param-tepoch-taskN"),
            _swept("update_epochs", lambda scale: scale.epochs),
        ),
        Experiment(
            "tau",
            "RQ6",
            ("fig:params", "appenfig:trunc-param-tau-taskR", "appenfig:trunc-param-tau-taskN"),
            _swept("temperature", lambda scale: scale.temperatures),
        ),
        Experiment(
            "mu",
            "RQ6",
            ("appenfig:trunc-param-numneg-taskR", "appenfig:trunc-param-numneg-taskN"),
            _swept("n_fairness_negatives", lambda scale: scale.n_negatives),
        ),
    )
}


def named(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, or of figures of these labels; all where there are none."""
    if not names:
        return list(EXPERIMENTS.values())
    found: dict[str, Experiment] = {}
    for name in names:
        meant = [e for e in EXPERIMENTS.values() if name == e.name or name in _labels(e)]
        if not meant:
            raise ConfigurationError(
                f"--only takes {', '.join(EXPERIMENTS)}, or a label of the paper such as fig:scaling; got {name!r}"
            )
        found |= {experiment.name: experiment for experiment in meant}
    return list(found.values())


def _labels(experiment: Experiment) -> set[str]:
    return {label for figure in experiment.figures for label in (figure, figure.partition(":")[2])}
