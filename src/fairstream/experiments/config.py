"""The configuration of a run: one frozen object with everything that decides its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from fairstream.errors import ConfigurationError
from fairstream.evaluation import DEFAULT_METRICS, Metric
from fairstream.methods import METHODS, MethodConfig
from fairstream.periods import check_length
from fairstream.registry import Registry, load_plugins
from fairstream.training import RuntimeConfig

TASK_NAMES = {  # the last two: Section 4.1 of the paper
    "event": "each event of the next period (next event)",
    "moment": "each moment of the next period, with all of a user's events at that time",
    "next": "the next period (Task-N)",
    "remain": "everything after the period (Task-R)",
}
TASKS = tuple(TASK_NAMES)
DEFAULT_TASKS = ("event", "next", "remain")
PAPER_TASKS = ("remain", "next")
REPAIRS = ("leak", "ranking", "ndcg", "cold-users", "optimizer")
"""Repairs of the paper's protocol; `fairstream.paper.protocol` describes each."""


@dataclass(frozen=True)
class Protocol:
    """How a run is cut, tested and scored; by default point in time, over all known items, newcomers included."""

    metrics: Mapping[str, Metric] = field(default_factory=lambda: DEFAULT_METRICS)  # by name, the main one first
    defaults: Mapping[str, Any] = field(default_factory=dict)  # for the options of a run
    tasks: tuple[str, ...] = DEFAULT_TASKS  # of a run that names none
    way_of_testing: tuple[bool, ...] = (True, True, True)
    """Whether all items are ranked, the NDCG is true, and newcomers are tested: equal in runs to be compared."""
    cuts_whole_batches: bool = False  # whether periods are cut in whole batches, and by number alone
    run: Callable[..., Any] | None = None  # its kind of `Run`, with the parameters of `Run`

    def check_task(self, task: str, reranker: str | None = None) -> None:
        """Raise a `ConfigurationError` if a task with several lists a user cannot be evaluated.

        `reranker` is the method that chooses the lists of all users together, if one does.
        """
        if task not in ("event", "moment"):
            return
        if not all(self.way_of_testing[:2]):
            raise ConfigurationError(
                f"the task {task} ranks all known items and needs the true NDCG; use the protocol strict, or at least "
                f"paper+ranking+ndcg"
            )
        if reranker is not None:
            raise ConfigurationError(
                f"the task {task} makes a list for one user at a time, and {reranker} chooses the lists of all users "
                f"together; evaluate it on the tasks next and remain"
            )


PROTOCOLS: Registry[Callable[..., Protocol]] = Registry("protocol")
"""Functions that make a protocol from its repairs: `paper+leak+ndcg` is `PROTOCOLS["paper"]("leak", "ndcg")`."""
PROTOCOLS.register("strict", Protocol)
PROTOCOLS.defer("fairstream.paper.run", "paper")


def protocol_of(name: str) -> Protocol:
    """Return the protocol of a name.

    >>> protocol_of("strict").metrics["ndcg"].__name__
    'true_ndcg'
    """
    base, *repairs = name.split("+")
    unknown = set(repairs) - set(REPAIRS if base == "paper" else ())
    if base not in list(PROTOCOLS) or unknown:
        raise ConfigurationError(
            f"protocol must be strict, paper, or paper with repairs such as paper+ranking "
            f"(there are {', '.join(REPAIRS)}), got {name!r}"
        )
    return PROTOCOLS[base](*repairs)


_NAMES_OF_METHODS = {
    *("method", "strategy", "fairness", "fairness_weight", "group_weight"),
    *("surrogate", "temperature", "n_fairness_negatives"),  # of a fairness loss
}
"""Options that choose a method; without any of them a strict run does what `FairRecommender` does by default."""


