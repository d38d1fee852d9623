"""New events in the rows of a recommender that has been fitted."""

from __future__ import annotations

from typing import Any, NamedTuple

from fairstream.data import EventLog, Groups, Rows, SeenItems, Vocabulary
from fairstream.errors import ConfigurationError


class NewEvents(NamedTuple):
    """Events in a recommender's rows, and its vocabularies and groups as they will be with them."""

    users: Rows
    items: Rows
    user_ids: Vocabulary
    item_ids: Vocabulary
    groups: Groups

    @classmethod
    def of(cls, log: EventLog, seen: SeenItems, users: Vocabulary, items: Vocabulary, groups: Groups) -> NewEvents:
        """What of the log has not been seen yet; what is given stays as it is."""
        user_ids, item_ids = users.copy(), items.copy()
        people = user_ids.extend(log.user_ids.ids)
        user_rows, item_rows = people[log.users], item_ids.extend(log.item_ids.ids)[log.items]
        joined = groups.merge(people, len(user_ids), log.groups)
        new = ~seen.has(user_rows, item_rows)
        return cls(user_rows[new], item_rows[new], user_ids, item_ids, joined)


def as_event_log(events: Any, users: Any) -> EventLog | None:
    """The events, if they are a log already."""
    if not isinstance(events, EventLog):
        return None
    if users is not None:
        raise ConfigurationError("an EventLog has its groups already; give users to read_events instead")
    return events
