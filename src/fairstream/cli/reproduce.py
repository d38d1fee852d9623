"""`fairstream reproduce`: everything that the paper ran."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from fairstream.cli.console import make_console
from fairstream.cli.progress import JobProgress
from fairstream.cli.workers import as_device, default_workers, tell_failures
from fairstream.data.datasets import locate
from fairstream.data.datasets.published import difference_from_paper
from fairstream.data.datasets.sources import SOURCES
from fairstream.errors import ConfigurationError
from fairstream.experiments import RunConfig
from fairstream.experiments.jobs import Source
from fairstream.experiments.store import Store
from fairstream.paper.experiments import EXPERIMENTS, named
from fairstream.paper.reproduce import Reproduction
from fairstream.paper.settings import DATASETS, MODELS, ModelName


def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only this experiment ({', '.join(EXPERIMENTS)}) or figure; repeatable.", show_default=False
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: fewer epochs, periods and values.")] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds; the first runs every setting, the others what is shown.")
    ] = 1,
    protocol: Annotated[str, typer.Option(help="paper: as published; strict: numbers to believe.")] = "paper",
    store: Annotated[Path, typer.Option(help="Folder that the results go into, and that is gone on with.")] = Path(
        "reproduction"
    ),
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the data sets.", show_default="where `fairstream data get` puts them"),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only this data set; repeatable.", show_default="both")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only this model; repeatable.", show_default="both")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes at a time.", show_default="one a core, on GPUs one for each"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run the paper's experiments (RQ1–RQ6): every method, both models, both data sets, both tasks.

    Interrupted at any moment it goes on where it was when it is called again: each finished run is a
    file in the store, and work that runs share is done once. `fairstream report` makes a page of it.
    """
    names = _known("data set", dataset or list(DATASETS), DATASETS)
    kind = as_device(device)
    RunConfig(protocol=protocol)  # what is wrong with it is said before anything is written
    homes = {name: SOURCES[name] for name in names}
    sources = {
        name: Source.of(str(locate(name, data)), group=home.group, advantaged=home.advantaged)
        for name, home in homes.items()
    }
    console = make_console(quiet=quiet)
    work = Reproduction(
        store=Store(store),
        sources=sources,
        experiments=named(only or []),
        models=cast("list[ModelName]", _known("model", [name.upper() for name in model or MODELS], MODELS)),
        quick=quick,
        seeds=range(seeds),
        protocol=protocol,
        device=kind,
        n_workers=workers or default_workers(kind),
    )
    with work.store.writing(), JobProgress(quiet=quiet) as progress:
        for name, source in sources.items():
            log = source.read()
            if difference := difference_from_paper(name, len(log), log.n_users, log.n_items):
                console.print(f"Note: {difference}.", highlight=False)
        failed = work.run(progress.stage, lambda line: console.print(line, highlight=False))
    console.print(f"Done. `fairstream report {store}` makes a page of it.", highlight=False)
    tell_failures(failed)


def _known(what: str, given: list[str], known: tuple[str, ...]) -> list[str]:
    for name in given:
        if name not in known:
            raise ConfigurationError(f"the {what} must be one of {', '.join(known)}, got {name!r}")
    return given
