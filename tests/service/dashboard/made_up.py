"""A workspace with twelve made-up periods, for tests and for looking at the pages."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import Connection, insert

from fairstream.evaluation.by_group import panel_scores
from fairstream.evaluation.resampling import GroupPanel
from fairstream.service.audit import record
from fairstream.service.database import writing
from fairstream.service.gaps import TOO_FEW
from fairstream.service.gate import Check, Decision, finite
from fairstream.service.schema import events, models, periods, service, updates
from fairstream.service.workspace import Workspace

N_PERIODS = 12
GROUPS = ("majority", "minority", "newcomers")
TOO_SMALL = "newcomers"
DAY = 86_400_000_000
BEGINS = 1_762_000_000_000_000
N_WAITING = 37
METRIC = "ndcg@20"


def model_id(t: int) -> str:
    return f"m{t:04d}-{(t * 2654435761) % 0xFFFF:04x}"


def filled(workspace: Workspace, *, rejected: tuple[int, ...] = (5, 9), failed: tuple[int, ...] = (7,)) -> Workspace:
    """Twelve periods: the gap narrows, periods 5 and 9 are rejected, period 7 fails; the last model answers."""
    rng = np.random.default_rng(7)
    with writing(workspace.engine) as connection:
        last, seq = None, 0
        for t in range(N_PERIODS):
            state = "rejected" if t in rejected else "failed" if t in failed else "promoted"
            n_events = 4000 + int(rng.integers(0, 1500))
            _period(connection, rng, t, seq, n_events)
            seq += n_events
            _model(connection, rng, t, last, state)
            add_update(connection, t, state=state, model=model_id(t))
            last = model_id(t) if state == "promoted" else last
        assert last is not None
        connection.execute(insert(service).values(id=1, model=last, since=BEGINS + N_PERIODS * DAY))
        connection.execute(insert(events), [_event(seq + 1 + i) for i in range(N_WAITING)])
    return workspace


def add_model(connection: Connection, id_: str, t: int, **changes: Any) -> None:
    row = {
        "id": id_,
        "t": t,
        "parent": None,
        "state": "rejected",
        "created": BEGINS + t * DAY,
        "folder": id_,
        "training_seconds": 1.5,
        "decision": {"promote": False, "reason": "nothing", "checks": []},
        "about": {},
    }
    connection.execute(insert(models).values(**{**row, **changes}))


def add_period(connection: Connection, t: int, **changes: Any) -> None:
    row = {
        "t": t,
        "first_seq": 10 * t + 1,
        "last_seq": 10 * t + 10,
        "closed": BEGINS + t * DAY,
        "n_events": 10,
        "n_users": 5,
        "n_late": 1,
        "latest_time": BEGINS + t * DAY,
        "held_out": 0.5,
        "max_of_user": 10,
        "evaluation": None,
    }
    connection.execute(insert(periods).values(**{**row, **changes}))


def add_update(connection: Connection, t: int, **changes: Any) -> None:
    began = BEGINS + (t + 1) * DAY
    row = {
        "id": f"update{t}",
        "state": "promoted",
        "reason": f"reason of update {t}",
        "requested": began,
        "requested_by": "schedule",
        "started": began + 1_000_000,
        "finished": began + 61_000_000,
        "last_seq": 0,
        "t": t,
        "model": None,
    }
    row |= changes
    connection.execute(insert(updates).values(**{"number": row["requested"], **row}))


def scores(rng: np.random.Generator, gap: float, level: float, n: int = 240) -> dict[str, Any]:
    """Real scores of made-up users, the group that is too small already left out."""
    codes = np.array([0] * (2 * n // 3) + [1] * (n // 3), dtype=np.int16)
    means = np.where(codes == 0, level + gap / 3, level - 2 * gap / 3)
    values = np.clip(rng.normal(means, 0.09), 0, 1)[:, None, None]
    (found,) = panel_scores(GroupPanel(values, codes, n_groups=2), GROUPS[:2], rng, n_resamples=20)
    document = found.to_dict()
    document["by_group"][TOO_SMALL] = None
    largest = document["largest_gap"]
    own = document["gaps"][largest["group"]]  # released gaps have an interval of their size
    largest["interval"] = own["interval"] if own["value"] >= 0 else [-end for end in reversed(own["interval"])]
    return document


def evaluated(scores: dict[str, Any]) -> dict[str, Any]:
    """What an update stores of these scores."""
    means = {name: mean for name, mean in scores["by_group"].items() if mean is not None}
    return {
        "metrics": {METRIC: scores},
        "levels": {name: [mean, [mean - 0.02, mean + 0.02]] for name, mean in means.items()},
        "withheld": {name: TOO_FEW for name in scores["by_group"] if name not in means},
        "epsilon": "off",
    }


def _period(connection: Connection, rng: np.random.Generator, t: int, seq: int, n_events: int) -> None:
    evaluation = None
    if t:
        found = scores(rng, 0.12 / (1 + 0.45 * t), 0.16 + 0.08 * t / (t + 3))
        n_cold = int(40 / (1 + 0.3 * t))
        evaluation = evaluated(found) | {"n_tested_users": 240, "n_cold_users": n_cold}
    add_period(
        connection,
        t,
        first_seq=seq + 1,
        last_seq=seq + n_events,
        closed=BEGINS + (t + 1) * DAY,
        latest_time=BEGINS + int((t + 0.8) * DAY),
        n_events=n_events,
        n_users=900 + 13 * t,
        n_late=int(rng.integers(0, 90)) if t else 0,
        held_out=0.5,
        max_of_user=n_events,
        evaluation=evaluation,
    )


def _model(connection: Connection, rng: np.random.Generator, t: int, parent: str | None, state: str) -> None:
    level = 0.18 + 0.08 * t / (t + 3)
    after, before = scores(rng, 0.1 / (1 + 0.45 * t), level), scores(rng, 0.11 / (1 + 0.45 * t), level - 0.01)
    failed, is_rejected = state == "failed", state == "rejected"
    decision = Decision(
        (
            finite("learning left numbers in user.weight that are not finite" if failed else None),
            Check(
                "drift",
                True,
                "the model in service does for all users as it did (0.2213 after 0.2251)",
                0.017,
                None,
                0.3,
            ),
            Check("performance", True, "NDCG@20 for all users rises by 4.6%", 0.0461, (-0.009, 0.097), 0.1),
            Check("performance", True, "NDCG@20 for minority rises by 4.1%", 0.041, (-0.04, 0.12), 0.1, "minority"),
            Check(
                "disparity",
                not is_rejected,
                "the largest gap between a group and the rest rises by 0.0713 to 0.1021 (limit +0.05)"
                if is_rejected
                else "the largest gap between a group and the rest falls by 0.0051 to 0.0257 (−0.0130 to +0.0029, "
                "limit +0.05)",
                0.0713 if is_rejected else -0.0051,
                (0.055, 0.088) if is_rejected else (-0.013, 0.0029),
                0.05,
            ),
        )
    )
    about = {
        "configuration": {"group": "community", "learning": {"fairness_weight": 1.0, "seed": 0}, "gate": {"k": 20}},
        "data": {"sha256": f"{t:064x}", "n_events": 4000 + t, "n_users": 900 + 13 * t, "n_items": 600 + 9 * t}
        | ({"n_new_items": 40 - 2 * t} if t else {}),
        "versions": {"fairstream": "0.6.0", "torch": "2.6.0"},
        "evaluation": evaluated(after) if not failed else None,
        "before": evaluated(before) if parent and not failed else None,
        "n_learned": 3900,
    }
    add_model(
        connection,
        model_id(t),
        t,
        parent=parent,
        state=state,
        created=BEGINS + (t + 1) * DAY + 60_000_000,
        folder=model_id(t),
        training_seconds=2.5,
        decision=decision.to_dict(),
        about=about,
    )
    entry = {
        "id": model_id(t),
        "t": t,
        "parent": parent,
        "state": state,
        "decision": decision.to_dict(),
        "about": about,
    }
    record(connection, "update", entry)


def _event(seq: int) -> dict[str, Any]:
    time = BEGINS + N_PERIODS * DAY + seq
    return {"seq": seq, "event_id": f"e{seq}", "user_id": f"u{seq}", "item_id": "i1", "time": time}
