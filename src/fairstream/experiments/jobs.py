"""Planned runs, and the jobs that compute them in any process and any order.

A job is a pre-training with all the runs that start from it, or one retraining: a method that
retrains does not depend on the period before, so each of its periods is a job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

import safetensors
import safetensors.torch

from fairstream.data import EventLog, read_events
from fairstream.distributed import PROCESS_BYTES
from fairstream.errors import FairstreamError, ModelError
from fairstream.experiments.config import RunConfig
from fairstream.experiments.identity import identify, may_inherit
from fairstream.experiments.run import TRAINED, Run, make_run
from fairstream.experiments.store import Store
from fairstream.files import replace_file
from fairstream.methods import Parts
from fairstream.models import NO_LEVEL
from fairstream.periods import Periods
from fairstream.recommender import Update
from fairstream.registry import load_plugins
from fairstream.strategies import PeriodReplay
from fairstream.training import Tensors, TrainingReport

Device = Literal["auto", "cpu", "cuda"]
_UPDATE = "update"


class Epoch(NamedTuple):
    """One epoch of one run, done."""

    seed: int
    t: int
    done: int  # epochs of this period done so far
    total: int
    work: float  # relative cost, as `Job.work`


OnEpoch = Callable[[Epoch], None]

_WEIGHTS = {"mf": 1.0, "ncf": 5.0, "Adver": 200.0, "neural-ndcg": 2.0}
"""Approximate cost of a batch relative to MF; it decides only the order of jobs and the estimated time."""
_OTHER_MODEL = 5.0
_EVENT_BYTES, _ROW_COPIES = 100, 8
"""Bytes per event of histories, sorted copies and batches; copies of a row: weights, gradients and Adam's moments of
the model in service and of the next one."""


@dataclass(frozen=True)
class Source:
    """A log in memory, or the arguments of `read_events`, so that any process can read it."""

    source: str | EventLog
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, source: str, **options: Any) -> Source:
        return cls(source, tuple(sorted(options.items())))

    def read(self) -> EventLog:
        """Return the log; each process reads it once."""
        return self.source if isinstance(self.source, EventLog) else _read(self)


@lru_cache(maxsize=4)
def _read(source: Source) -> EventLog:
    return read_events(source.source, **dict(source.options))


@dataclass(frozen=True)
class PlannedRun:
    """A run to compute, with its configuration resolved on the log."""

    source: Source
    config: RunConfig
    periods: Periods
    id: str  # runs with the same id give the same file
    pretraining_id: str  # runs with the same one can share their pre-trained model

    @property
    def comes_in_parts(self) -> bool:
        """Whether each period is a job: a method that retrains does not depend on the previous period."""
        config = self.config
        return config.strategy_name == "retrain" and not may_inherit(config.model) and not config.explain

    def is_over(self, store: Store, part: int | None = None) -> bool:
        """Whether the run is finished, or has diverged; or one of its parts is finished."""
        has_part = part is not None and store.part(self.id, part).exists()
        return has_part or self.id in store or store.failure(self.id) is not None

    def work(self, t: int) -> float:
        """Return the relative cost of training period t, in MF batches."""
        is_whole = t == 0 or self.config.strategy_name == "retrain"
        return (self.config.pretrain_epochs if is_whole else self.config.update_epochs) * self.epoch_work(t)

    @property
    def update_work(self) -> float:
        """The relative cost of all updates that are not separate jobs."""
        has_none = self.config.strategy_name == "keep" or self.comes_in_parts
        return 0.0 if has_none else sum(map(self.work, range(1, self.periods.last)))

    def epoch_work(self, t: int) -> float:
        """Return the relative cost of one epoch of period t."""
        config, span = self.config, self.periods.span(t)
        n_events = span.stop if config.strategy_name == "retrain" else span.stop - span.start
        n_candidates = 1 + max(config.n_negatives, config.n_fairness_negatives if config.fairness_name else 0)
        kind = config.method if config.method in _WEIGHTS else config.model
        weight = _WEIGHTS.get(kind, _OTHER_MODEL) * _WEIGHTS.get(config.surrogate, 1.0)
        return ceil(n_events / config.batch_size) * weight * n_candidates


def plan_runs(source: Source, configs: Iterable[RunConfig]) -> list[PlannedRun]:
    """Resolve runs on a source."""
    log = source.read()
    return [PlannedRun(source, *identify(log, config)) for config in configs]


@dataclass(frozen=True, eq=False)
class Pretrained:
    """The result of a run's pre-training, without the run."""

    weights: Tensors
    update: Update

    @classmethod
    def of(cls, run: Run) -> Pretrained:
        """Copy the pre-trained model of a run that has begun and gone no further."""
        update = replace(run.begin().update, notes=(), decision=None, level=NO_LEVEL)  # each run's target decides anew
        return cls({name: value.detach().clone() for name, value in run.learned().items()}, update)

    def save(self, path: Path) -> None:
        weights = {name: value.cpu().contiguous() for name, value in self.weights.items()}
        replace_file(path, safetensors.torch.save(weights, {_UPDATE: json.dumps(self._about())}))

    def _about(self) -> dict[str, Any]:
        update = self.update
        report, replay = update.report and asdict(update.report), update.replay and update.replay.to_json()
        names = ("t", "step", "seconds", "event_weights")
        return {**{name: getattr(update, name) for name in names}, "report": report, "replay": replay}

    @classmethod
    def load(cls, path: Path) -> Pretrained | None:
        """Return what was saved, or None where the file is missing or damaged."""
        try:
            with safetensors.safe_open(path, "pt") as file:
                update = json.loads(file.metadata()[_UPDATE])
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            _ = weights[TRAINED]
            report = None if update["report"] is None else TrainingReport(**update["report"])
            replay = None if update["replay"] is None else PeriodReplay.from_json(update["replay"])
            about = {"event_weights": update["event_weights"], "replay": replay}
            return cls(weights, Update(update["t"], update["step"], update["seconds"], report, **about))
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
            return None


