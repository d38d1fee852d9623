"""A workspace with something to see: the synthetic stream, a period a day, up to this moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.events import SyntheticStream, synthetic_stream
from fairstream.live.database import now
from fairstream.live.event_store import EventStore
from fairstream.live.incoming import batch_from_arrow
from fairstream.live.people import people_from_arrow, put_people
from fairstream.live.settings import Learning, LiveConfig
from fairstream.live.updater import Outcome, update
from fairstream.live.workspace import Workspace

_DAY = 86_400_000_000
_STREAM = {"n_periods": 12, "pretrain_ratio": 0.3, "disparity": 1.0, "drift": 0.1, "seed": 2}
_FAIR_FROM, _FAIRNESS_WEIGHT = 3, 3.0
DEMO = LiveConfig(group="community", advantaged="majority", learning=Learning(fairness_weight=0.0))
"""The configuration that the demonstration begins with: nothing is done about fairness yet."""


def fill(workspace: Workspace, say: Callable[[str], None]) -> list[Outcome]:
    """Take in the stream period by period, with an update after each; after some, switch the fairness loss on."""
    stream = synthetic_stream(**_STREAM)
    store = EventStore(workspace)
    put_people(workspace.engine, _people(stream))
    outcomes = []
    for t, events in enumerate(_periods(stream)):
        receipt = store.append(batch_from_arrow(events, workspace.config.limits))
        say(f"period {t}: {receipt.accepted:,} events")
        if t == _FAIR_FROM:
            say(f"from now on with the fairness loss: fairness_weight = {_FAIRNESS_WEIGHT:g}")
            workspace = _with_fairness(workspace)
        outcomes.append(update(workspace, say))
    return outcomes


def _with_fairness(workspace: Workspace) -> Workspace:
    """What an engineer would do: change one number in the workspace's file."""
    learning = workspace.config.learning.replaced(fairness_weight=_FAIRNESS_WEIGHT)
    config = workspace.config.replaced(learning=learning)
    config.write(workspace.folder)
    return replace(workspace, config=config)


def _people(stream: SyntheticStream) -> pa.Table:
    users = stream.users
    return people_from_arrow(pa.table({"user_id": _named("u", users["user_id"]), "value": users["community"]}))


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
