"""Runs cut into jobs that can be done in any order, by anybody, and none of them twice.

A job is a pre-training with all the runs that begin with it, or one retraining: a method that
retrains owes nothing to the period before, so each of its periods is a job of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, Literal

from fairstream.data import EventLog, read_events
from fairstream.errors import FairstreamError, ModelError
from fairstream.experiments.config import RunConfig
from fairstream.experiments.identity import pretraining_id, run_id
from fairstream.experiments.pretrained import Pretrained
from fairstream.experiments.run import Run, resolved
from fairstream.experiments.store import Store
from fairstream.experiments.stored import StoredRun

OnWork = Callable[[float], None]
"""Called after each epoch with the work that it was."""

_WEIGHTS = {"mf": 1.0, "ncf": 5.0, "custom": 5.0, "Adver": 200.0, "neural-ndcg": 2.0}
"""About how many times longer a batch takes; only the order of jobs and the time left rest on it."""


@dataclass(frozen=True)
class Source:
    """Where events come from: what `read_events` takes, so that any process can read them itself."""

    source: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, source: str, **options: Any) -> Source:
        return cls(source, tuple(sorted(options.items())))

    def read(self) -> EventLog:
        """The log; read once in a process."""
        return _read(self)


@lru_cache(maxsize=4)
def _read(source: Source) -> EventLog:
    return read_events(source.source, **dict(source.options))


@dataclass(frozen=True)
class Job:
    """Something to do in one go."""

    source: Source
    configs: tuple[RunConfig, ...]
    """Runs that begin with the same pre-training, or the one that retrains at `t`."""
    t: int | None
    work: float
    """In batches of the quickest kind."""

    def execute(self, store: Store, device: Literal["auto", "cpu", "cuda"], on_work: OnWork) -> None:
        """Do it, and leave what comes of it in the store."""
        log = self.source.read()
        if self.t is not None:
            run = _run(log, self.configs[0], device, on_work)
            if store.failure(run_id(log, run.config)) is not None:
                return  # another period of it has diverged since
            try:
                result = run.retrain_at(self.t)
            except ModelError as error:
                raise FairstreamError(_failed(store, log, run.config, error)) from None
            store.write_part(run_id(log, run.config), self.t, StoredRun.of(run.about(), [result]))
            return
        kept = store.pretrained(pretraining_id(log, self.configs[0]))
        pretrained = Pretrained.load(kept)
        failures = []
        for config in self.configs:
            if _is_begun(store, log, config):
                continue
            try:
                run = _run(log, config, device, on_work)
            except FairstreamError as error:
                failures.append(f"{_label(config)}: {error}")
                continue
            if pretrained is None:
                pretrained = self._pretrained(run, store)
                pretrained.save(kept)
            else:
                run.begin_from(pretrained.weights, pretrained.update)
            try:
                _go_on(run, store)
            except ModelError as error:  # the others may do better
                failures.append(_failed(store, log, config, error))
        kept.unlink(missing_ok=True)
        if failures:
            raise FairstreamError("; ".join(failures))

    def _pretrained(self, run: Run, store: Store) -> Pretrained:
        """What all the runs begin with; if it cannot be had, none of them can."""
        try:
            run.begin()
        except ModelError as error:
            left = [config for config in self.configs if not _is_begun(store, run.log, config)]
            failures = [_failed(store, run.log, config, error) for config in left]
            raise FairstreamError("; ".join(failures)) from None
        return Pretrained.of(run)


def _failed(store: Store, log: EventLog, config: RunConfig, error: ModelError) -> str:
    """Keep the reason, so that what fails once is not tried again and again."""
    store.write_failure(run_id(log, config), str(error))
    return f"{_label(config)}: {error}"


def _label(config: RunConfig) -> str:
    return f"{config.method} ({config.model}, seed {config.seed})"


def _go_on(run: Run, store: Store) -> None:
    """From the pre-trained model to the end, or as far as it is needed."""
    name, begun = run_id(run.log, run.config), run.begin()
    if _comes_in_parts(run.log, run.config):
        store.write_part(name, 0, StoredRun.of(run.about(), [begun]))
    else:
        results = [begun, *run]
        store.write(name, StoredRun.of(run.about(), results, **_recovery(run)))


def _recovery(run: Run) -> dict[str, Any]:
    """How well the group is recovered from the embeddings: of Adver, whose aim it is, and of what it is measured by."""
    if run.config.method not in ("Adver", "Finetune"):
        return {}
    found = run.group_recovery()
    return {"group_recovery": None if found is None else found.to_dict()}


def jobs_for(store: Store, source: Source, configs: Iterable[RunConfig]) -> list[Job]:
    """What is left to do until the store has all these runs."""
    log = source.read()
    families: dict[str, list[RunConfig]] = {}
    jobs = []
    wanted: dict[str, RunConfig] = {}
    for config in (resolved(log, config)[0] for config in configs):
        wanted.setdefault(run_id(log, config), config)
    for name, config in wanted.items():
        if name in store or store.failure(name) is not None:
            continue
        if not _is_begun(store, log, config):
            families.setdefault(pretraining_id(log, config), []).append(config)
        if _comes_in_parts(log, config):
            missing = [t for t in _periods(config)[1:] if not store.part(name, t).exists()]
            jobs += [Job(source, (config,), t, _work(log, config, t)) for t in missing]
    for family in families.values():
        later = [config for config in family if config.strategy_name != "keep"]
        updates = sum(
            _work(log, config, t) for config in later if not _comes_in_parts(log, config) for t in _periods(config)[1:]
        )
        jobs.append(Job(source, tuple(family), None, _work(log, family[0], 0) + updates))
    return jobs


def finish(store: Store, source: Source, configs: Iterable[RunConfig]) -> None:
    """Put together what came in parts."""
    log = source.read()
    for config in {resolved(log, config)[0] for config in configs}:
        if _comes_in_parts(log, config):
            store.join_parts(run_id(log, config), _periods(config))


def _run(log: EventLog, config: RunConfig, device: Literal["auto", "cpu", "cuda"], on_work: OnWork) -> Run:
    return Run(
        log, config.with_options(device=device), on_progress=lambda t, done, total: on_work(_epoch_work(log, config, t))
    )


def _is_begun(store: Store, log: EventLog, config: RunConfig) -> bool:
    """Whether nothing is left to do that needs the pre-trained model."""
    name = run_id(log, config)
    return (
        name in store
        or store.failure(name) is not None
        or (_comes_in_parts(log, config) and store.part(name, 0).exists())
    )


def _comes_in_parts(log: EventLog, config: RunConfig) -> bool:
    """Whether each period is a job of its own; who is ahead must not be found out on the way."""
    return config.strategy_name == "retrain" and log.require_groups().choice != "auto"


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
    weight = _WEIGHTS[kind] * _WEIGHTS.get(config.surrogate, 1.0)
    return ceil(n_events / config.batch_size) * weight * n_candidates
