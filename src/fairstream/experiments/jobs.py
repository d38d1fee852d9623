"""Runs cut into jobs that can be done in any order, by any process, none of them twice.

A job is a pre-training with all the runs that start from it, or one retraining: a method that
retrains does not depend on the period before, so each of its periods is a job of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import Any, Literal, NamedTuple

from fairstream.cluster import PROCESS_BYTES
from fairstream.data import EventLog, read_events
from fairstream.errors import FairstreamError, ModelError
from fairstream.experiments.config import RunConfig
from fairstream.experiments.identity import pretraining_id, run_id
from fairstream.experiments.pretrained import Pretrained
from fairstream.experiments.record import Record
from fairstream.experiments.results import PeriodResult
from fairstream.experiments.run import Run, groups_of, resolved
from fairstream.experiments.store import Store
from fairstream.methods import Parts
from fairstream.models import may_inherit
from fairstream.registry import load_plugins

Device = Literal["auto", "cpu", "cuda"]


class Epoch(NamedTuple):
    """One epoch of one run, done."""

    seed: int
    t: int
    done: int
    """Epochs of this period done so far."""
    total: int
    work: float
    """In batches of the quickest kind, as `Job.work`."""


OnEpoch = Callable[[Epoch], None]

_WEIGHTS = {"mf": 1.0, "ncf": 5.0, "Adver": 200.0, "neural-ndcg": 2.0}
"""About how many times longer a batch takes; only the order of jobs and the estimated time depend on it."""
_OTHER_MODEL = 5.0
_EVENT_BYTES, _ROW_COPIES = 100, 8
"""What histories, sorted copies and batches hold of an event; weights, gradients and Adam's two moments of the model in
service and of the next one."""


@dataclass(frozen=True)
class Source:
    """Where events come from: the arguments of `read_events`, so that any process can read them itself."""

    source: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, source: str, **options: Any) -> Source:
        return cls(source, tuple(sorted(options.items())))

    def read(self) -> EventLog:
        """Return the log, which is read once in a process."""
        return _read(self)


@dataclass(frozen=True, eq=False)
class LogSource:
    """Events that are already in memory, sent to the processes that need them."""

    log: EventLog

    def read(self) -> EventLog:
        return self.log


@lru_cache(maxsize=4)
def _read(source: Source) -> EventLog:
    return read_events(source.source, **dict(source.options))


@dataclass(frozen=True)
class Job:
    """Work to be done in one go."""

    source: Source | LogSource
    configs: tuple[RunConfig, ...]
    """Runs that start from the same pre-training, or the one that retrains at `t`."""
    t: int | None
    work: float
    """In batches of the quickest kind."""
    parts: Parts = field(default_factory=Parts, hash=False)
    """Objects of the user's own that go to `Run` beside the configuration."""

    @property
    def memory(self) -> int:
        """About how many bytes a process needs for it."""
        log, largest = self.source.read(), max(config.embedding_dim for config in self.configs)
        rows = _ROW_COPIES * largest * (log.n_users + log.n_items)
        return PROCESS_BYTES + _EVENT_BYTES * len(log) + 4 * rows

    def execute(self, store: Store, device: Device, on_epoch: OnEpoch) -> None:
        """Do it, and leave the results in the store.

        Raises
        ------
        FairstreamError
            If runs failed; the others of the job are in the store all the same.

        """
        for config in self.configs:
            load_plugins(config.plugins)
        log = self.source.read()
        if self.t is not None:
            self._retrain(store, log, self.t, device, on_epoch)
            return
        kept = store.pretrained(pretraining_id(log, self.configs[0]))
        pretrained = Pretrained.load(kept)
        errors: list[FairstreamError] = []
        for config in self.configs:
            if _is_begun(store, log, config):
                continue
            try:
                run = self._run(log, config, device, on_epoch)
            except FairstreamError as error:
                errors.append(_named(config, error))
                continue
            if pretrained is None:
                pretrained = self._pretrain(run, store)
                pretrained.save(kept)
            else:
                run.begin_from(pretrained.weights, pretrained.update)
            try:
                _finish_run(run, store)
            except ModelError as error:  # the others may not diverge
                errors.append(_failed(store, log, config, error))
        kept.unlink(missing_ok=True)
        _raise_all(errors)

    def _run(self, log: EventLog, config: RunConfig, device: Device, on_epoch: OnEpoch) -> Run:
        def on_progress(t: int, done: int, total: int) -> None:
            on_epoch(Epoch(config.seed, t, done, total, _epoch_work(log, config, t)))

        return Run(log, config.with_options(device=device), parts=self.parts, on_progress=on_progress)

    def _retrain(self, store: Store, log: EventLog, t: int, device: Device, on_epoch: OnEpoch) -> None:
        run = self._run(log, self.configs[0], device, on_epoch)
        name = run_id(log, run.config)
        if store.failure(name) is not None:
            return  # another period of it has diverged since
        try:
            result = run.retrain_at(t)
        except ModelError as error:
            raise _failed(store, log, run.config, error) from None
        store.write_part(name, t, _part(run, result))

    def _pretrain(self, run: Run, store: Store) -> Pretrained:
        """The model that all the runs start from; if it diverges, all of them have failed."""
        try:
            run.begin()
        except ModelError as error:
            left = [config for config in self.configs if not _is_begun(store, run.log, config)]
            _raise_all([_failed(store, run.log, config, error) for config in left])
        return Pretrained.of(run)


