"""The options and arguments that several commands share: one spelling and one meaning each, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

DATA_FOLDER = "FAIRSTREAM_DATA"
"""The variable that names the folder of prepared data sets."""


def from_names(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """Completion by names that are looked up only when the shell asks for them."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.lower().startswith(incomplete.lower())]

    return complete


def _datasets() -> list[str]:
    from fairstream.data.datasets.sources import SOURCES  # noqa: PLC0415 (only the shell asks for it)

    return [*SOURCES, "synthetic"]


# ── what a command prints and writes ─────────────────────────────────────────────────────

Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="Write the result as JSON; - writes it to standard output, and nothing else.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Output = Annotated[Path, typer.Option(metavar="FILE", help="The page: one HTML file that needs no network.")]

# ── events and users ─────────────────────────────────────────────────────────────────────


def _reading(help_: str, default: str | bool = False, **more: Any) -> Any:
    return typer.Option(help=help_, show_default=default, rich_help_panel="Reading the data", **more)


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A data set by name (after `fairstream data get NAME`), `synthetic`, a file (Parquet, CSV, TSV, JSON "
        "Lines or Arrow; text also compressed), a folder of parts, a glob in quotes, an address such as s3://…, a "
        "folder with `interactions` and `users` files or one that `fairstream.ingest` wrote, the raw MovieLens-1M or "
        "-100K folder, or the raw ModCloth file.",
        show_default=False,
        autocompletion=from_names(_datasets),
    ),
]
Group = Annotated[
    str | None,
    _reading(
        "Column of the users that makes the groups; several (`gender,age`) make intersections.",
        "the only one with two values; without any, fairness is off",
    ),
]
Advantaged = Annotated[
    str | None,
    _reading(
        "Value of the advantaged group; `auto`: found from the period before each update.",
        "the larger of two groups, of more none",
    ),
]
Users = Annotated[
    str | None, _reading("Table with the users and their groups; a file, folder, glob or address.", metavar="FILE")
]
Items = Annotated[
    str | None,
    _reading(
        "Table that describes the items (categories, lists, texts), for models that read features.", metavar="FILE"
    ),
]
UserColumn = Annotated[str | None, _reading("Column with the user's id.", "recognised", metavar="COLUMN")]
ItemColumn = Annotated[str | None, _reading("Column with the item's id.", "recognised", metavar="COLUMN")]
TimeColumn = Annotated[str | None, _reading("Column with the time.", "recognised", metavar="COLUMN")]
RatingColumn = Annotated[str | None, _reading("Column with the rating, if any.", "recognised", metavar="COLUMN")]
RatingAbove = Annotated[float, _reading("Only events with a rating above this count.", "2.0")]
TimeUnit = Annotated[
    Literal["s", "ms", "us", "ns"] | None,
    _reading("Unit of times that are numbers since 1970.", "guessed for calendar periods", case_sensitive=False),
]
Repeats = Annotated[
    Literal["first", "all"],
    _reading("Of the events of one user with one item: keep the first, or all of them.", case_sensitive=False),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Folder of the data sets, each in a folder of its name.",
        envvar=DATA_FOLDER,
        show_default="~/.local/share/fairstream",
    ),
]

# ── what is measured ─────────────────────────────────────────────────────────────────────

_METRIC = "Metric, as NAME@K."


def task_option(default: str | bool = True) -> Any:
    """The option `--task`, whatever tasks a command has."""
    return typer.Option(
        help="event: each event of the next period; next: one list for it; remain: one for everything after it.",
        show_default=default,
        case_sensitive=False,
    )


def metric_option(default: str | bool = True) -> Any:
    """The option `--metric` of a command that takes one."""
    return typer.Option(metavar="NAME@K", help=_METRIC, show_default=default)


Metric = Annotated[str | None, metric_option("ndcg, or the first that all runs have")]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME@K",
        help=f"{_METRIC} Repeatable.",
        show_default="ndcg, recall, precision, f1, hit and mrr at --k",
    ),
]
Task = Annotated[Literal["event", "next", "remain"] | None, task_option("remain, or one that all runs have")]
MinGroupSize = Annotated[int, typer.Option(min=1, help="A group with fewer tested users is not compared.")]
ListLength = Annotated[int, typer.Option("--k", min=1, help="Length of the lists.")]

# ── how it is computed ───────────────────────────────────────────────────────────────────

Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Where to compute.", envvar="FAIRSTREAM_DEVICE", case_sensitive=False),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random; the first one with --seeds.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of processes.", envvar="FAIRSTREAM_WORKERS", show_default="one per core, or one per GPU"
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="local|HOST:PORT",
        help="Compute on Ray: on this machine, or on the cluster at this address; needs "
        "`pip install 'fairstream[cluster]'`.",
        show_default=False,
    ),
]
STORE_HELP = "Results folder; an existing one is resumed."
Store = Annotated[Path, typer.Option(metavar="DIR", help=STORE_HELP)]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE|FILE.py",
        help="Module, or .py file, that registers models, losses, metrics and strategies of your own. Repeatable.",
        show_default=False,
    ),
]

# ── a workspace ──────────────────────────────────────────────────────────────────────────

WorkspaceFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The workspace.", show_default=False)]
Every = Annotated[
    str | None,
    typer.Option(
        metavar="SCHEDULE",
        help='When the service updates by itself: "1d", "6h", "30m", "90s" or "10000 events".',
        show_default="as configured, else on request",
    ),
]
UserIds = Annotated[list[str] | None, typer.Argument(metavar="[USER]…", help="Ids of the users.", show_default=False)]
IdsFile = Annotated[
    str | None,
    typer.Option(
        "--ids",
        metavar="FILE|-",
        help="Read the ids from a file, or with - from standard input: one on each line, or a JSON list. Unlike "
        "arguments, these are not visible to other users of the machine.",
        show_default=False,
    ),
]