class RunConfig(MethodConfig, RuntimeConfig):
    """A method, a protocol, how the log is cut, and where it runs.

    >>> RunConfig().model, RunConfig(protocol="paper").model, RunConfig(method="Adver").model
    ('blend', 'mf', 'mf')
    """

    model_config = ConfigDict(extra="allow")  # the options of the method

    model: str = "blend"
    """Base recommender: blend (sasrec, item-item, transitions and popularity, weighted by their results on the last \
period), mf (matrix factorisation), ncf (neural collaborative filtering), item-item (regression on the user's items in \
closed form), transitions (which items follow which), gru and sasrec (they read the user's latest items in order), \
popularity, recent-popularity, or a registered model; mf is the default under the paper's protocol and for Adver. Some \
models set other defaults for the options below."""
    metrics: tuple[str, ...] = ()
    """Metrics to compute, as NAME@K; by default those of the protocol at k."""
    tasks: tuple[str, ...] = ()
    """What is evaluated after each update: event (at each event of the next period, from everything \
before it), moment (the same, with one list for a user's simultaneous events), next (one list a user for \
the next period), remain (for everything after it); by default all but moment under strict, and next and \
remain under the paper's protocol and for methods that rerank."""
    plugins: tuple[str, ...] = ()
    """Modules, or .py files, that register custom models, losses, metrics and strategies."""
    protocol: str = "strict"
    """strict: point in time, full ranking, true NDCG, newcomers included; paper: what produced the \
published numbers; paper+ranking and the like: the paper's with one thing repaired \
(leak, ranking, ndcg, cold-users, optimizer)."""
    pretrain_ratio: float | None = Field(None, gt=0, lt=1)
    """Share of the events to pre-train on; by default 0.6, and 0.7 for ModCloth, as in the paper."""
    pretrain_events: int | None = Field(None, ge=1)
    """Number of events to pre-train on, instead of a share: unlike a share, it does not depend on how \
many are still to come."""
    period: str | None = None
    """Length of a period: a number of events (5000), a share of them (4%) or a stretch of the \
calendar (6h, 1d, 1w, 1mo, 1y); by default one of the n_blocks."""
    n_periods: int | None = Field(None, ge=2)
    """T, the number of periods after pre-training; the last one is only tested on. By default 7, or with period as \
many as there are."""
    n_blocks: int = Field(10, ge=1)
    """Equal blocks that the events after the pre-training data are cut in; the first T are the periods."""
    k: int = Field(20, ge=1)
    """Length of the evaluated lists."""
    min_group_size: int = Field(20, ge=1)
    """Groups with fewer tested users are excluded (none under the paper's protocol)."""
    n_resamples: int = Field(1000, ge=0)
    """Bootstrap samples and permutations behind every interval and p-value; 0: none of them."""

    explain: bool = False
    """Also measure why each period differs from the one before, for `fairstream explain`: evaluates the previous \
model on the new period, too, and repeats the update without the fairness lever, if there is one."""

    @field_validator("metrics", "tasks", mode="before")
    @classmethod
    def _one_or_several(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else names

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in names if name.lower() not in TASKS]:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {unknown[0]!r}")
        return tuple(dict.fromkeys(name.lower() for name in names))

    @field_validator("period", mode="before")
    @classmethod
    def _known_length(cls, length: Any) -> str | None:
        return None if length is None else check_length(str(length))  # `--set period=5000` is a number

    @model_validator(mode="before")
    @classmethod
    def _options_in_force(cls, given: Any) -> Any:
        """Import the plugins; add the defaults of the protocol; drop the options of other methods."""
        if not isinstance(given, dict):
            return given
        if given.get("plugins"):
            load_plugins(tuple(given["plugins"]))
        method = METHODS.get(str(given.get("method")))
        options = None if method is None else method.options
        own = {} if options is None else options.model_fields
        extra = given.keys() - cls.model_fields.keys() - own.keys()
        if unknown := sorted(extra - _options_of_methods()):
            names = ", ".join(sorted({*cls.model_fields, *own}))
            raise ConfigurationError(f"{', '.join(unknown)} is not an option; the options are {names}")
        given = {name: value for name, value in given.items() if name not in extra}
        if options is not None:
            given |= options(**{name: given[name] for name in own if name in given}).model_dump()
        protocol = given.get("protocol", "strict")
        if protocol == "strict" and not given.keys() & _NAMES_OF_METHODS:
            given = {"method": "Finetune", "target": "least-regret", **given}  # as FairRecommender does
        return {**protocol_of(protocol).defaults, **given} if isinstance(protocol, str) else given

    @property
    def own_options(self) -> dict[str, Any]:
        """The options that only the method has."""
        return self.model_extra or {}

    @property
    def resolved_tasks(self) -> tuple[str, ...]:
        """The tasks in force."""
        if self.tasks:
            return self.tasks
        return PAPER_TASKS if METHODS[self.method].lever == "lists" else protocol_of(self.protocol).tasks

    @property
    def explained_tasks(self) -> tuple[str, ...]:
        """The tasks whose changes are explained: those that are about one period."""
        return tuple(task for task in self.resolved_tasks if task != "remain") if self.explain else ()

    @model_validator(mode="after")
    def _tasks_fit(self) -> Self:
        if self.explain and not self.explained_tasks:
            raise ValueError("explain is about the tasks event, moment and next; evaluate one of them, too")
        for task in self.tasks:
            protocol_of(self.protocol).check_task(task, self.method if METHODS[self.method].lever == "lists" else None)
        return self

    @model_validator(mode="after")
    def _periods_fit(self) -> Self:
        if self.pretrain_events is not None and self.pretrain_ratio is not None:
            raise ValueError("pretrain_ratio and pretrain_events both set the pre-training data; give one of them")
        if self.period is not None and protocol_of(self.protocol).cuts_whole_batches:
            raise ValueError("the paper's protocol cuts the log in n_blocks; period goes with strict")
        if self.period is None and self.n_periods is not None and self.n_periods > self.n_blocks:
            raise ValueError(f"n_periods must be at most n_blocks, {self.n_blocks}, got {self.n_periods}")
        for name in self.metrics:
            cutoff = name.rpartition("@")[2]
            if cutoff.isdecimal() and int(cutoff) > self.k:
                raise ValueError(f"k must be at least the cut-off of every metric, got {self.k} and {name}")
        return self


def with_model_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a run; names that are no option of a run or a method become settings of the model.

    >>> with_model_settings({"model": "item-item", "ridge": 500})
    {'model': 'item-item', 'model_settings': {'ridge': 500}}
    """
    known = {*RunConfig.model_fields, *_options_of_methods()}
    settings = {name: value for name, value in options.items() if name not in known}
    rest = {name: value for name, value in options.items() if name in known}
    own = rest.get("model_settings", {})
    return {**rest, "model_settings": {**own, **settings}} if settings and isinstance(own, Mapping) else rest


def _options_of_methods() -> set[str]:
    return {name for method in METHODS.values() if method.options for name in method.options.model_fields}
