"""What the paper ran: data sets, models, methods, and the values that it tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairstream.experiments.config import RunConfig

ModelName = Literal["MF", "NCF"]
Option = float | int | str

MODELS: tuple[ModelName, ...] = ("MF", "NCF")
METRICS = ("NDCG@20", "F1@20")
DATASETS = ("movielens-1m", "modcloth")
JUDGED = range(1, 7)
"""The periods that the paper averages over, t = 1 … 6."""
SWEPT_WEIGHT = 1.0
"""λ of the sweeps over epochs, τ and μ: at their defaults they show the numbers of λ = 1."""


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

    name: str
    """The series in the figures."""
    method: str
    parameter: str
    values: tuple[float, ...]
    plain: str
    """The method without fairness that its performance is measured against."""
    surrogate: str = "hit"

    def at(self, value: float) -> Setting:
        more: dict[str, Option] = {} if self.surrogate == "hit" else {"surrogate": self.surrogate}
        return Setting.of(self.method, **{self.parameter: value}, **more)


@dataclass(frozen=True)
class Scale:
    """How much of it: all that the paper ran, or a first look."""

    weights: tuple[float, ...]
    """λ of FADE, and of Pretrain-Fair, which comes with it."""
    few_weights: dict[str, tuple[float, ...]]
    """λ of the methods that the figures show at one value only, by data set: about where the paper's own lie."""
    adversary_weights: dict[str, tuple[float, ...]]
    """γ of Adver, by data set."""
    epochs: tuple[int, ...]
    temperatures: tuple[float, ...]
    n_negatives: tuple[int, ...]
    n_periods: int
    pretrain_epochs: dict[tuple[str, ModelName], int]
    """Where it is not the paper's 100."""
    adversary_epochs: dict[tuple[str, ModelName], int]
    """Epochs of Adver's pre-training, whose discriminator takes ten steps a batch."""
    timed: tuple[str, ...]
    """Data sets of the time table."""

    def families(self, dataset: str) -> list[Family]:
        """Everything with a value to choose."""
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
        """The run of a setting."""
        epochs = self.adversary_epochs if setting.method == "Adver" else self.pretrain_epochs
        return RunConfig(
            method=setting.method,
            model=model.lower(),
            protocol=protocol,
            seed=seed,
            n_periods=self.n_periods,
            n_resamples=0,
            pretrain_epochs=epochs.get((dataset, model), 100),
            **dict(setting.options),
        )


FULL = Scale(
    weights=(0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0),
    few_weights={"movielens-1m": (0.5, 2.0), "modcloth": (2.0, 4.0)},
    adversary_weights=dict.fromkeys(DATASETS, (1.0, 10.0, 20.0, 50.0)),
    epochs=(1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50),
    temperatures=(0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0),
    n_negatives=(4, 8, 16, 28, 40),
    n_periods=10,
    pretrain_epochs={("movielens-1m", "NCF"): 50},
    adversary_epochs={
        ("movielens-1m", "MF"): 5,
        ("movielens-1m", "NCF"): 5,
        ("modcloth", "MF"): 50,
        ("modcloth", "NCF"): 50,
    },
    timed=DATASETS,
)

QUICK = Scale(
    weights=(0.5, 1.0, 4.0),
    few_weights={"movielens-1m": (1.0,), "modcloth": (4.0,)},
    adversary_weights={"movielens-1m": (), "modcloth": (10.0,)},  # on a CPU it takes a minute per thousand batches
    epochs=(1, 10),
    temperatures=(0.5, 3.0),
    n_negatives=(4, 16),
    n_periods=2,
    pretrain_epochs={
        ("movielens-1m", "MF"): 5,
        ("movielens-1m", "NCF"): 1,
        ("modcloth", "MF"): 20,
        ("modcloth", "NCF"): 5,
    },
    adversary_epochs={("modcloth", "MF"): 2, ("modcloth", "NCF"): 2},
    timed=("modcloth",),
)
