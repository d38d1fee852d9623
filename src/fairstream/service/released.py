"""What a workspace has released about the gap of the model in service. Nothing here reads people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from fairstream.errors import DataError
from fairstream.evaluation import Estimate, GapExplanation, GroupOutlook, GroupScores
from fairstream.pages.audit_subjects import Subject
from fairstream.service import schema
from fairstream.service.database import reading
from fairstream.service.event_store import closed_periods
from fairstream.service.gaps import SERVED_TASK, score_in
from fairstream.service.records import Model, Period
from fairstream.service.registry import in_service, model, models
from fairstream.service.workspace import Workspace

COMPOSITION = "The composition is not computed under privacy: it would need the histories of people by group."


def serving_model(workspace: Workspace) -> Model:
    """Return the model in service; DataError before the first one."""
    current = in_service(workspace.engine)
    if current is None:
        raise DataError(f"{workspace.folder} has no model in service yet; `fairstream update` trains one")
    return model(workspace.engine, current.model)


def explain_released(about: Mapping[str, Any], attribute: str) -> GapExplanation:
    """Explain the gap of a model by its released numbers (`Model.about`): level, gap and regrets.

    Raises DataError if they have no gap, or no regrets, as those of older models.
    """
    evaluation, control = about.get("evaluation") or {}, about.get("control") or {}
    score = GroupScores.from_dict(score_in(evaluation))
    gap, behind = score.gap, score.furthest_behind_group
    if gap is None or behind is None:
        raise DataError("the model in service has released no gap: too few people of two groups were tested")
    regrets: Mapping[str, Any] = control.get("regret") or {}
    means = {name: mean for name, mean in score.by_group.items() if mean is not None and name in regrets}
    if behind not in means or len(means) < 2:
        raise DataError(
            "the model in service has released no regret of two groups: it was made without a target, by an older "
            "version, or with too few people; the next update with a target will"
        )
    groups = {}
    for name in sorted(means, key=lambda name: name != behind):
        value, interval = regrets[name]
        regret = Estimate(float(value), None if interval is None else (float(interval[0]), float(interval[1])))
        attainable = means[name] / max(1e-12, 1 - regret.value)
        n_users = int((evaluation.get("sizes") or {}).get(name, 0))
        groups[name] = GroupOutlook(n_users, means[name], attainable, regret)
    sizes = {name: max(1, group.n_users) for name, group in groups.items() if name != behind}
    gains = {name: group.attainable - group.served for name, group in groups.items()}
    avoidable = gains[behind] - sum(n * gains[name] for name, n in sizes.items()) / sum(sizes.values())
    epsilon = evaluation.get("epsilon")
    return GapExplanation(
        metric=next(name for name in evaluation["metrics"] if name.startswith("ndcg@")),
        behind=behind,
        rest=next(iter(sizes)) if len(sizes) == 1 else "the rest",
        gap=gap,
        inherent=gap.value - avoidable,
        avoidable=Estimate(avoidable),
        groups=groups,
        attribute=attribute,
        task=str(control.get("task") or ""),
        level=_level(control.get("level")),
        notes=(
            *([str(control["sentence"])] if control.get("sentence") else []),
            f"All numbers are released ones, rounded{'' if epsilon in (None, 'off') else ' and with privacy noise'}.",
            COMPOSITION,
        ),
    )


def released_subject(workspace: Workspace) -> Subject:
    """What a fairness report needs of a workspace: the released numbers of the model in service."""
    current, config = serving_model(workspace), workspace.config
    about, candidates = current.about, models(workspace.engine)
    evaluation = about.get("evaluation") or {}
    stored = score_in(evaluation)
    if not stored:
        raise DataError("the model in service was not tested yet: the report needs the next update")
    try:
        explanation, why = explain_released(about, config.group), ""
    except DataError as error:
        explanation, why = None, str(error)
    metrics, sizes = evaluation.get("metrics") or {}, evaluation.get("sizes") or {}
    metric = next(name for name in metrics if name.startswith("ndcg@"))
    hit = next((name for name in metrics if name.startswith("hit@") and metrics[name].get("mean") is not None), None)
    withheld = evaluation.get("withheld") or {}
    levels = {each.t: (each.about.get("control") or {}).get("level") for each in candidates if each.state == "promoted"}
    closed = sorted(closed_periods(workspace.engine), key=lambda period: period.t)
    return Subject(
        "workspace",
        f"the service {workspace.folder.name}",
        metric,
        GroupScores.from_dict(stored),
        config.group,
        {name: sizes.get(name) for name in stored.get("by_group") or {}},
        int(evaluation.get("n_tested_users") or 0),
        {
            "model": current.id,
            "in_service_since_period": current.t,
            "made": current.created.isoformat(timespec="seconds"),
            "fairstream": (about.get("versions") or {}).get("fairstream"),
            "data_sha256": (about.get("data") or {}).get("sha256"),
            "audit_head_sha256": _audit_head(workspace),
            "rejected_candidates": sum(each.state == "rejected" for each in candidates),
            "privacy_epsilon": evaluation.get("epsilon"),
            "decision": (current.decision or {}).get("reason"),
        },
        task=SERVED_TASK,
        excluded=dict.fromkeys(withheld),
        hit=None if hit is None else (hit, metrics[hit]["mean"]),
        n_newcomers=evaluation.get("n_cold_users"),
        explanation=explanation,
        why_unexplained=why,
        trend=[_row(period, _level(levels.get(period.t))) for period in closed if period.evaluation],
        notes=[f"{name}: {reason}" for name, reason in withheld.items()],
        reproduce=f"fairstream report {workspace.folder} --for audit",
    )


def _audit_head(workspace: Workspace) -> str | None:
    """The hash of the last entry of the audit record."""
    head = select(schema.audit.c.hash).order_by(schema.audit.c.seq.desc()).limit(1)
    with reading(workspace.engine) as connection:
        return connection.scalar(head)


def _row(period: Period, level: str | None) -> dict[str, Any]:
    """A period of the trend, as the model in service did on it."""
    score = GroupScores.from_dict(score_in(period.evaluation))
    gap = score.gap
    return {
        "t": period.t,
        "mean": score.mean,
        "by_group": dict(score.by_group),
        "behind": score.furthest_behind_group,
        "gap": None if gap is None else gap.value,
        "p_value": None if gap is None else gap.p_value,
        "level": level,
    }


def _level(level: Any) -> str | None:
    return level if level is None or isinstance(level, str) else " × ".join(str(part) for part in level)
