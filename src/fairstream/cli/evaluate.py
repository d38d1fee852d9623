"""`fairstream evaluate`: lists that any recommender has made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fairstream.cli.console import check_json, make_console, print_lines, write_result
from fairstream.cli.options import (
    Group,
    ItemColumn,
    Json,
    ListLength,
    Metrics,
    MinGroupSize,
    Quiet,
    UserColumn,
    Users,
)
from fairstream.errors import ConfigurationError
from fairstream.evaluation import RecommendationComparison, RecommendationEvaluation, evaluate_recommendations


def evaluate(
    lists: Annotated[Path, typer.Argument(help="File with the lists: a user, an item, and a rank or a score column.")],
    truth: Annotated[Path, typer.Argument(help="File with what the users did afterwards: a user and an item column.")],
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LISTS", help="Lists of another system for the same users. Repeatable.", show_default=False
        ),
    ] = None,
    users: Users = None,
    group: Group = None,
    advantaged: Annotated[
        str | None,
        typer.Option(
            help="Value of the advantaged group.",
            show_default="the larger of two groups, of more none",
            rich_help_panel="Reading the data",
        ),
    ] = None,
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
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate lists of any recommender: quality overall and by group, with intervals and tests.

    With `--compare`, systems are compared in pairs on the same users. Nothing is trained.
    """
    check_json(json)
    result: RecommendationEvaluation | RecommendationComparison = evaluate_recommendations(
        lists if not compare else _by_name([lists, *compare]),
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
    print_lines(make_console(quiet=quiet, json=json), str(result))
    write_result(result.to_dict(), json)


def _by_name(files: list[Path]) -> dict[str, Path]:
    """The files by their names, or by their paths where names are the same."""
    stems = [file.stem for file in files]
    names = stems if len(set(stems)) == len(stems) else [str(file) for file in files]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"each system has a file of its own, but {', '.join(names)} has one twice")
    return dict(zip(names, files, strict=True))
