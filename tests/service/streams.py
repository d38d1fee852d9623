"""The synthetic stream as a service would get it: string ids, real times, a table for each period."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fairstream import synthetic_stream
from fairstream.service import schema
from fairstream.service.event_store import EventStore
from fairstream.service.incoming import batch_from_arrow
from fairstream.service.learning import Learning
from fairstream.service.settings import Gate, LiveConfig, Privacy
from fairstream.service.workspace import Workspace

SMALL: dict[str, Any] = {
    "learning": Learning(
        model="mf",
        method="FADE",
        model_settings={"embedding_dim": 16},
        pretrain_epochs=20,
        update_epochs=5,
        batch_size=256,
    ),
    "gate": Gate(min_tested_users=50, min_group_size=20),
    "privacy": Privacy(epsilon_per_quarter="off"),
}
"""Options of a workspace that learns in a second, of made-up people."""
PERSON = "erika.mustermann@example.org"
"""The busiest user of `named_stream`."""
_DAY = 86_400_000_000


def periods_of(**knobs: Any) -> tuple[list[pa.Table], pa.Table]:
    """The events of D_0, D_1 …, and the users with their groups."""
    stream = synthetic_stream(**{"n_users": 400, "n_items": 150, "n_events": 16_000, "n_periods": 6, **knobs})
    times = stream.events["time"].to_numpy()
    events = pa.table(
        {
            "user_id": pc.binary_join_element_wise("u", pc.cast(stream.events["user_id"], pa.string()), ""),
            "item_id": pc.binary_join_element_wise("i", pc.cast(stream.events["item_id"], pa.string()), ""),
            "time": pa.array((1_700_000_000_000_000 + times * _DAY).astype(np.int64), pa.timestamp("us")),
        }
    )
    people = pa.table(
        {
            "user_id": pc.binary_join_element_wise("u", pc.cast(stream.users["user_id"], pa.string()), ""),
            "value": stream.users["community"],
        }
    )
    parts = times.astype(np.int64)
    return [events.filter(pa.array(parts == t)) for t in range(int(parts.max()) + 1)], people


def named_stream(**knobs: Any) -> tuple[list[pa.Table], pa.Table]:
    """The same, with the busiest user under a name that is found wherever it stands."""
    periods, people = periods_of(**knobs)
    counts = pc.value_counts(pa.concat_tables(periods)["user_id"]).to_pylist()
    busiest = max(counts, key=lambda each: each["counts"])["values"]

    def named(table: pa.Table) -> pa.Table:
        names = pc.if_else(pc.equal(table["user_id"], busiest), PERSON, table["user_id"])
        return table.set_column(table.column_names.index("user_id"), "user_id", names)

    return [named(events) for events in periods], named(people)


def create(folder: Path, config: LiveConfig, database: str | None = None) -> Workspace:
    """Make a workspace whose secret is always the same: it draws whose events are held out, and the noise."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(secrets, "token_bytes", lambda n: bytes(range(n)))
        return Workspace.create(folder, config, database)


def at_random(events: pa.Table, seed: int = 1) -> pa.Table:
    """Events with items drawn at random: nothing is to be learned from them, and the gate rejects the candidate."""
    items = np.random.default_rng(seed).integers(0, 150, len(events))
    return events.set_column(1, "item_id", pa.array([f"i{n}" for n in items]))


def take_in(workspace: Workspace, events: pa.Table) -> None:
    EventStore(workspace).append(batch_of(workspace, events))


def batch_of(workspace: Workspace, events: pa.Table) -> pa.Table:
    return batch_from_arrow(events, workspace.config.limits)


def know(workspace: Workspace, people: pa.Table) -> None:
    workspace.people.put(people)


def values_of(workspace: Workspace) -> pa.Table:
    """user_id and value of everybody who has one."""
    return workspace.people.values()


def n_pending(workspace: Workspace) -> int:
    """How many requests to forget are not completed."""
    with workspace.engine.connect() as connection:
        pending = schema.forgotten.select().where(schema.forgotten.c.completed.is_(None))
        return len(connection.execute(pending).all())