def _raise_all(errors: list[FairstreamError]) -> None:
    if errors:
        raise type(errors[0])("; ".join(map(str, errors))) from None


def _failed(store: Store, log: EventLog, config: RunConfig, error: ModelError) -> FairstreamError:
    """Keep the reason, so that a run that diverges is not tried again and again."""
    store.write_failure(run_id(log, config), str(error))
    return _named(config, error)


def _named(config: RunConfig, error: FairstreamError) -> FairstreamError:
    return type(error)(f"{config.method} ({config.model}, seed {config.seed}): {error}")


def _finish_run(run: Run, store: Store) -> None:
    """From the pre-trained model to the end, or as far as it is needed."""
    name, begun = run_id(run.log, run.config), run.begin()
    if _comes_in_parts(run.log, run.config):
        store.write_part(name, 0, _part(run, begun))
        return
    for _ in run:
        pass
    store.write(name, Record.from_document(run.document()))


def _part(run: Run, result: PeriodResult) -> Record:
    """One period of a run."""
    timing = {"update_s": [result.update.seconds]}
    return Record.from_document({**run.about(), "periods": [result.to_dict()], "timing": timing})


def jobs_for(
    store: Store,
    source: Source | LogSource,
    configs: Iterable[RunConfig],
    *,
    parts: Parts | None = None,
) -> list[Job]:
    """Return what is left to do until the store has all these runs."""
    log, parts = source.read(), parts or Parts()
    by_pretraining: dict[str, list[RunConfig]] = {}
    jobs = []
    by_id: dict[str, RunConfig] = {}
    for config in configs:
        by_id.setdefault(run_id(log, config), resolved(log, config)[0])
    for name, config in by_id.items():
        if name in store or store.failure(name) is not None:
            continue
        if not _is_begun(store, log, config):
            by_pretraining.setdefault(pretraining_id(log, config), []).append(config)
        if _comes_in_parts(log, config):
            missing = [t for t in _periods(config)[1:] if not store.part(name, t).exists()]
            jobs += [Job(source, (config,), t, _work(log, config, t), parts) for t in missing]
    for group in by_pretraining.values():
        updates = sum(
            _work(log, config, t)
            for config in group
            if config.strategy_name != "keep" and not _comes_in_parts(log, config)
            for t in _periods(config)[1:]
        )
        jobs.append(Job(source, tuple(group), None, _work(log, group[0], 0) + updates, parts))
    return jobs


def finish(store: Store, source: Source | LogSource, configs: Iterable[RunConfig]) -> None:
    """Join the runs whose periods were computed apart."""
    log = source.read()
    for config in {resolved(log, config)[0] for config in configs}:
        if _comes_in_parts(log, config):
            store.join_parts(run_id(log, config), _periods(config))


def _is_begun(store: Store, log: EventLog, config: RunConfig) -> bool:
    """Whether nothing is left to do that needs the pre-trained model."""
    name = run_id(log, config)
    return (
        name in store
        or store.failure(name) is not None
        or (_comes_in_parts(log, config) and store.part(name, 0).exists())
    )


def _comes_in_parts(log: EventLog, config: RunConfig) -> bool:
    """Whether each period is a job of its own; not where something follows from the period before."""
    owes_nothing = groups_of(log).choice != "auto" and not may_inherit(config.model) and not config.explain
    return config.strategy_name == "retrain" and owes_nothing


def _periods(config: RunConfig) -> range:
    assert config.n_periods is not None
    return range(config.n_periods)


def _work(log: EventLog, config: RunConfig, t: int) -> float:
    epochs = config.pretrain_epochs if t == 0 or config.strategy_name == "retrain" else config.update_epochs
    return epochs * _epoch_work(log, config, t)


def _epoch_work(log: EventLog, config: RunConfig, t: int) -> float:
    periods = resolved(log, config)[1]
    at = periods.span(t)
    n_events = at.stop if config.strategy_name == "retrain" else at.stop - at.start
    n_candidates = 1 + max(config.n_negatives, config.n_fairness_negatives if config.fairness_name else 0)
    kind = config.method if config.method in _WEIGHTS else config.model
    weight = _WEIGHTS.get(kind, _OTHER_MODEL) * _WEIGHTS.get(config.surrogate, 1.0)
    return ceil(n_events / config.batch_size) * weight * n_candidates
