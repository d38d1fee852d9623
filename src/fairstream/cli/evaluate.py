"""`fairstream evaluate` and `fairstream leakcheck`: lists of any recommender, and any train/test split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fairstream.cli.console import Output
from fairstream.cli.options import (
    Advantaged,
    Group,
    ItemColumn,
    ListLength,
    Metrics,
    MinGroupSize,
    TimeColumn,
    UserColumn,
    Users,
)
from fairstream.errors import ConfigurationError
from fairstream.evaluation import Evaluation, RecommendationComparison, evaluate_recommendations
from fairstream.tools import leakcheck as checker


def evaluate(
    lists: Annotated[
        Path, typer.Argument(metavar="LISTS", help="File with the lists: a user, an item, and a rank or score column.")
    ],
    truth: Annotated[
        Path,
        typer.Argument(metavar="TRUTH", help="File with what the users did afterwards: a user and an item column."),
    ],
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LISTS", help="Lists of another system for the same users. Repeatable.", show_default=False
        ),
    ] = None,
    users: Users = None,
    group: Group = None,
    advantaged: Advantaged = None,
    k: ListLength = 20,
    metric: Metrics = None,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    rank_column: Annotated[
        str | None, typer.Option(help="Column with the rank in the list.", show_default="recognised")
    ] = None,
    score_column: Annotated[
        str | None, typer.Option(help="Column with the score, where there is no rank.", show_default="recognised")
    ] = None,
    rating_above: Annotated[
        float | None,
        typer.Option(
            help="Only events with a rating above this count.",
            show_default="all count",
            rich_help_panel="Reading the data",
        ),
    ] = None,
    missing: Annotated[
        Literal["zero", "exclude"],
        typer.Option(help="Users of TRUTH without a list: an empty one, or left out.", case_sensitive=False),
    ] = "zero",
    min_group_size: MinGroupSize = 20,
    *,
    output: Output,
) -> None:
    """Evaluate lists of any recommender: quality overall and by group, with intervals and tests.

    With `--compare`, systems are compared in pairs on the same users. Nothing is trained.
    """
    result: Evaluation | RecommendationComparison = evaluate_recommendations(
        lists if not compare else by_name([lists, *compare]),
        truth,
        users=users,
        group=group,
        advantaged=advantaged,
        k=k,
        metrics=metric or None,
        user_column=user_column,
        item_column=item_column,
        rank_column=rank_column,
        score_column=score_column,
        rating_above=rating_above,
        missing=missing,
        min_group_size=min_group_size,
    )
    output.print(str(result))
    output.write(result.to_dict())


def by_name(files: list[Path]) -> dict[str, Path]:
    """Return the files by name, or by path where two have the same name."""
    stems = [file.stem for file in files]
    names = stems if len(set(stems)) == len(stems) else [str(file) for file in files]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"each system needs its own file, got one twice: {', '.join(names)}")
    return dict(zip(names, files, strict=True))


def leakcheck(
    train: Annotated[
        Path,
        typer.Argument(
            metavar="TRAIN", help="File with the training events, or a folder with the files `train` and `test`."
        ),
    ],
    test: Annotated[
        Path | None, typer.Argument(metavar="TEST", help="File with the test events.", show_default=False)
    ] = None,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    *,
    output: Output,
) -> None:
    """Show what leaks across time in a train/test split; nothing is trained.

    Counts the training events that are later than test events (of anybody, of the same user, of the same item), the
    users and items known from later events only, and the test events that are in the training file, too.
    """
    report = checker.leakcheck(train, test, user_column=user_column, item_column=item_column, time_column=time_column)
    output.print(str(report))
    output.write(report.to_dict())
