"""`fairstream consume`: events from a Kafka topic."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from fairstream.cli.workspaces import WorkspaceFolder, opened
from fairstream.errors import ConfigurationError


def consume(
    folder: WorkspaceFolder,
    brokers: Annotated[str, typer.Option(help="HOST:PORT of a broker, several with commas.", show_default=False)],
    topic: Annotated[str, typer.Option(help="The topic.", show_default=False)],
    group_id: Annotated[str, typer.Option(help="The consumer group.")] = "fairstream",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any option of librdkafka, such as security.protocol=SSL."),
    ] = None,
) -> None:
    """Store the events of a topic, each once, until SIGTERM or Ctrl-C.

    A message is a JSON object with user_id, item_id, time and maybe event_id, or a list of such. One that is
    neither is passed over, and a line of JSON on stderr says where it is. Needs `pip install fairstream[kafka]`.
    """
    options = dict(_parted(text) for text in option or [])
    with opened(folder) as workspace:
        from fairstream.service.kafka import KafkaEvents, make_consumer  # noqa: PLC0415 (an extra)

        consumer = make_consumer(brokers, group_id, options)
        events = KafkaEvents(workspace)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: events.stop())
        events.run(consumer, topic)
        typer.echo(f"{events.stored}; {events.n_dead:,} messages passed over")


def _parted(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(f"an option of Kafka must be NAME=VALUE, got {text!r}")
    return name, value
