"""`fairstream consume`: events from a Kafka topic."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from fairstream.cli.console import check_json, make_console, print_lines, write_result
from fairstream.cli.options import Json, Quiet, WorkspaceFolder
from fairstream.cli.workspaces import opened
from fairstream.errors import ConfigurationError


def consume(
    folder: WorkspaceFolder,
    brokers: Annotated[str, typer.Option(help="HOST:PORT of a broker, several with commas.", show_default=False)],
    topic: Annotated[str, typer.Option(help="The topic.", show_default=False)],
    consumer_group: Annotated[str, typer.Option(help="The consumer group.")] = "fairstream",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option and its value; of librdkafka, such as security.protocol=SSL. Repeatable.",
            show_default=False,
        ),
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Store the events of a topic, each once, until SIGTERM or Ctrl-C.

    A message is a JSON object with user_id, item_id, time and maybe event_id, or a list of such. One that is
    neither is passed over, and a line of JSON on stderr says where it is. Needs `pip install fairstream[kafka]`.
    """
    check_json(json)
    options = dict(_parted(text) for text in settings or [])
    with opened(folder) as workspace:
        from fairstream.service.kafka import KafkaEvents, make_consumer  # noqa: PLC0415 (an extra)

        consumer = make_consumer(brokers, consumer_group, options)
        events = KafkaEvents(workspace)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: events.stop())
        events.run(consumer, topic)
    print_lines(make_console(quiet=quiet, json=json), f"{events.stored}; {events.n_dead:,} messages passed over")
    write_result({**events.stored._asdict(), "n_rejected_messages": events.n_dead}, json)


def _parted(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(f"--set takes NAME=VALUE, got {text!r}")
    return name, value
