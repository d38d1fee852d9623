"""Runs resolved on a log: their periods, and the content ids of runs and of shared pre-trainings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fairstream.data import EventLog, Groups
from fairstream.data.datasets.sources import recognise
from fairstream.errors import ConfigurationError
from fairstream.experiments.config import PAPER_TASKS, RunConfig, protocol_of
from fairstream.methods import METHODS, TARGET_OPTIONS, kind_of
from fairstream.models import MODELS, Scorer, resolve_model
from fairstream.periods import Periods, cut_by_length, cut_periods

_PAPER_RATIO, _PAPER_PERIODS = 0.6, 7
_OF_THE_REPORT = ("n_resamples", "metrics", "tasks", "explain")
"""Options of the evaluation: they change the stored results, not the method."""
_WITHOUT_EFFECT: tuple[str, ...] = ("seed", "device", "engine", "threads", "plugins", "model_settings", *_OF_THE_REPORT)
_OF_THE_FAIRNESS_LOSS = ("fairness_weight", "temperature", "n_fairness_negatives", "surrogate")
_LEFT_OUT_AT = {
    "update_learning_rate": None,
    "schedule": "constant",
    "activity_exponent": 0.0,
    "pretrain_visits": None,
    "feature_buckets": 4096,
    "layers": 4,
    "group_weight": 1.0,
    "weighted_group": None,
    "tasks": PAPER_TASKS,
    "explain": False,
}
"""An id omits options with these values, so that the ids of the reproduction stay as they are."""
_OF_UPDATES = ("update_epochs", "update_learning_rate")
_OUTSIDE_PRETRAINING = (
    "method",
    "strategy",
    *_OF_UPDATES,
    "restart",
    "restart_every",
    "pretrain_ratio",
    "pretrain_events",
    "period",
    "n_periods",
    "n_blocks",
    "k",
    "min_group_size",
    *TARGET_OPTIONS,
)


def groups_of(log: EventLog) -> Groups:
    """Return the log's groups, or none where it has no table of users."""
    return Groups.none(log.n_users) if log.groups is None else log.require_groups()


def resolved(log: EventLog, config: RunConfig) -> tuple[RunConfig, Periods]:
    """Return the configuration resolved on the log (without groups every lever is off), and the periods."""
    if log.groups is None:
        if config.max_gap is not None or METHODS[config.method].lever is not None:
            option = f"method {config.method}" if config.max_gap is None else "max_gap"
            raise ConfigurationError(
                f"{option} is about groups of users, but the log has none; read it with a users table and group=COLUMN "
                f"(on the command line: --group COLUMN), or leave it out"
            )
        config = config.without_lever()
    known = recognise(log)
    ratio = config.pretrain_ratio or (known.pretrain_ratio if known else _PAPER_RATIO)
    if config.pretrain_events is not None:
        ratio = config.pretrain_events / len(log)
    if config.period is not None:
        periods = cut_by_length(log.times, pretrain_ratio=ratio, length=config.period, n_periods=config.n_periods)
    else:
        n_periods = config.n_periods or min(_PAPER_PERIODS, config.n_blocks)
        unit = config.batch_size if protocol_of(config.protocol).cuts_whole_batches else 1
        periods = cut_periods(len(log), pretrain_ratio=ratio, n_periods=n_periods, n_blocks=config.n_blocks, unit=unit)
    share = ratio if config.pretrain_events is None else None
    options: dict[str, Any] = {"pretrain_ratio": share, "n_periods": periods.last, "tasks": config.resolved_tasks}
    if config.model in MODELS:
        model = resolve_model(config.model, config.model_settings)
        options["model_settings"] = dict(model.sized(kind_of(config.device), periods.ends[0]).settings)
    return config.with_options(**options), periods


def used_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the method uses, without the seed."""
    unused, method = _WITHOUT_EFFECT, METHODS[config["method"]]
    if (config.get("fairness") or method.fairness) is None:
        unused += _OF_THE_FAIRNESS_LOSS
    if config.get("max_gap") is None:
        unused += TARGET_OPTIONS if config.get("target", "none") == "none" else ("max_gap",)
    else:
        unused += ("target", "max_group_loss")
    if config.get("group_weight", 1.0) == 1:
        unused += ("weighted_group",)
    used = {**{name: value for name, value in config.items() if name not in unused}, **config["model_settings"]}
    return {name: value for name, value in used.items() if not _is_left_out(name, value)}


def _is_left_out(name: str, value: Any) -> bool:
    return name in _LEFT_OUT_AT and value == _LEFT_OUT_AT[name]


def identify(log: EventLog, config: RunConfig) -> tuple[RunConfig, Periods, str, str]:
    """Return the resolved configuration, the periods, and the ids of the run and of its pre-training."""
    config, periods = resolved(log, config)
    options = config.model_dump()
    settings = used_settings(options)
    reported = {name: options[name] for name in _OF_THE_REPORT if not _is_left_out(name, options[name])}
    run = _digest(log, {**settings, **reported, "seed": config.seed})
    return config, periods, run, _digest(log, {**_of_pretraining(config, settings), "n_events": periods.ends[0]})


def run_id(log: EventLog, config: RunConfig) -> str:
    """Return the id of a run on a log; runs with the same id give the same file."""
    return identify(log, config)[2]


def _of_pretraining(config: RunConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide the pre-trained model; the caller adds the end of D_0."""
    # A model that inherits is pre-trained, then updated with the last of these events.
    outside = set(_OUTSIDE_PRETRAINING) - (set(_OF_UPDATES) if may_inherit(config.model) else set())
    trains = METHODS[config.method].lever == "training"
    outside |= set() if trains else set(config.own_options)
    about = {"seed": config.seed, "fairness": config.fairness_name, "method": config.method if trains else None}
    return {**{name: value for name, value in settings.items() if name not in outside}, **about}


def _digest(log: EventLog, settings: Mapping[str, Any]) -> str:
    groups = groups_of(log)
    first = groups.names[:1] if groups.has_advantaged else ()
    about = [log.fingerprint(), groups.attribute, *first, groups.choice, settings]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]


def may_inherit(model: str) -> bool:
    """Return whether a model inherits something from the previous one; True for an unknown name."""
    return model not in MODELS or resolve_model(model).scorer.calibrate_from is not Scorer.calibrate_from
