"""A workspace with something to see: the synthetic stream, a period a day, up to this moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data import SyntheticStream, synthetic_stream
from fairstream.service.database import now
from fairstream.service.event_store import EventStore
from fairstream.service.incoming import batch_from_arrow, people_from_arrow
from fairstream.service.learning import Learning
from fairstream.service.records import Update
from fairstream.service.settings import LiveConfig, Privacy
from fairstream.service.updates import run
from fairstream.service.workspace import Workspace

STREAM = {"n_users": 2000, "n_events": 120_000, "disparity": 0.8, "drift": 0.02} | dict.fromkeys(
    ("new_user_share", "new_item_share"), 0.1
)
"""Knobs of the stream: a taste that differs by group and stays, so that what changes is the model's doing."""
# Few dimensions: only where a model has too little room for everybody is there anything to share out.
DEMO = LiveConfig(
    group="community",
    advantaged="majority",
    learning=Learning(
        model="mf",
        method="FADE",
        pretrain_epochs=20,
        model_settings={"embedding_dim": 8},
        fairness_weight=1.25,
        temperature=1.0,
    ),
    privacy=Privacy(epsilon_per_quarter="off"),  # nobody's group is behind the numbers of made-up people
)
_FAIR_FROM = 3
_DAY = 86_400_000_000


def fill(workspace: Workspace, say: Callable[[str], None]) -> list[Update]:
    """Take in the stream period by period with an update after each, first without regard to fairness, then with it."""
    stream = synthetic_stream(**STREAM)
    store, learning = EventStore(workspace), workspace.config.learning
    plain = replace(workspace, config=workspace.config.with_options(learning=learning.without_lever()))
    users = pa.table({"user_id": _named("u", stream.users["user_id"]), "value": stream.users["community"]})
    workspace.people.put(people_from_arrow(users))
    outcomes = []
    for t, events in enumerate(_periods(stream)):
        receipt = store.append(batch_from_arrow(events, workspace.config.limits, workspace.config.events))
        how = "without regard to fairness" if t < _FAIR_FROM else f"with {learning.target} and the fairness loss"
        say(f"Period {t}: {receipt.accepted:,} events, learned {how}")
        outcomes.append(run(plain if t < _FAIR_FROM else workspace, by="demonstration"))
        say(f"  {outcomes[-1].state}: {outcomes[-1].reason}")
    return outcomes


def _periods(stream: SyntheticStream) -> Iterator[pa.Table]:
    """The events of D_0, D_1 …: each spans a day, and the last one ends now."""
    times = stream.events["time"].to_numpy()
    end = now() - (stream.config.n_periods + 1) * _DAY
    events = pa.table(
        {
            "user_id": _named("u", stream.events["user_id"]),
            "item_id": _named("i", stream.events["item_id"]),
            "time": pa.array(end + (times * _DAY).astype(np.int64), pa.timestamp("us")),
        }
    )
    period = times.astype(np.int64)
    for t in range(stream.config.n_periods + 1):
        yield events.filter(pa.array(period == t))


def _named(letter: str, numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(letter, numbers.cast(pa.string()), "")
