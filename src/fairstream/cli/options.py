"""The options and arguments that several commands share: one spelling and one meaning each, without PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fairstream.errors import ConfigurationError

Page = Annotated[Path, typer.Option("--output", metavar="FILE", help="The page: one HTML file that needs no network.")]
DATA_FOLDER = "FAIRSTREAM_DATA"  # the variable that names the folder of prepared data sets


def is_workspace(path: Path) -> bool:
    """Whether a path is the folder of a workspace, without importing the service."""
    return (path / "fairstream.toml").is_file()


def from_names(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """Return a completion by names, which it looks up when the shell asks for them."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.lower().startswith(incomplete.lower())]

    return complete


def _datasets() -> list[str]:
    from fairstream.data.datasets.sources import SOURCES  # noqa: PLC0415 (`--version` does not wait for it)

    return [*SOURCES, "synthetic"]


class CommandGroup(typer.Typer):
    """Commands whose parameters may be groups of options: a dataclass with an option for each field."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown", **settings)

    def command(self, *names: Any, **settings: Any) -> Callable[[Any], Any]:
        add = super().command(*names, **settings)
        return lambda function: add(expand_groups(function))


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one parameter for each field of its groups of options."""
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: each.annotation for name, each in own.items() if is_dataclass(each.annotation)}
    options = {name: inspect.signature(kind, eval_str=True).parameters.values() for name, kind in groups.items()}
    parameters = [parameter for name, each in own.items() for parameter in options.get(name, [each])]

    def call(**values: Any) -> None:
        built = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**values, **built)

    return with_parameters(command, parameters, call)


def with_parameters(
    command: Callable[..., None], parameters: Sequence[inspect.Parameter], call: Callable[..., None]
) -> Callable[..., None]:
    """Return `call` with a command's name and help, and with these parameters in its signature, which Typer reads."""
    keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    call.__name__, call.__doc__, call.__annotations__ = command.__name__, command.__doc__, {}
    call.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    return call


def _reading(help_: str, default: str | bool = False, **more: Any) -> Any:
    return typer.Option(help=help_, show_default=default, rich_help_panel="Reading the data", **more)


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A data set by name (after `fairstream data get NAME`), `synthetic`, a file (Parquet, CSV, TSV, JSON "
        "Lines or Arrow; text also compressed), a folder of parts, a glob in quotes, an address such as s3://…, a "
        "folder with `interactions` and `users` files or one that `fairstream data ingest` wrote, the raw "
        "MovieLens-1M or -100K folder, or the raw ModCloth file.",
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
Advantaged = Annotated[str | None, _reading("Value of the advantaged group.", "the larger of two groups, of more none")]
Users = Annotated[
    str | None, _reading("Table with the users and their groups; a file, folder, glob or address.", metavar="FILE")
]
UserColumn = Annotated[str | None, _reading("Column with the user's id.", "recognised", metavar="COLUMN")]
ItemColumn = Annotated[str | None, _reading("Column with the item's id.", "recognised", metavar="COLUMN")]
TimeColumn = Annotated[str | None, _reading("Column with the time.", "recognised", metavar="COLUMN")]


@dataclass(frozen=True)
class ReadOptions:
    """How to read DATA: the keywords of `read_events`."""

    group: Group = None
    advantaged: Advantaged = None
    users: Users = None
    items: Annotated[
        str | None,
        _reading(
            "Table that describes the items (categories, lists, texts), for models that read features.", metavar="FILE"
        ),
    ] = None
    user_column: UserColumn = None
    item_column: ItemColumn = None
    time_column: TimeColumn = None
    rating_column: Annotated[
        str | None, _reading("Column with the rating, if any.", "recognised", metavar="COLUMN")
    ] = None
    rating_above: Annotated[float, _reading("Only events with a rating above this count.", "2.0")] = 2.0
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None,
        _reading("Unit of times that are numbers since 1970.", "guessed for calendar periods", case_sensitive=False),
    ] = None
    repeats: Annotated[
        Literal["first", "all"],
        _reading("Of the events of one user with one item: keep the first, or all.", "first", case_sensitive=False),
    ] = "first"


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

_METRIC = "Metric, as NAME@K."


def task_option(default: str | bool = True, *, more: str = "") -> Any:
    """The option `--task`, with the help of the tasks that all commands have, and `more`."""
    words = (
        "event: a list at each event of the next period; moment: one for simultaneous events; next: one for the period"
    )
    return typer.Option(help=f"{words}{more}.", show_default=default, case_sensitive=False)


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
Task = Annotated[
    Literal["event", "moment", "next", "remain"] | None,
    task_option("remain, or one that all runs have", more="; remain: one for everything that follows"),
]
MinGroupSize = Annotated[int, typer.Option(min=1, help="A group with fewer tested users is not compared.")]
ListLength = Annotated[int, typer.Option("--k", min=1, help="Length of the lists.")]

Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Where to compute.", envvar="FAIRSTREAM_DEVICE", case_sensitive=False),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds; the first is --seed.")]
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
        help="Module, or .py file, that registers custom models, losses, metrics and strategies. Repeatable.",
        show_default=False,
    ),
]

WorkspaceFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The workspace.", show_default=False)]
Every = Annotated[
    str | None,
    typer.Option(
        metavar="SCHEDULE",
        help='When the service updates by itself: "1d", "1d at 03:00" (UTC), "6h", "30m", "90s" or "10000 events".',
        show_default="as configured, else on request",
    ),
]
UserIds = Annotated[list[str] | None, typer.Argument(metavar="USER…", help="Ids of the users.", show_default=False)]
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
Database = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="postgresql://USER@HOST/NAME; with a password, give it by the variable.",
        envvar="FAIRSTREAM_DATABASE",
        show_default="SQLite in the folder",
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Schema for its tables, so that several workspaces share a database.",
        envvar="FAIRSTREAM_SCHEMA",
        show_default="public",
    ),
]


def in_schema(database: str | None, schema: str | None) -> str | None:
    """Return the address of a database with the name of a schema."""
    if schema is None:
        return database
    if database is None:
        raise ConfigurationError("--schema needs --database, because only PostgreSQL has schemas")
    return f"{database}{'&' if '?' in database else '?'}schema={schema}"
