"""`fairstream recommend`: lists by the model in service, as the HTTP service gives them."""

from __future__ import annotations

from typing import Annotated

import typer

from fairstream.cli.console import check_json, make_console, print_error, print_lines, write_result
from fairstream.cli.options import IdsFile, Json, ListLength, Quiet, UserIds, WorkspaceFolder
from fairstream.cli.workspaces import opened, read_ids
from fairstream.errors import ConfigurationError
from fairstream.text import number


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
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Recommend to users what the HTTP service would: by the model in service and all events stored since.

    Unknown users, and everybody as long as there is no model, get what is popular.
    """
    check_json(json)
    people = read_ids(users, ids)
    if not people:
        raise ConfigurationError("give ids of users, or --ids FILE with ids")
    with opened(folder) as workspace:
        from fairstream.service.api.follower import Follower  # noqa: PLC0415 (an extra)
        from fairstream.service.event_store import EventStore  # noqa: PLC0415
        from fairstream.service.serving import Serving  # noqa: PLC0415

        serving = Serving()
        Follower(workspace, EventStore(workspace), serving).poll()
        problem = serving.status().problem
        answers = {user: serving.recommend(user, k, exclude or (), only or None) for user in people}
    if problem is not None:
        print_error(f"note: {problem}")
    console = make_console(quiet=quiet, json=json)
    for user, answer in answers.items():
        by = "what is popular" if answer.source == "popularity" else f"model {answer.model}"
        pairs = zip(answer.items, answer.scores, strict=True)
        lines = (f"{rank:4}  {item}  {number(score)}" for rank, (item, score) in enumerate(pairs, start=1))
        print_lines(console, f"{user}, by {by}:", *lines)
    documents = [
        {
            "user_id": user,
            "model": answer.model,
            "source": answer.source,
            "items": [
                {"item_id": item, "score": score} for item, score in zip(answer.items, answer.scores, strict=True)
            ],
        }
        for user, answer in answers.items()
    ]
    write_result({"answers": documents}, json)
