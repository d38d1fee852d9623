"""Events, the ids and groups in them, and what is known as of a moment."""

from fairstream.data.datasets import synthetic_stream
from fairstream.data.datasets.synthetic import SyntheticConfig, SyntheticStream
from fairstream.data.events import read_events, read_more_events
from fairstream.data.groups import ADVANTAGED, UNKNOWN, Groups
from fairstream.data.history import History, SeenItems
from fairstream.data.ingest import ingest
from fairstream.data.log import EventLog
from fairstream.data.reading import Columns
from fairstream.data.vocabulary import Rows, Vocabulary, id_column, utf8

__all__ = [
    "ADVANTAGED",
    "UNKNOWN",
    "Columns",
    "EventLog",
    "Groups",
    "History",
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
