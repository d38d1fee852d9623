"""`fairstream reproduce`: all experiments of the paper."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer

from fairstream.cli.config_options import PROTOCOLS
from fairstream.cli.console import Output, on_interrupt, print_error
from fairstream.cli.options import Cluster, DataFolder, Device, Workers, from_names
from fairstream.cli.options import Store as StoreFolder
from fairstream.cli.progress import WorkProgress
from fairstream.cli.workers import choose_workers, exit_on_failures, finished_runs, on_cluster
from fairstream.data.datasets import locate
from fairstream.data.datasets.sources import SOURCES, difference_from_paper
from fairstream.errors import ConfigurationError
from fairstream.experiments import RunConfig, Source, Store
from fairstream.files import check_writable
from fairstream.paper.findings import Findings
from fairstream.paper.report import write_report
from fairstream.paper.report.wording import agreeing, in_short
from fairstream.paper.reproduce import Reproduction
from fairstream.paper.settings import EXPERIMENTS, ModelName, named


class _Dataset(StrEnum):
    MOVIELENS = "movielens-1m"
    MODCLOTH = "modcloth"


class _Model(StrEnum):
    MF = "mf"
    NCF = "ncf"


def reproduce(
    experiment: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only this experiment, or figure; {', '.join(EXPERIMENTS)}. Repeatable.",
            show_default=False,
            autocompletion=from_names(lambda: list(EXPERIMENTS)),
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="MF at the paper's settings with fewer values; NCF and retraining on MovieLens shortened, row by row.",
        ),
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds. The first runs every setting, the others those in the figures.")
    ] = 1,
    protocol: Annotated[
        str,
        typer.Option(
            help="strict: point in time, full ranking, true NDCG; paper: as published.",
            autocompletion=from_names(lambda: PROTOCOLS),
        ),
    ] = "paper",
    store: StoreFolder = Path("reproduction"),
    data: DataFolder = None,
    dataset: Annotated[
        list[_Dataset] | None,
        typer.Option(help="Only this data set. Repeatable.", show_default="both", case_sensitive=False),
    ] = None,
    model: Annotated[
        list[_Model] | None,
        typer.Option(help="Base recommender. Repeatable.", show_default="both", case_sensitive=False),
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    cluster: Cluster = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="The page: one HTML file that needs no network.",
            show_default="STORE.html, next to the store",
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """Run the paper's experiments (RQ1–RQ6): every method, both models, both data sets, both tasks.

    After an interruption, the same command resumes: each finished run is a file in the store, and runs share
    their pre-training. Last it writes a page of the results; `fairstream report` writes that page again at any
    time. The page needs the extra: `pip install fairstream[report]`.
    """
    page = page or store.with_name(f"{store.name}.html")
    check_writable(page)
    n_workers = choose_workers(workers, device, cluster)
    RunConfig(protocol=protocol)  # raises before anything is written
    sources: dict[str, Source] = {
        name.value: Source.of(str(locate(name, data)), group=SOURCES[name].group, advantaged=SOURCES[name].advantaged)
        for name in dataset or _Dataset
    }
    work = Reproduction(
        store=Store(store),
        sources=sources,
        experiments=named(experiment or []),
        models=cast("list[ModelName]", [choice.name for choice in model or _Model]),
        quick=quick,
        seeds=range(seeds),
        protocol=protocol,
        device=device,
        n_workers=n_workers,
    )
    with (
        on_interrupt(lambda: finished_runs(store)),
        work.store.writing(),
        on_cluster(cluster, workers),
        WorkProgress(quiet=output.quiet) as progress,
    ):
        for name, source in sources.items():
            log = source.read()
            if difference := difference_from_paper(name, len(log), log.n_users, log.n_items):
                output.print(f"Note: {difference}.")
        errors, findings = work.run(progress.job_bar, output.print)
    n_agree, n_compared = agreeing(findings.points)
    output.print(*_shortened(findings), in_short(findings))
    written: str | None = str(page)
    try:
        write_report(findings, page)
        output.print(f"{page}: open it in any browser.")
    except ConfigurationError as error:  # the extra that draws charts is missing; the runs are finished all the same
        written = None
        print_error(f"{error}; then `fairstream report {store}` writes the page")
    document = {
        "store": str(store),
        "page": written,
        "n_runs": findings.n_runs,
        "n_missing": findings.n_missing,
        "n_compared": n_compared,
        "n_agree": n_agree,
        "claims": [asdict(claim) for claim in findings.claims],
        "shortened": _shortened(findings),
        "failures": [str(error) for error in errors],
    }
    output.write(document)
    exit_on_failures(errors)


def _shortened(findings: Findings) -> list[str]:
    """Return a line for each kind of run that a quick reproduction shortened."""
    series: dict[tuple[str, str, str], dict[str, None]] = {}
    for point in findings.points:
        if point.shortened is not None and point.ours is not None:
            where = (point.place.dataset, point.place.model, point.shortened)
            series.setdefault(where, {})[point.place.series] = None
    return [
        f"Shortened, and not compared with the paper: {model} on {dataset}, {what} ({', '.join(names)})"
        for (dataset, model, what), names in series.items()
    ]
