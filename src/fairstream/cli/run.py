"""`fairstream run`: one method over one log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fairstream.cli.config_options import with_config_options
from fairstream.cli.console import check_json, make_console, on_interrupt, print_lines, write_result
from fairstream.cli.options import (
    STORE_HELP,
    Advantaged,
    Cluster,
    Data,
    Group,
    ItemColumn,
    Items,
    Json,
    Quiet,
    RatingAbove,
    RatingColumn,
    Repeats,
    Seeds,
    TimeColumn,
    TimeUnit,
    UserColumn,
    Users,
    Workers,
)
from fairstream.cli.progress import RunProgress
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
from fairstream.cli.workers import default_workers, finished_runs
from fairstream.cluster import connect
from fairstream.data import EventLog, read_events
from fairstream.errors import DataError
from fairstream.evaluation.by_group import ordered
from fairstream.experiments import Record, Run, RunConfig, compare, pooled, popularity_runs, run_seeds
from fairstream.registry import load_plugins


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
    store: Annotated[Path | None, typer.Option(metavar="DIR", help=STORE_HELP, show_default=False)] = None,
    workers: Workers = None,
    cluster: Cluster = None,
    json: Json = None,
    quiet: Quiet = False,
    options: dict[str, Any],
) -> None:
    """Evaluate a method on a log, period by period, for each group of users.

    The log is cut into pre-training data and periods; after each update the model is evaluated on
    what comes next. PD is the advantaged group's value minus that of the rest; values that chance
    explains are marked.

    With several seeds, `--json FILE` writes a file for each, and `--json -` one list `runs`. Results hold each
    tested user's group and hits: personal data.

    The paper's headline run, after `fairstream data get movielens-1m`:
    `fairstream run movielens-1m --group gender --advantaged M --method FADE --protocol paper`
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
    is_divided = cluster is not None and seeds == 1 and store is None
    job = Run(log, config, cluster=cluster if is_divided else None, n_workers=workers if is_divided else None)
    console = make_console(quiet=quiet, json=json)
    _introduce(job, console)

    to_beat: dict[str, Run] = {}
    written: list[str] = []

    def document(record: Record) -> Document:
        return {**record.document, "baselines": {name: {"summary": other.summary()} for name, other in to_beat.items()}}

    def keep(record: Record) -> None:
        if (file := files.get(record.seed)) is not None:
            write_result(document(record), file)
            written.append(file)

    with on_interrupt(lambda: _kept(store, written)), ExitStack() as stack, RunProgress(quiet=quiet) as progress:
        if cluster is not None:  # nothing is computed where it does not answer
            stack.enter_context(connect(cluster, n_workers=workers))
        for name, other in popularity_runs(log, config, cluster if is_divided else None).items():
            progress.follow(other, name)
            to_beat[name] = other
        if seeds == 1 and store is None:
            progress.follow(job)
            records = [Record.from_document(job.document())]
            keep(records[0])
        else:
            records = _run_all(job, log, seeds, store, workers, cluster, progress, keep)
    if json == "-" and seeds > 1:
        write_result({"runs": [document(record) for record in records]}, json)
    _show(pooled(records), {name: other.document() for name, other in to_beat.items()}, console)
    print_lines(
        console,
        *_notes(records, job),
        *_decisions(records),
        *_not_beaten(records, to_beat),
        *(f"Written to {file}" for file in written),
    )


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
        return {}  # one document for all of them, at the end
    file = Path(json)
    return {seed: str(file.with_name(f"{file.stem}-seed{seed}{file.suffix}")) for seed in seeds}


def _kept(store: Path | None, written: Sequence[str]) -> str:
    """What an interrupted run leaves."""
    if store is not None:
        return finished_runs(store)
    if written:
        return (
            f"the runs that were finished are in {', '.join(written)}; with --store DIR the same command would resume"
        )
    return "nothing was kept; with --store DIR finished runs are kept, and the same command resumes"


def _notes(records: Sequence[Record], job: Run) -> list[str]:
    """What the finished runs noted and the introduction did not say."""
    notes = dict.fromkeys(note for record in records for note in record.about.get("notes", ()))
    return [note for note in notes if note not in job.notes]


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
    log = job.log
    name = f" (the paper's {job.dataset})" if job.dataset else ""
    how = {
        "declared": "advantaged",
        "larger": "advantaged, the larger group of the pre-training data",
        "auto": "advantaged until found otherwise",
    }
    groups = ""
    if not job.groups.is_empty:
        first, *others = job.groups.names
        groups = f"; {job.groups.attribute}: {first} ({how[job.groups.choice]}) against {_listed(ordered(others))}"
        if not job.groups.has_advantaged:
            groups = f"; {job.groups.attribute}: {_listed(ordered(job.groups.names))} (no advantaged one named)"
    about = f"{len(log):,} events{name}, {log.n_users:,} users, {log.n_items:,} items{groups}"
    print_lines(console, about, *job.notes)


def _listed(names: list[str]) -> str:
    """The names, or some of them and how many more there are."""
    shown = names if len(names) <= MOST_LISTED else [*names[:8], f"{len(names) - 8} more"]
    return ", ".join(shown)
