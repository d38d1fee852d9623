"""`fairstream leakcheck`: what leaks across time in a train/test split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairstream import data
from fairstream.cli.console import check_json, make_console, print_lines, write_result
from fairstream.cli.options import ItemColumn, Json, Quiet, TimeColumn, UserColumn


def leakcheck(
    train: Annotated[
        Path,
        typer.Argument(help="File with the training events, or a folder with the files `train` and `test`."),
    ],
    test: Annotated[Path | None, typer.Argument(help="File with the test events.", show_default=False)] = None,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Show what leaks across time in a train/test split; nothing is trained.

    Counts the training events that are later than test events (of anybody, of the same user, of the same item), the
    users and items that only later events tell of, and test events that are in the training file too.
    """
    check_json(json)
    report = data.leakcheck(train, test, user_column=user_column, item_column=item_column, time_column=time_column)
    print_lines(make_console(quiet=quiet, json=json), str(report))
    write_result(report.to_dict(), json)
