"""Events, the ids and groups in them, and what is known as of a moment."""

from fairstream.data.datasets import synthetic_stream
from fairstream.data.datasets.synthetic import SyntheticConfig, SyntheticStream
from fairstream.data.groups import ADVANTAGED, UNKNOWN, Groups
from fairstream.data.history import History
from fairstream.data.ingest import ingest
from fairstream.data.leakcheck import LeakReport, SplitPart, TimeLeak, leakcheck
from fairstream.data.log import EventLog
from fairstream.data.readers import read_events, read_more_events
from fairstream.data.seen import SeenItems
from fairstream.data.tables import Columns
from fairstream.data.vocabulary import Rows, Vocabulary, id_column, utf8

__all__ = [
    "ADVANTAGED",
    "UNKNOWN",
    "Columns",
    "EventLog",
    "Groups",
    "History",
    "LeakReport",
    "Rows",
    "SeenItems",
    "SplitPart",
    "SyntheticConfig",
    "SyntheticStream",
    "TimeLeak",
    "Vocabulary",
    "id_column",
    "ingest",
    "leakcheck",
    "read_events",
    "read_more_events",
    "synthetic_stream",
    "utf8",
]
