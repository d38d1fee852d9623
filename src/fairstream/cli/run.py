"""`fairstream run`: one method over one log."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from rich.console import Console

from fairstream.cli.console import Json, Quiet, check_json, make_console, write_result
from fairstream.cli.progress import RunProgress
from fairstream.cli.reading import (
    Advantaged,
    Data,
    Group,
    ItemColumn,
    Items,
    RatingAbove,
    RatingColumn,
    Repeats,
    TimeColumn,
    TimeUnit,
    UserColumn,
    Users,
)
from fairstream.cli.tables import (
    MOST_LISTED,
    Document,
    group_table,
    metric_table,
    not_beaten,
    period_table,
    recovery_line,
    slice_table,
)
from fairstream.cli.workers import ClusterOption, Seeds, Workers, default_workers
from fairstream.cluster import connect
from fairstream.data import EventLog, read_events
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation.score_cells import ordered
from fairstream.experiments import Record, Run, RunConfig, compare, pooled, popularity_runs, run_seeds
from fairstream.registry import load_plugins

_FIRST = ("method", "model", "protocol")
"""The options that most calls give."""


def with_config_options(
    config: type[RunConfig], only: Collection[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option to a command for each field of the configuration, or for some; it gets those given as `options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != "options"]
        names = [*_FIRST, *(name for name in config.model_fields if name not in _FIRST)]
        names = [name for name in names if only is None or name in only]
        fields = [_parameter(name, config.model_fields[name]) for name in names]

        def with_options(**values: Any) -> None:
            given = {name: value for name in names if (value := values.pop(name)) not in (None, [])}
            command(**values, options=given)

        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        with_options.__annotations__ = {}
        with_options.__signature__ = signature.replace(parameters=[*own, *fields])  # type: ignore[attr-defined]
        return with_options

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """An option whose help and default are those of the field; a tuple is an option that can be repeated."""
    kinds = [kind for kind in _alternatives(field.annotation) if kind is not NoneType]
    is_repeated = get_origin(kinds[0]) is tuple
    kind = list[str] if is_repeated else kinds[0] if kinds[0] in (int, float, bool) else str
    is_number_or_word = len(kinds) > 1 and get_origin(kinds[-1]) is Literal
    option = typer.Option(
        f"--{(name.removesuffix('s') if is_repeated else name).replace('_', '-')}",
        help=(field.description or "") + (" Repeatable." if is_repeated else ""),
        show_default=str(field.default) if field.default not in (None, ()) else False,
        rich_help_panel="Method and protocol",
        parser=_number_or_word if is_number_or_word else None,
        metavar="NUMBER|WORD" if is_number_or_word else None,
    )
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


@with_config_options(RunConfig)
def run(
    data: Data,
    *,
    group: Group = None,
    advantaged: Advantaged = None,
    users: Users = None,
    items: Items = None,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    rating_column: RatingColumn = None,
    rating_above: RatingAbove = 2.0,
    time_unit: TimeUnit = None,
    repeats: Repeats = "first",
    seeds: Seeds = 1,
    store: Annotated[
        Path | None, typer.Option(help="Results folder; an existing one is resumed.", show_default=False)
    ] = None,
    workers: Workers = None,
    cluster: ClusterOption = None,
    json: Json = None,
    quiet: Quiet = False,
    options: dict[str, Any],
) -> None:
    """Evaluate a method on a log, period by period, for each group of users.

    The log is cut into pre-training data and periods; after each update the model is evaluated on
    what comes next. PD is the advantaged group's value minus that of the rest; values that chance
    explains are marked.

    With several seeds, `--json` writes a file for each. Results hold each tested user's group and
    hits: personal data.

    The paper's headline run: `fairstream run movielens-1m --group gender --advantaged M --method FADE --protocol paper`
    """
    load_plugins(options.get("plugins", ()))
    config = RunConfig(**options)
    files = _files(json, range(config.seed, config.seed + seeds))
    for file in files.values():
        check_json(file)
    log = read_events(
        data,
        users=users,
        items=items,
        group=group,
        advantaged=advantaged,
        user_column=user_column,
        item_column=item_column,
        time_column=time_column,
        rating_column=rating_column,
        rating_above=rating_above,
        time_unit=time_unit,
        repeats=repeats,
    )
    job = Run(log, config)
    console = make_console(quiet=quiet or json == "-")
    _introduce(job, console)

    to_beat: dict[str, Run] = {}

    def keep(record: Record) -> None:
        baselines = {name: {"summary": other.summary()} for name, other in to_beat.items()}
        write_result({**record.document, "baselines": baselines}, files.get(record.seed))

    with ExitStack() as stack, RunProgress(quiet=quiet) as progress:
        if cluster is not None:  # nothing is computed where it does not answer
            stack.enter_context(connect(cluster, n_workers=workers))
        for name, other in popularity_runs(log, config).items():
            progress.follow(other, name)
            to_beat[name] = other
        if seeds == 1 and store is None and cluster is None:
            progress.follow(job)
            records = [Record.from_document(job.document())]
            keep(records[0])
        else:
            records = _run_all(job, log, seeds, store, workers, cluster, progress, keep)
    _show(pooled(records), {name: other.document() for name, other in to_beat.items()}, console)
    for line in _decisions(records):
        console.print(line, highlight=False)
    for line in _not_beaten(records, to_beat):
        console.print(line, highlight=False)
    for file in files.values():
        console.print(f"Written to {file}", highlight=False)


def _run_all(
    job: Run,
    log: EventLog,
    n_seeds: int,
    store: Path | None,
    workers: int | None,
    cluster: str | None,
    progress: RunProgress,
    keep: Callable[[Record], None],
) -> list[Record]:
    """The finished runs of all seeds; each is exported as soon as it is finished."""
    config = job.config
    bars = {
        seed: progress.bar(f"{config.method}, seed {seed}", job.expected_work())
        for seed in range(config.seed, config.seed + n_seeds)
    }
    exported = set()

    def on_record(record: Record) -> None:
        bars[record.seed](job.periods.last, 0, 0)
        exported.add(record.seed)
        keep(record)

    records = run_seeds(
        log,
        list(bars),
        store=store,
        n_workers=workers or _default_workers(n_seeds, config.device, cluster),
        cluster=cluster,
        on_progress=lambda seed, *at: bars[seed](*at),
        on_record=on_record,
        **config.model_dump(exclude={"seed"}),
    )
    for record in records:
        if record.seed not in exported:  # it was in the store before
            on_record(record)
    return records


def _default_workers(n_seeds: int, device: str, cluster: str | None) -> int | None:
    n_workers = default_workers(device, cluster)
    return None if n_workers is None else min(n_seeds, n_workers)


def _files(json: str | None, seeds: Sequence[int]) -> dict[int, str]:
    """Where the result of each seed goes: result.json, or result-seed0.json, result-seed1.json …"""
    if json is None:
        return {}
    if len(seeds) == 1:
        return {seeds[0]: json}
    if json == "-":
        raise ConfigurationError("--json - prints one run; for several seeds give a file name, or --store")
    file = Path(json)
    return {seed: str(file.with_name(f"{file.stem}-seed{seed}{file.suffix}")) for seed in seeds}


def _decisions(records: Sequence[Record]) -> list[str]:
    """What the updates of each period noted."""
    return [
        f"{f'Seed {record.seed}, period' if len(records) > 1 else 'Period'} {result['t']}: {note}"
        for record in records
        for result in record.about["periods"]
        for note in result.get("notes", ())
    ]


def _not_beaten(records: Sequence[Record], to_beat: Mapping[str, Run]) -> list[str]:
    """One sentence for each task and baseline that the model is not better than."""
    sentences = []
    for name, other in to_beat.items():
        for task, metrics in records[0].document["summary"].items():
            try:
                comparison = compare([*records, other], task=task, metric=next(iter(metrics)))
            except DataError as error:  # such as groups that are all too small; the tables stand all the same
                return [f"Whether the model is better than {', '.join(to_beat)} was not tested: {error}."]
            sentences.append(not_beaten(comparison, name))
    return [sentence for sentence in sentences if sentence is not None]


def _show(document: Document, others: Mapping[str, Document], console: Console) -> None:
    for task in document["summary"]:
        console.print(period_table(document, task, others))
    main = next(iter(document["summary"]))
    if len(document["data"]["groups"]) > 2:
        console.print(group_table(document, main))
    console.print(metric_table(document, main))
    console.print(slice_table(document, main))
    if (probe := document.get("group_recovery")) is not None:
        console.print(recovery_line(probe), highlight=False)


def _introduce(job: Run, console: Console) -> None:
    log, (first, *others) = job.log, job.groups.names
    name = f" (the paper's {job.dataset})" if job.dataset else ""
    how = {
        "declared": "advantaged",
        "larger": "advantaged, the larger group of the pre-training data",
        "auto": "advantaged until found otherwise",
    }
    lines = [
        f"{len(log):,} events{name}, {log.n_users:,} users, {log.n_items:,} items; "
        f"{job.groups.attribute}: {first} ({how[job.groups.choice]}) against {_listed(ordered(others))}",
        *job.notes,
    ]
    for line in lines:
        console.print(line, highlight=False)


def _listed(names: list[str]) -> str:
    """The names, or some of them and how many more there are."""
    shown = names if len(names) <= MOST_LISTED else [*names[:8], f"{len(names) - 8} more"]
    return ", ".join(shown)
