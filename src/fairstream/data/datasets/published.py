"""What the paper says of its two data sets, to know them when we see them."""

from __future__ import annotations

from dataclasses import dataclass

from fairstream.data.log import EventLog


@dataclass(frozen=True)
class PublishedDataset:
    """The counts by which a data set is recognised, and the paper's share of pre-training data."""

    name: str
    n_events: int
    n_users: int
    n_items: int
    pretrain_ratio: float

    @property
    def counts(self) -> tuple[int, int, int]:
        """Events, users and items."""
        return self.n_events, self.n_users, self.n_items


PUBLISHED = (
    PublishedDataset("movielens-1m", 836_478, 6_039, 3_628, 0.6),
    PublishedDataset("modcloth", 83_147, 37_142, 1_014, 0.7),
)


def recognise(log: EventLog) -> PublishedDataset | None:
    """The paper's data set that this log is, if it is one."""
    counts = (len(log), log.n_users, log.n_items)
    return next((known for known in PUBLISHED if known.counts == counts), None)


def nearest(n_events: int, n_users: int, n_items: int) -> PublishedDataset | None:
    """The paper's data set that this seems meant to be: no count is further than a fifth from the paper's.

    >>> nearest(800_000, 6_000, 3_600).name
    'movielens-1m'
    """
    found = (n_events, n_users, n_items)
    for known in PUBLISHED:
        if all(abs(n - paper) <= paper / 5 for n, paper in zip(found, known.counts, strict=True)):
            return known
    return None


def difference_from_paper(name: str, n_events: int, n_users: int, n_items: int) -> str | None:
    """Both counts in a sentence, where the paper has counts of the data set and they are others."""
    known = next((known for known in PUBLISHED if known.name == name), None)
    found = (n_events, n_users, n_items)
    if known is None or known.counts == found:
        return None
    paper, here = (
        f"{events:,} events, {users:,} users and {items:,} items" for events, users, items in (known.counts, found)
    )
    return f"the paper's {name} has {paper}, but this has {here}: it is not the data of the paper"
