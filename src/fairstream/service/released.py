"""What a workspace has released about the gap of the model in service. Nothing here reads people."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from fairstream.errors import DataError
from fairstream.evaluation import GroupScores
from fairstream.pages.audit_subjects import Subject
from fairstream.service import schema
from fairstream.service.database import reading
from fairstream.service.event_store import closed_periods
from fairstream.service.gaps import SERVED_TASK, latest_gap, score_in
from fairstream.service.records import Period
from fairstream.service.registry import in_service, model, models
from fairstream.service.workspace import Workspace

_UNEXPLAINED = "It is not computed under privacy: it would need the histories of people by group."
_LATEST = 60  # periods in which the latest gap is looked for


def released_subject(workspace: Workspace) -> Subject:
    """What a fairness report needs of a workspace: the released numbers of the model in service."""
    serving, config = in_service(workspace.engine), workspace.config
    if serving is None:
        raise DataError(f"{workspace.folder} has no model in service yet; `fairstream update` trains one")
    current, candidates = model(workspace.engine, serving.model), models(workspace.engine)
    released, _ = latest_gap(closed_periods(workspace.engine, limit=_LATEST))
    about = current.about
    evaluation = (about.get("evaluation") if released is None else released.evaluation) or {}
    stored = score_in(evaluation)
    if not stored:
        raise DataError("the model in service was not tested yet: the report needs the next update")
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
        why_unexplained=_UNEXPLAINED,
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
