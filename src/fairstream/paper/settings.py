"""What the paper ran: data sets, models, methods, values tried, and the settings behind each figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fairstream import ConfigurationError, RunConfig

ModelName = Literal["MF", "NCF"]
Option = float | int | str

Part = tuple[str, ModelName]  # a data set and a model
Chosen = set[tuple[str, ModelName, str, float]]  # data set, model, family and value of each choice

MODELS: tuple[ModelName, ...] = ("MF", "NCF")
METRICS = ("NDCG@20", "F1@20")
RETRAINING = ("Retrain", "Retrain-Fair")
DATASETS = ("movielens-1m", "modcloth")
PARTS = tuple((dataset, model) for dataset in DATASETS for model in MODELS)
JUDGED = range(1, 7)  # the periods that the paper averages over, t = 1 … 6
SWEPT_WEIGHT = 1.0  # λ of the sweeps over epochs, τ and μ: at their defaults they show the numbers of λ = 1


@dataclass(frozen=True)
class Setting:
    """A method, and the options in which it differs from the paper's defaults.

    >>> Setting.of("FADE", fairness_weight=1.0).label
    'FADE fairness_weight=1.0'
    """

    method: str
    options: tuple[tuple[str, Option], ...] = ()

    @classmethod
    def of(cls, method: str, **options: Option) -> Setting:
        return cls(method, tuple(sorted(options.items())))

    @property
    def label(self) -> str:
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.options)])


@dataclass(frozen=True)
class Family:
    """Settings of which one is chosen: a method and the values of one option."""

    name: str  # the series in the figures
    method: str
    parameter: str
    values: tuple[float, ...]
    plain: str  # the method without fairness that its performance is measured against
    surrogate: str = "hit"

    def at(self, value: float) -> Setting:
        more: dict[str, Option] = {} if self.surrogate == "hit" else {"surrogate": self.surrogate}
        return Setting.of(self.method, **{self.parameter: value}, **more)


@dataclass(frozen=True)
class Scale:
    """The size of a reproduction: all that the paper ran, or a first look."""

    weights: tuple[float, ...]  # λ of FADE, and of Pretrain-Fair, which comes with it
    few_weights: dict[str, tuple[float, ...]]
    """λ of the methods that the figures show at one value only, by data set: near the paper's own values."""
    adversary_weights: dict[str, tuple[float, ...]]  # γ of Adver, by data set
    epochs: tuple[int, ...]
    temperatures: tuple[float, ...]
    n_negatives: tuple[int, ...]
    n_periods: int
    few_periods: dict[ModelName, int]  # the models with fewer
    pretrain_epochs: dict[tuple[str, ModelName], int]  # where it is not the paper's 100
    retrain_epochs: dict[tuple[str, ModelName], int]  # where methods that retrain in every period take fewer
    adversary_epochs: dict[tuple[str, ModelName], int]
    """Epochs of Adver's pre-training, whose discriminator takes ten steps a batch."""
    timed: tuple[str, ...]  # data sets of the time table

    def families(self, dataset: str) -> list[Family]:
        """Return the families of a data set."""
        fair, few = "fairness_weight", self.few_weights[dataset]
        return [
            Family("FADE", "FADE", fair, self.weights, "Finetune"),
            Family("FADE-Abs", "FADE-Abs", fair, few, "Finetune"),
            Family("Pretrain-Fair", "Pretrain-Fair", fair, self.weights, "Pretrain"),
            Family("Retrain-Fair", "Retrain-Fair", fair, few, "Retrain"),
            Family("Adver", "Adver", "adversary_weight", self.adversary_weights[dataset], "Finetune"),
            Family("FADE[NeuralNDCG]", "FADE", fair, few, "Finetune", "neural-ndcg"),
            Family("FADE[ApproxNDCG]", "FADE", fair, few, "Finetune", "approx-ndcg"),
        ]

    def config(self, setting: Setting, dataset: str, model: ModelName, *, seed: int, protocol: str) -> RunConfig:
        epochs = self.adversary_epochs if setting.method == "Adver" else self.pretrain_epochs
        if setting.method in RETRAINING:
            epochs = epochs | self.retrain_epochs
        return RunConfig(
            method=setting.method,
            model=model.lower(),
            protocol=protocol,
            seed=seed,
            n_periods=self.few_periods.get(model, self.n_periods),
            n_resamples=0,
            tasks=("remain", "next"),
            pretrain_epochs=epochs.get((dataset, model), 100),
            **dict(setting.options),
        )

    def shortened(self, setting: Setting, dataset: str, model: ModelName) -> str | None:
        """Describe how a run is shorter than in a full reproduction; None if it is not.

        >>> QUICK.shortened(Setting.of("FADE"), "modcloth", "MF") is None
        True
        >>> QUICK.shortened(Setting.of("FADE"), "modcloth", "NCF")
        '5 of 100 epochs of pre-training, 2 of 10 periods'
        """
        ours, full = (scale.config(setting, dataset, model, seed=0, protocol="paper") for scale in (self, FULL))
        kind = "retraining" if setting.method in RETRAINING else "pre-training"
        parts = []
        if ours.pretrain_epochs < full.pretrain_epochs:
            parts.append(f"{ours.pretrain_epochs} of {full.pretrain_epochs} epochs of {kind}")
        if (ours.n_periods or 0) < (full.n_periods or 0):
            parts.append(f"{ours.n_periods} of {full.n_periods} periods")
        return ", ".join(parts) or None


