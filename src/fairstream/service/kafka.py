"""Events from a Kafka topic, each stored once.

Offsets are committed after the events are on disk, so a consumer that is killed reads some messages
again; an event's id tells that it is there already. An event without an id gets one from its place
in the topic, so that two equal ones are two.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from fairstream.errors import ConfigurationError, DataError
from fairstream.service.database import now
from fairstream.service.event_store import EventStore, Receipt
from fairstream.service.incoming import MADE, Batch, batch_from_json, parse_json
from fairstream.service.workspace import Workspace

_AT_ONCE, _WAIT_SECONDS = 5000, 0.5


def log_line(about: Mapping[str, Any]) -> None:
    """One JSON line to stderr."""
    print(json.dumps({"time": now() / 1e6, **about}), file=sys.stderr, flush=True)


class Letter(NamedTuple):
    """The events of one message, and where it was."""

    topic: str
    partition: int
    offset: int
    events: list[Any]

    def ids(self) -> list[str | None]:
        """The id that its place gives to each event that came without one."""
        names = (f"{self.topic}\n{self.partition}\n{self.offset}\n{n}" for n in range(len(self.events)))
        made = (MADE + hashlib.sha256(name.encode()).hexdigest()[:32] for name in names)
        return [None if _has_id(event) else name for event, name in zip(self.events, made, strict=True)]


def _has_id(event: Any) -> bool:
    return isinstance(event, dict) and event.get("event_id") is not None


class KafkaEvents:
    """Takes the events of a topic into a workspace until it is told to stop."""

    def __init__(self, workspace: Workspace, log: Callable[[Mapping[str, Any]], None] = log_line) -> None:
        self._store, self._limits, self._log = EventStore(workspace), workspace.config.limits, log
        self._stopping = False
        self.stored, self.n_dead = Receipt(0, 0, 0), 0

    def stop(self) -> None:
        """End after the messages at hand."""
        self._stopping = True

    def run(self, consumer: Any, topic: str) -> None:
        """Go on until told to stop; then everything that was taken is on disk, and its offsets committed."""
        try:
            consumer.subscribe([topic])
            while not self._stopping:
                is_full = self._store.n_open() > self._limits.max_open_events
                if is_full:
                    self._log({"event": "paused", "reason": "too many events wait for an update"})
                    self._wait_for_room(consumer)
                self._take(consumer, consumer.consume(_AT_ONCE, _WAIT_SECONDS))
        finally:
            consumer.close()

    def _wait_for_room(self, consumer: Any) -> None:
        """Take nothing, but stay a member of the group."""
        while not self._stopping and self._store.n_open() > self._limits.max_open_events:
            consumer.pause(consumer.assignment())  # each time anew: partitions may have been added
            self._take(consumer, consumer.consume(_AT_ONCE, _WAIT_SECONDS))
        consumer.resume(consumer.assignment())

    def _take(self, consumer: Any, messages: Iterable[Any]) -> None:
        letters, ends = [], {}
        for message in messages:
            if message.error() is not None:
                self._log({"event": "kafka", "reason": message.error().str()})
                continue
            ends[message.topic(), message.partition()] = message.offset() + 1
            letter = self._opened(message)
            if letter is not None:
                letters.append(letter)
        batch = self._batch(letters)
        if batch is not None:
            self.stored = self.stored.plus(self._store.append(batch))
        if ends:
            _commit(consumer, ends, self._log)

    def _opened(self, message: Any) -> Letter | None:
        place = (message.topic(), message.partition(), message.offset())
        try:
            content = parse_json(message.value() or b"", "the message")
        except DataError as error:
            self._bury(Letter(*place, []), error)
            return None
        return Letter(*place, content if isinstance(content, list) else [content])

    def _batch(self, letters: list[Letter]) -> Batch | None:
        """All letters together or, where one of them cannot be taken, all the others."""
        try:
            return _batch_of(letters, self._limits)
        except DataError as error:
            if len(letters) == 1:
                self._bury(letters[0], error)
                return None
        half = len(letters) // 2
        parts = [part for part in (self._batch(letters[:half]), self._batch(letters[half:])) if part is not None]
        return Batch(pa.concat_tables([part.table for part in parts])) if parts else None

    def _bury(self, letter: Letter, error: DataError) -> None:
        """Say where a message is that cannot be taken, and why; not what it holds."""
        self.n_dead += 1
        where = {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset}
        self._log({"event": "dead letter", **where, "reason": str(error), "dead": self.n_dead})


def _batch_of(letters: list[Letter], limits: Any) -> Batch | None:
    events = [event for letter in letters for event in letter.events]
    if not events:
        return None
    table = batch_from_json(events, limits).table
    of_place = pa.array([name for letter in letters for name in letter.ids()], pa.string())
    return Batch(table.set_column(0, "event_id", of_place.fill_null(table["event_id"].combine_chunks())))


def _commit(consumer: Any, ends: Mapping[tuple[str, int], int], log: Callable[[Mapping[str, Any]], None]) -> None:
    from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 (an extra)

    try:
        consumer.commit(offsets=[TopicPartition(*place, end) for place, end in ends.items()], asynchronous=False)
    except KafkaException as error:  # another consumer has the partition now, and will read what is stored already
        log({"event": "kafka", "reason": error.args[0].str()})


def make_consumer(brokers: str, group_id: str, options: Mapping[str, str]) -> Any:
    """A consumer that commits only what it is told to."""
    try:
        from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ConfigurationError(
            "Kafka needs confluent-kafka, which is not installed; pip install 'fairstream[kafka]'"
        ) from None
    ours = {
        "bootstrap.servers": brokers,
        "group.id": group_id,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": 65_536,
    }
    if taken := sorted(options.keys() & ours.keys() - {"queued.max.messages.kbytes"}):
        raise ConfigurationError(f"the option {taken[0]} is set by this command itself")
    try:
        return Consumer({**ours, **options})
    except KafkaException as error:
        raise ConfigurationError(f"Kafka's options cannot be used: {error.args[0].str()}") from None
