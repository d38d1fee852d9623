"""`fairstream run`: one method over one log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fairstream.cli.config_options import with_config_options
from fairstream.cli.console import Output, on_interrupt
from fairstream.cli.options import STORE_HELP, Cluster, Data, ReadOptions, Seeds, Workers
from fairstream.cli.progress import WorkProgress
from fairstream.cli.workers import choose_workers, finished_runs, on_cluster
from fairstream.data import read_events
from fairstream.errors import DataError
from fairstream.evaluation.by_group import ordered
from fairstream.experiments import Record, Run, RunConfig, compare, make_run, pooled, popularity_runs, run_seeds
from fairstream.pages.score_tables import (
    MAX_LISTED,
    Document,
    group_table,
    metric_table,
    not_beaten,
    period_table,
    recovery_line,
    slice_table,
)
from fairstream.registry import load_plugins


@with_config_options(RunConfig.model_fields)
def run(
    data: Data,
    *,
    reading: ReadOptions,
    seeds: Seeds = 1,
    store: Annotated[Path | None, typer.Option(metavar="DIR", help=STORE_HELP, show_default=False)] = None,
    workers: Workers = None,
    cluster: Cluster = None,
    output: Output,
    options: dict[str, Any],
) -> None:
    """Evaluate a method on a log, period by period, for each group of users.

    The log is cut into pre-training data and periods; after each update the model is evaluated on
    what comes next. PD is the advantaged group's value minus that of the rest; values that chance
    explains are marked. A group's regret is the share of what is attainable for it that it does not get.

    With several seeds, `--json FILE` writes a file for each, and `--json -` one list `runs`. Results contain
    personal data: the group and hits of each tested user.

    The paper's headline run, after `fairstream data get movielens-1m`:
    `fairstream run movielens-1m --group gender --advantaged M --method FADE --protocol paper`
    """
    load_plugins(options.get("plugins", ()))
    config = RunConfig(**options)
    every_seed = range(config.seed, config.seed + seeds)
    outputs = _outputs(output, every_seed)
    log = read_events(data, **asdict(reading))
    job = make_run(log, config)
    output.print(_introduction(job), *job.notes)

    to_beat: dict[str, Run] = {}
    written: dict[int, str] = {}

    def document(record: Record) -> Document:
        return {**record.document, "baselines": {name: {"summary": other.summary()} for name, other in to_beat.items()}}

    def export(record: Record) -> None:
        bars[record.seed](job.periods.last, 0, 0)
        file = outputs.get(record.seed)
        if record.seed not in written and file is not None and file.json is not None:
            file.write(document(record))
            written[record.seed] = file.json

    with (
        on_interrupt(lambda: _outcome(store, list(written.values()))),
        on_cluster(cluster, workers),
        WorkProgress(quiet=output.quiet) as progress,
    ):
        for name, other in popularity_runs(log, config).items():
            progress.follow(other, name)
            to_beat[name] = other
        labels = {seed: config.method if seeds == 1 else f"{config.method}, seed {seed}" for seed in every_seed}
        bars = {seed: progress.run_bar(label, job.expected_work()) for seed, label in labels.items()}
        records = run_seeds(
            log,
            every_seed,
            store=store,
            n_workers=choose_workers(workers, config.device, cluster, seeds),
            on_progress=lambda seed, *at: bars[seed](*at),
            on_record=export,
            **config.model_dump(exclude={"seed"}),
        )
        for record in records:
            export(record)  # unless this call has computed it
    if output.json == "-" and seeds > 1:
        output.write({"runs": [document(record) for record in records]})
    _show(pooled(records), {name: other.document() for name, other in to_beat.items()}, output)
    exported = [f"Written to {file}" for file in written.values()]
    output.print(*_notes(records, job), *_not_beaten(records, to_beat), *exported)


def _outputs(output: Output, seeds: Sequence[int]) -> dict[int, Output]:
    """Return the output of each seed: result.json, or result-seed0.json, result-seed1.json …"""
    if len(seeds) == 1:
        return {seeds[0]: output}
    if output.json in (None, "-"):
        return {}  # one document for all of them, at the end
    file = Path(output.json)
    return {seed: Output(str(file.with_name(f"{file.stem}-seed{seed}{file.suffix}"))) for seed in seeds}


def _outcome(store: Path | None, written: Sequence[str]) -> str:
    """Return what an interrupted run keeps."""
    if store is not None:
        return finished_runs(store)
    if written:
        return (
            f"the runs that were finished are in {', '.join(written)}; with --store DIR the same command would resume"
        )
    return "nothing was kept; with --store DIR finished runs are kept, and the same command resumes"


def _notes(records: Sequence[Record], job: Run) -> list[str]:
    """Return the notes of the runs that the introduction lacks, and those of each period's update."""
    notes = dict.fromkeys(note for record in records for note in record.about.get("notes", ()))
    return [note for note in notes if note not in job.notes] + [
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
            except DataError as error:  # such as groups that are all too small; the tables are valid without the test
                return [f"Whether the model is better than {', '.join(to_beat)} was not tested: {error}."]
            sentences.append(not_beaten(comparison, name))
    return [sentence for sentence in sentences if sentence is not None]


def _show(document: Document, others: Mapping[str, Document], output: Output) -> None:
    for task in document["summary"]:
        output.print(period_table(document, task, others))
    main = next(iter(document["summary"]))
    if len(document["data"]["groups"]) > 1:
        output.print(group_table({"": document}, main))
    output.print(metric_table(document, main))
    output.print(slice_table(document, main))
    if (probe := document.get("group_recovery")) is not None:
        output.print(recovery_line(probe))


def _introduction(job: Run) -> str:
    log, groups = job.log, ""
    name = f" (the paper's {job.dataset})" if job.dataset else ""
    if not job.groups.is_empty:
        first, *others = job.groups.names
        how = "" if job.groups.choice == "declared" else ", the larger group of the pre-training data"
        about = f"{first} (advantaged{how}) against {_listed(ordered(others))}"
        if not job.groups.has_advantaged:
            about = f"{_listed(ordered(job.groups.names))} (no advantaged one named)"
        groups = f"; {job.groups.attribute}: {about}"
    return f"{len(log):,} events{name}, {log.n_users:,} users, {log.n_items:,} items{groups}"


def _listed(names: list[str]) -> str:
    """The names, or the first eight and the number of the others."""
    shown = names if len(names) <= MAX_LISTED else [*names[:8], f"{len(names) - 8} more"]
    return ", ".join(shown)
