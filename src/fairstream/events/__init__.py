"""Who, what, when, and which group."""

from fairstream.events.datasets import synthetic_stream
from fairstream.events.datasets.synthetic import SyntheticConfig, SyntheticStream
from fairstream.events.groups import ADVANTAGED, DISADVANTAGED, UNKNOWN, Groups, encode_groups
from fairstream.events.log import EventLog, first_of_each_pair
from fairstream.events.readers import group_values, read_events
from fairstream.events.seen import SeenItems
from fairstream.events.tables import to_table
from fairstream.events.vocabulary import Rows, Vocabulary

__all__ = [
    "ADVANTAGED",
    "DISADVANTAGED",
    "UNKNOWN",
    "EventLog",
    "Groups",
    "Rows",
    "SeenItems",
    "SyntheticConfig",
    "SyntheticStream",
    "Vocabulary",
    "encode_groups",
    "first_of_each_pair",
    "group_values",
    "read_events",
    "synthetic_stream",
    "to_table",
]