FULL = Scale(
    weights=(0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0),
    few_weights={"movielens-1m": (0.5, 2.0), "modcloth": (2.0, 4.0)},
    adversary_weights=dict.fromkeys(DATASETS, (1.0, 10.0, 20.0, 50.0)),
    epochs=(1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50),
    temperatures=(0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0),
    n_negatives=(4, 8, 16, 28, 40),
    n_periods=10,
    few_periods={},
    pretrain_epochs={("movielens-1m", "NCF"): 50},
    retrain_epochs={},
    adversary_epochs={part: 5 if part[0] == "movielens-1m" else 50 for part in PARTS},
    timed=DATASETS,
)

QUICK = Scale(
    weights=(0.5, 1.0, 4.0),
    few_weights={"movielens-1m": (1.0,), "modcloth": (4.0,)},
    adversary_weights={"movielens-1m": (), "modcloth": (10.0,)},  # on a CPU it takes a minute per thousand batches
    epochs=(1, 10),
    temperatures=(0.5, 3.0),
    n_negatives=(4, 16),
    n_periods=10,
    few_periods={"NCF": 2},
    pretrain_epochs={("movielens-1m", "NCF"): 1, ("modcloth", "NCF"): 5},
    retrain_epochs={("movielens-1m", "MF"): 5},
    adversary_epochs={("modcloth", "MF"): 2, ("modcloth", "NCF"): 2},
    timed=("modcloth",),
)


PLAIN = tuple(Setting.of(method) for method in ("Pretrain", "Retrain", "Finetune"))
RERANK = Setting.of("Rerank")


@dataclass(frozen=True)
class Experiment:
    """The runs behind a figure and its counterpart for the other task."""

    name: str  # the value of `--experiment`
    figures: tuple[str, ...]
    fixed: Callable[[Scale], Sequence[Setting]]  # settings without a choice
    chosen: tuple[str, ...] = ()  # families of which it shows the chosen setting
    parts: tuple[Part, ...] = PARTS

    def settings(self, scale: Scale, dataset: str, model: ModelName, chosen: Chosen | None = None) -> list[Setting]:
        """Return the settings to run on a data set, with every value of a family or those in `chosen`."""
        settings = list(self.fixed(scale))
        for family in (family for family in scale.families(dataset) if family.name in self.chosen):
            settings.append(Setting.of(family.plain))
            shown = (v for v in family.values if chosen is None or (dataset, model, family.name, v) in chosen)
            settings.extend(map(family.at, shown))
        return settings


