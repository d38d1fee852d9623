"""What a workspace has released about the gap of the model in service. Nothing here reads people."""

from __future__ import annotations

from sqlalchemy import select

from fairstream.errors import DataError
from fairstream.evaluation import GroupScores
from fairstream.models import Level
from fairstream.pages.audit_subjects import Subject, trend_row
from fairstream.service import schema
from fairstream.service.database import reading
from fairstream.service.event_store import closed_periods
from fairstream.service.gaps import SERVED_TASK, latest_gap, score_in
from fairstream.service.registry import in_service, model, models
from fairstream.service.workspace import Workspace

_UNEXPLAINED = "It is not computed under privacy: it would need the histories of people by group."


def released_subject(workspace: Workspace) -> Subject:
    """What a fairness report needs of a workspace: the released numbers of the model in service."""
    engine, serving, config = workspace.engine, in_service(workspace.engine), workspace.config
    if serving is None:
        raise DataError(f"{workspace.folder} has no model in service yet; `fairstream update` trains one")
    current, candidates, periods = model(engine, serving.model), models(engine), closed_periods(engine)
    released, _ = latest_gap(periods)
    evaluation = (current.about.get("evaluation") if released is None else released.evaluation) or {}
    if not score_in(evaluation):
        raise DataError("the model in service was not tested yet: the report needs the next update")
    score = GroupScores.from_dict(score_in(evaluation))
    metrics, sizes, withheld = evaluation["metrics"], evaluation.get("sizes", {}), evaluation.get("withheld", {})
    metric = next(name for name in metrics if name.startswith("ndcg@"))
    hit = next((name for name in metrics if name.startswith("hit@")), None)
    controls = {each.t: each.about.get("control") for each in candidates if each.state == "promoted"}
    levels = {t: str(Level(**control["level"])) for t, control in controls.items() if control}
    with reading(engine) as connection:
        audit_head = connection.scalar(select(schema.audit.c.hash).order_by(schema.audit.c.seq.desc()).limit(1))
    return Subject(
        "workspace",
        f"the service {workspace.folder.name}",
        metric,
        score,
        config.group,
        {name: sizes.get(name) for name in score.by_group},
        evaluation.get("n_tested_users", 0),
        {
            "model": current.id,
            "in_service_since_period": current.t,
            "made": current.created.isoformat(timespec="seconds"),
            "fairstream": current.about.get("versions", {}).get("fairstream"),
            "data_sha256": current.about.get("data", {}).get("sha256"),
            "audit_head_sha256": audit_head,
            "rejected_candidates": sum(each.state == "rejected" for each in candidates),
            "privacy_epsilon": evaluation.get("epsilon"),
            "decision": current.decision["reason"],
        },
        task=SERVED_TASK,
        excluded=dict.fromkeys(withheld),
        hit=None if hit is None else (hit, metrics[hit]["mean"]),
        n_newcomers=evaluation.get("n_cold_users"),
        why_unexplained=_UNEXPLAINED,
        trend=[
            trend_row(period.t, GroupScores.from_dict(score_in(period.evaluation)), levels.get(period.t))
            for period in periods
            if period.evaluation
        ],
        notes=[f"{name}: {reason}" for name, reason in withheld.items()],
        reproduce=f"fairstream report {workspace.folder} --for audit",
    )
