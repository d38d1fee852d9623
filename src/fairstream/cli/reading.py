"""How a log is read: the options that every command on data of one's own has."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer


def _reading(help_: str, default: str | bool = False) -> Any:
    return typer.Option(help=help_, show_default=default, rich_help_panel="Reading the data")


Data = Annotated[
    str,
    typer.Argument(
        help="A file (Parquet, CSV, TSV, JSON Lines or Arrow; text also compressed), a folder of parts, a glob in "
        "quotes, an address such as s3://…, a folder with `interactions` and `users` files or one that "
        "`fairstream.ingest` wrote, the raw MovieLens-1M or -100K folder, the raw ModCloth file, or `synthetic`."
    ),
]
Group = Annotated[
    str | None,
    _reading(
        "Column of the users that makes the groups; several (`gender,age`) make intersections.",
        "the only one with two values",
    ),
]
Advantaged = Annotated[
    str | None,
    _reading(
        "Its value for the advantaged group, or `auto`: found from the period before each update.",
        "the larger group",
    ),
]
Users = Annotated[str | None, _reading("Table of the users: a file, folder, glob or address like DATA.")]
Items = Annotated[
    str | None,
    _reading("Table that describes the items (categories, lists, texts), for models that read features."),
]
UserColumn = Annotated[str | None, _reading("Column with the user's id.", "recognised")]
ItemColumn = Annotated[str | None, _reading("Column with the item's id.", "recognised")]
TimeColumn = Annotated[str | None, _reading("Column with the time.", "recognised")]
RatingColumn = Annotated[str | None, _reading("Column with the rating, if any.", "recognised")]
RatingAbove = Annotated[float, _reading("Keep events with a rating above this.", "2.0")]
TimeUnit = Annotated[
    str | None,
    _reading("Unit of times that are numbers since 1970: s, ms, us or ns.", "guessed for calendar periods"),
]

Repeats = Annotated[
    Literal["first", "all"],
    _reading("Of the events of one user with one item: keep the first, or all of them.", "first"),
]