def _swept(parameter: str, values: Callable[[Scale], Sequence[float]]) -> Callable[[Scale], list[Setting]]:
    return lambda scale: [swept(parameter, value) for value in values(scale)]


def swept(parameter: str, value: float) -> Setting:
    """Return FADE at one point of a sweep; λ = 0 is Finetune, and defaults are left out.

    >>> swept("temperature", 3.0) == swept("update_epochs", 10) == swept("fairness_weight", 1.0)
    True
    """
    if parameter == "fairness_weight":
        return Setting.of("FADE", fairness_weight=value) if value > 0 else Setting.of("Finetune")
    defaults = {"temperature": 3.0, "update_epochs": 10, "n_fairness_negatives": 4}
    more = {} if value == defaults[parameter] else {parameter: value}
    return Setting.of("FADE", fairness_weight=SWEPT_WEIGHT, **more)


_ML_MF: tuple[Part, ...] = (("movielens-1m", "MF"),)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("observation", ("fig:observation",), lambda scale: (PLAIN[0], PLAIN[2]), ("FADE",), _ML_MF),
        Experiment(
            "tradeoff",
            ("fig:trunc-tradeoff-taskR", "appenfig:trunc-tradeoff-taskN"),
            lambda scale: (*PLAIN, RERANK),
            ("FADE", "FADE-Abs", "Pretrain-Fair", "Retrain-Fair", "Adver"),
        ),
        Experiment(
            "trend",
            ("fig:trunc-trend-taskR", "appenfig:trunc-trend-taskN"),
            lambda scale: PLAIN[1:],
            ("Retrain-Fair", "FADE"),
        ),
        Experiment(
            "performance",
            ("appenfig:full-trend-perf-taskR", "appenfig:trunc-trend-perf-taskR", "appenfig:trunc-trend-perf-taskN"),
            lambda scale: PLAIN,
            ("Retrain-Fair", "FADE"),
        ),
        Experiment("time", ("table:running_time",), lambda scale: (), ()),
        Experiment(
            "softrank",
            ("appenfig:trunc-softrank-taskR", "appenfig:trunc-softrank-taskN"),
            lambda scale: (PLAIN[2],),
            ("FADE", "FADE[NeuralNDCG]", "FADE[ApproxNDCG]"),
        ),
        Experiment(
            "lambda",
            ("fig:scaling", "appenfig:trunc-param-lambda-taskR", "appenfig:trunc-param-lambda-taskN"),
            _swept("fairness_weight", lambda scale: (0.0, *scale.weights)),
        ),
        Experiment(
            "epochs",
            ("fig:params", "appenfig:trunc-param-tepoch-taskR", "appenfig:trunc-param-tepoch-taskN"),
            _swept("update_epochs", lambda scale: scale.epochs),
        ),
        Experiment(
            "tau",
            ("fig:params", "appenfig:trunc-param-tau-taskR", "appenfig:trunc-param-tau-taskN"),
            _swept("temperature", lambda scale: scale.temperatures),
        ),
        Experiment(
            "mu",
            ("appenfig:trunc-param-numneg-taskR", "appenfig:trunc-param-numneg-taskN"),
            _swept("n_fairness_negatives", lambda scale: scale.n_negatives),
        ),
    )
}


def named(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments with these names or figure labels; without names, all."""
    if not names:
        return list(EXPERIMENTS.values())
    experiments: dict[str, Experiment] = {}
    for name in names:
        meant = [
            e for e in EXPERIMENTS.values() if name in (e.name, *e.figures, *(f.partition(":")[2] for f in e.figures))
        ]
        if not meant:
            raise ConfigurationError(
                f"--experiment takes {', '.join(EXPERIMENTS)}, or a label of the paper such as fig:params; got {name!r}"
            )
        experiments |= {experiment.name: experiment for experiment in meant}
    return list(experiments.values())
