"""Who, what, when, and which group."""

from fairstream.events.columns import Columns
from fairstream.events.datasets import synthetic_stream
from fairstream.events.datasets.synthetic import SyntheticConfig, SyntheticStream
from fairstream.events.groups import ADVANTAGED, UNKNOWN, Groups
from fairstream.events.id_index import utf8
from fairstream.events.ingest import ingest
from fairstream.events.knowledge import Knowledge
from fairstream.events.log import EventLog
from fairstream.events.readers import read_events, read_more_events
from fairstream.events.seen import SeenItems
from fairstream.events.vocabulary import Rows, Vocabulary, id_column

__all__ = [
    "ADVANTAGED",
    "UNKNOWN",
    "Columns",
    "EventLog",
    "Groups",
    "Knowledge",
    "Rows",
    "SeenItems",
    "SyntheticConfig",
    "SyntheticStream",
    "Vocabulary",
    "id_column",
    "ingest",
    "read_events",
    "read_more_events",
    "synthetic_stream",
    "utf8",
]
