"""`fairstream recommend`, `forget` and `export`: commands that take ids of users."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from fairstream.cli.console import Json, Output, print_error
from fairstream.cli.options import IdsFile, ListLength, UserIds, WorkspaceFolder
from fairstream.cli.workspaces import opened, who
from fairstream.errors import ConfigurationError
from fairstream.service import forgetting
from fairstream.service.api.follower import Follower
from fairstream.service.event_store import EventStore
from fairstream.service.forgetting import Forgotten
from fairstream.service.forgetting import export as export_person
from fairstream.service.lists import Ask
from fairstream.service.serving import Serving
from fairstream.service.workspace import UpdatingError
from fairstream.text import number

UNKNOWN, PENDING = 4, 5  # exit codes


def recommend(
    folder: WorkspaceFolder,
    users: UserIds = None,
    ids: IdsFile = None,
    k: ListLength = 20,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="ITEM", help="Item that must not be in the lists. Repeatable.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ITEM", help="Only these items may be in the lists. Repeatable.", show_default=False),
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="FILTER",
            help="Only items that pass, such as 'category = \"shoes\" and price < 50'.",
            show_default=False,
        ),
    ] = "",
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time of the requests, for a model that reads times: ISO 8601, or seconds since 1970.",
            show_default="now",
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """Recommend what the HTTP service would: from the model in service and all events stored since.

    Unknown users get popular items, and so does everyone until there is a model.
    """
    people = _read_ids(users, ids)
    if not people:
        raise ConfigurationError("give ids of users, or --ids FILE with ids")
    with opened(folder) as workspace:
        serving = Serving(workspace.config.events)
        Follower(workspace, EventStore(workspace), serving).poll()
        problem = serving.status().problem
        if at is not None:
            serving.current.request_at(_moment(at))
        ask = Ask(k, exclude or (), only or None, where)
        answers = {user: serving.current.recommend(user, ask) for user in people}
    if problem is not None:
        print_error(f"note: {problem}")
    documents = []
    for user, answer in answers.items():
        by = "what is popular" if answer.source == "popularity" else f"model {answer.model}"
        scores = ["" if score is None else f"  {number(score)}" for score in answer.scores]
        lines = (f"{rank:4}  {item}{scores[rank - 1]}" for rank, item in enumerate(answer.items, start=1))
        output.print(f"{user}, by {by}:", *lines)
        items = [{"item_id": item, "score": score} for item, score in zip(answer.items, answer.scores, strict=True)]
        documents.append({"user_id": user, "model": answer.model, "source": answer.source, "items": items})
    output.write({"answers": documents})


def _moment(at: str) -> datetime | float | str:
    """Read a time in ISO 8601 or a number; return other text as it is, for the error."""
    kinds: tuple[Callable[[str], datetime | float], ...] = (datetime.fromisoformat, float)
    for read in kinds:
        with suppress(ValueError):
            return read(at)
    return at


def forget(
    folder: WorkspaceFolder,
    users: UserIds = None,
    ids: IdsFile = None,
    pending: Annotated[
        bool, typer.Option("--pending", help="Complete requests made over HTTP or interrupted.")
    ] = False,
    forgotten: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Who was forgotten since the backup: forget the people of the old workspace, or of its "
            "`forgotten.log`, again.",
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """Remove people from the events, the attributes and every model.

    Removes any number of people in one pass. Events sent again after that are refused; new events make a new person.
    Exits with 4 if an id is unknown, with 5 if models cannot be rewritten yet because an update is running.
    """
    people = _read_ids(users, ids)
    if sum((bool(people), pending, forgotten is not None)) != 1:
        raise ConfigurationError("give ids of users or --ids FILE, or --pending, or --forgotten FILE|DIR")
    unknown = list[str]()
    with opened(folder) as workspace:
        try:
            if people:
                stored = forgetting.known(workspace, people)
                unknown = [user_id for user_id in people if user_id not in stored]
                done = forgetting.forget(workspace, people, by=who())
            elif forgotten is not None:
                done = forgetting.apply_forgotten(workspace, forgetting.forgotten_since(forgotten), by=who())
            else:
                with workspace.updating():
                    done = forgetting.complete_forgetting(workspace)
        except UpdatingError as error:
            print_error(f"the events are removed, attributes and models are not yet: {error}; `--pending` completes it")
            raise typer.Exit(PENDING) from None
        on_postgres = workspace.engine.dialect.name == "postgresql"
    for user_id in unknown:
        print_error(f"{user_id} is unknown: no event, no attribute and no model is theirs")
    output.print(*_sentences(done, on_postgres=on_postgres))
    output.write({**asdict(done), "unknown": unknown})
    if unknown:
        raise typer.Exit(UNKNOWN)


def export(
    folder: WorkspaceFolder,
    user: Annotated[str | None, typer.Argument(metavar="USER", help="Id of the user.", show_default=False)] = None,
    ids: IdsFile = None,
    json: Json = "-",
) -> None:
    """Write everything that the workspace stores about a person, as JSON; exit with 4 if it stores nothing."""
    output = Output(json)
    people = _read_ids([] if user is None else [user], ids)
    if len(people) != 1:
        raise ConfigurationError(f"export takes one id, got {len(people)}; give one, or --ids FILE with one")
    with opened(folder) as workspace:
        document = export_person(workspace, people[0])
    if document is None:
        print_error("this user is unknown: no event, no attribute and no model is theirs")
        raise typer.Exit(UNKNOWN)
    output.write(document)


def _sentences(done: Forgotten, *, on_postgres: bool) -> list[str]:
    if not done.n_users:
        return ["Nothing is pending."]
    lines = [
        f"Forgot {done.n_users} user(s): removed {done.n_events} events and {done.n_attributes} attribute(s), "
        f"rewrote {len(done.models)} model(s).",
        *(f"Model {model} was damaged, so its users are unknown: its files were removed." for model in done.damaged),
    ]
    if on_postgres:
        lines.append("Deleted rows in PostgreSQL's own files, log and backups are the server's to expire.")
    return lines


def _read_ids(users: Sequence[str] | None, file: str | None) -> list[str]:
    """Return the ids given as arguments and those in the file of `--ids`, or on standard input."""
    ids = list(users or [])
    if file is None:
        return ids
    where, text = "standard input" if file == "-" else file, _read_text(file)
    if not text.startswith("["):
        lines = (line.removesuffix("\r") for line in text.split("\n"))  # other line breaks may be part of an id
        return ids + [line for line in lines if line]
    try:
        return ids + TypeAdapter(list[str]).validate_json(text)
    except ValidationError:
        raise ConfigurationError(f"{where} begins with [ and must then be a JSON list of ids in quotes") from None


def _read_text(file: str) -> str:
    """Read a file, or standard input for "-"."""
    try:
        return (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{'standard input' if file == '-' else file} cannot be read: {error}") from None
