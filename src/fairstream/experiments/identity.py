"""Content ids of runs and of the pre-training that several runs share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fairstream.data import EventLog
from fairstream.experiments.config import PAPER_TASKS, RunConfig
from fairstream.experiments.run import groups_of, resolved
from fairstream.methods import CONTROLLER_OPTIONS, METHODS
from fairstream.models import MODELS, Blend, ClosedFormScorer, may_inherit

_OF_THE_REPORT = ("n_resamples", "metrics", "tasks", "explain")
"""What is computed from the recommended lists: no part of what a method does, but part of what is stored."""
_WITHOUT_EFFECT: tuple[str, ...] = ("seed", "device", "engine", "plugins", *_OF_THE_REPORT)
_OF_THE_FAIRNESS_LOSS = ("fairness_weight", "temperature", "n_fairness_negatives", "surrogate", "fairness_ema_decay")
_OF_ONE_FAIRNESS_LOSS = {"dro_step_size": "group-dro", "cvar_share": "cvar"}
_OF_RERANKING = ("rerank_tolerance",)
_OF_THE_ADVERSARY = ("adversary_weight",)
_LATER_OPTIONS = {
    "update_learning_rate": None,
    "schedule": "constant",
    "activity_exponent": 0.0,
    "feature_buckets": 4096,
    "fairness_ema_decay": None,
}
"""Options that came later, and the values with which a run is what it was before them: it keeps its id."""
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
    *_OF_RERANKING,
    *CONTROLLER_OPTIONS,
)


def used_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide what a run does: those that its method uses, without the seed."""
    unused, method = _WITHOUT_EFFECT, METHODS[config["method"]]
    if (config.get("fairness") or method.fairness or config.get("max_disparity")) is None:
        unused += _OF_THE_FAIRNESS_LOSS
    name = config.get("fairness") or method.fairness
    unused += tuple(option for option, loss in _OF_ONE_FAIRNESS_LOSS.items() if loss != name)
    if method.reranker is None:
        unused += _OF_RERANKING
    if method.engine is None:
        unused += _OF_THE_ADVERSARY
    unused += CONTROLLER_OPTIONS if config.get("max_disparity") is None else ("fairness_weight",)
    model = MODELS.get(config["model"])
    is_by_gradient = isinstance(model, type) and not issubclass(model, ClosedFormScorer | Blend)
    if is_by_gradient and config.get("group_weight") == 1:
        unused += ("group_weight",)  # which these models had no use for at first
    unused += tuple(name for name, before in _LATER_OPTIONS.items() if config.get(name, before) == before)
    return {name: value for name, value in config.items() if name not in unused}


def run_id(log: EventLog, config: RunConfig) -> str:
    """Return the id of a run on a log; runs with the same id give the same file.

    Parameters
    ----------
    log
        The events.
    config
        The run's configuration; what it leaves to the log is resolved first.

    """
    options = resolved(log, config)[0].model_dump()
    reported = {name: options[name] for name in _OF_THE_REPORT if name in options}
    if options["tasks"] == PAPER_TASKS:  # runs that were stored before there were other tasks keep their ids
        del reported["tasks"]
    if not options["explain"]:  # and those from before there was this option theirs
        del reported["explain"]
    return _digest(log, {**used_settings(options), **reported, "seed": config.seed})


def pretraining_id(log: EventLog, config: RunConfig) -> str:
    """Return the id of a run's pre-trained model, which runs with the same id can share."""
    config, periods = resolved(log, config)
    # A model that inherits is pre-trained, then updated with the last of these events.
    outside = set(_OUTSIDE_PRETRAINING) - (set(_OF_UPDATES) if may_inherit(config.model) else set())
    kept = {name: value for name, value in used_settings(config.model_dump()).items() if name not in outside}
    method = METHODS[config.method]
    about = {"seed": config.seed, "fairness": config.fairness_name, "adversary": method.engine is not None}
    # A share, a number and a calendar are three ways to say where D_0 ends.
    return _digest(log, {**kept, **about, "n_events": periods.ends[0]})


def _digest(log: EventLog, settings: Mapping[str, Any]) -> str:
    groups = groups_of(log)
    first = groups.names[:1] if groups.has_advantaged else ()
    about = [log.fingerprint(), groups.attribute, *first, groups.choice, settings]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]