@dataclass(frozen=True)
class Job:
    """Work of one process."""

    runs: tuple[PlannedRun, ...]  # on one source, from the same pre-training; or the one that retrains at `t`
    t: int | None = None
    parts: Parts = field(default_factory=Parts, hash=False)  # custom objects, in addition to the configuration
    make_run: Callable[..., Run] = make_run  # makes a run of a log, a configuration and the arguments of `Run`
    pretrained: Pretrained | None = field(default=None, compare=False)  # of another run, where the runs start

    @property
    def source(self) -> Source:
        return self.runs[0].source

    @property
    def work(self) -> float:
        """Relative cost, in MF batches."""
        if self.t is not None:
            return self.runs[0].work(self.t)
        return sum(run.update_work for run in self.runs) + (0.0 if self.pretrained else self.runs[0].work(0))

    @property
    def memory(self) -> int:
        """Approximate number of bytes that a process needs for it."""
        log, largest = self.source.read(), max(_embedding_dim(run.config.model_settings) for run in self.runs)
        rows = _ROW_COPIES * largest * (log.n_users + log.n_items)
        return PROCESS_BYTES + _EVENT_BYTES * len(log) + 4 * rows

    def execute(self, store: Store, device: Device, on_epoch: OnEpoch) -> list[FairstreamError]:
        """Write the runs to the store; returns the errors of those that failed, which do not stop the others.

        The store keeps why a run diverged, so that it is not repeated.
        """
        for plan in self.runs:
            load_plugins(plan.config.plugins)
        file = store.pretrained(self.runs[0].pretraining_id)
        pretrained = self.pretrained or (Pretrained.load(file) if self.t is None else None)
        errors: list[FairstreamError] = []
        divergence: ModelError | None = None
        for plan in self.runs:
            part = (self.t or 0) if plan.comes_in_parts else None
            if plan.is_over(store, part):
                continue
            try:
                if divergence is not None and pretrained is None:
                    raise divergence  # of the pre-training, and so of every run
                run = self._run(plan, device, on_epoch)
                if self.t is not None:
                    store.write_part(plan.id, self.t, run.part(run.retrain_at(self.t)))
                    continue
                if pretrained is None:
                    run.begin()
                    pretrained = Pretrained.of(run)
                    pretrained.save(file)
                else:
                    run.begin_from(pretrained.weights, pretrained.update)
                if part is not None:
                    store.write_part(plan.id, part, run.part(run.begin()))
                    continue
                for _ in run:
                    pass
                store.write(plan.id, run.record())
            except FairstreamError as error:
                if isinstance(error, ModelError):
                    divergence = error
                    store.write_failure(plan.id, str(error))
                about = f"{plan.config.method} ({plan.config.model}, seed {plan.config.seed})"
                errors.append(type(error)(f"{about}: {error}"))
        if self.t is None:
            file.unlink(missing_ok=True)
        return errors

    def _run(self, plan: PlannedRun, device: Device, on_epoch: OnEpoch) -> Run:
        def on_progress(t: int, done: int, total: int) -> None:
            on_epoch(Epoch(plan.config.seed, t, done, total, plan.epoch_work(t)))

        config = plan.config.with_options(device=device)
        return self.make_run(self.source.read(), config, parts=self.parts, on_progress=on_progress)


def jobs_for(
    store: Store,
    runs: Iterable[PlannedRun],
    *,
    parts: Parts | None = None,
    make_run: Callable[..., Run] = make_run,
    pretrained: Pretrained | None = None,
) -> list[Job]:
    """Return what is left to do until the store has all these runs.

    Runs with the same pre-training are one job; given a pre-trained model, each run is a job that starts from it.
    """
    by_id: dict[str, PlannedRun] = {}
    groups: dict[Any, list[PlannedRun]] = {}
    jobs = []
    make_job = partial(Job, parts=parts or Parts(), make_run=make_run)
    for run in runs:  # options without an effect do not change the id
        if by_id.setdefault(run.id, run) is not run or run.is_over(store):
            continue
        if not run.is_over(store, 0 if run.comes_in_parts else None):
            start = (run.source, run.pretraining_id) if pretrained is None else run.id
            groups.setdefault(start, []).append(run)
        if run.comes_in_parts:
            jobs += [make_job((run,), t) for t in range(1, run.periods.last) if not run.is_over(store, t)]
    return jobs + [make_job(tuple(group), pretrained=pretrained) for group in groups.values()]


def finish(store: Store, runs: Iterable[PlannedRun]) -> None:
    """Join the runs whose periods were separate jobs."""
    for run in runs:
        if run.comes_in_parts:
            store.join_parts(run.id, range(run.periods.last))


def _embedding_dim(settings: Mapping[str, Any]) -> int:
    """Return the length of a model's embeddings, or of those of its parts; 64 if it is not set."""
    inner = [_embedding_dim(value) for value in settings.values() if isinstance(value, dict)]
    return int(settings.get("embedding_dim", max(inner, default=64)))
