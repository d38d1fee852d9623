"""`max_disparity` in the service: what is told of the controller, and how it goes on after a candidate was rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from fairstream.recommender import FairRecommender
from fairstream.service.gate import rejects_change
from fairstream.service.registry import rejected_from


def control_step(engine: Engine, parent: str) -> float:
    """How much of the controller's step the next candidate takes: half as much for each one rejected for its change.

    The next candidate descends from the model in service, whose controller knows nothing of the periods
    that were rejected. It measures the same gap again and would take the same step, to be rejected again for
    ever; with ever smaller steps the candidate comes closer to one that passes the gate. A promotion ends that.
    """
    rejected = rejected_from(engine, parent)
    return 0.5 ** sum("control" in row.about and rejects_change(row.decision) for row in rejected)


def reported_control(recommender: FairRecommender, names: Sequence[str], step: float) -> dict[str, Any]:
    """What is stored of a candidate's weights and of the controller that set them; nothing where neither is there.

    Groups that are too small are not measured, so there is no gap of theirs to tell.
    """
    config, weights, update = recommender.config, recommender.state.event_weights, recommender.last_update
    if config.max_disparity is None and not weights:
        return {}
    told: dict[str, Any] = {"event_weights": {name: weights.get(name, 1.0) for name in names}}
    if config.max_disparity is None:
        return told
    control = update.control if update is not None else None
    sentences = [] if control is None else list(control.reasons)
    if control is None:
        sentences = ["no model has been measured yet: the next update will be the first to hold the accepted gap"]
    elif not control.gaps:
        sentences.append("no gap could be measured: too few users of more than one group were tested")
    if update is not None and update.fairness_weight:
        sentences.append(
            f"the model learns that by its fairness loss, whose weight is {update.fairness_weight:.2f} now"
        )
    if control is not None and step < 1:
        sentences.append(
            f"candidates made from the same model were rejected for what they changed: {step:.3g} of the step is taken"
        )
    told["control"] = {
        "max_disparity": config.max_disparity,
        "metric": config.disparity_metric,
        "task": config.disparity_task,
        "gaps": {} if control is None else {name: {"value": g.value, "se": g.se} for name, g in control.gaps.items()},
        "fairness_weight": None if update is None else update.fairness_weight,
        "step": step,
        "sentences": sentences,
    }
    return told


def sentences_of(about: Mapping[str, Any]) -> list[str]:
    """What the controller did and why, of what is stored of a model."""
    return list((about.get("control") or {}).get("sentences", ()))
