"""What the paper says of its two data sets, to know them when we see them."""

from __future__ import annotations

from dataclasses import dataclass

from fairstream.events.log import EventLog


@dataclass(frozen=True)
class PublishedDataset:
    """The counts by which a data set is recognised, and the paper's share of pre-training data."""

    name: str
    n_events: int
    n_users: int
    n_items: int
    pretrain_ratio: float


PUBLISHED = (
    PublishedDataset("movielens-1m", 836_478, 6_039, 3_628, 0.6),
    PublishedDataset("modcloth", 83_147, 37_142, 1_014, 0.7),
)


def recognise(log: EventLog) -> PublishedDataset | None:
    """The paper's data set that this log is, if it is one."""
    counts = (len(log), log.n_users, log.n_items)
    return next((known for known in PUBLISHED if (known.n_events, known.n_users, known.n_items) == counts), None)
