"""`fairstream reproduce`: everything that the paper ran."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, cast

import torch
import typer

from fairstream.cli.console import make_console
from fairstream.cli.progress import JobProgress
from fairstream.errors import ConfigurationError
from fairstream.events.datasets import locate
from fairstream.experiment import RunConfig
from fairstream.experiment.jobs import Source
from fairstream.experiment.paper.experiments import EXPERIMENTS, named
from fairstream.experiment.paper.reproduce import Reproduction
from fairstream.experiment.paper.settings import DATASETS, GROUPS, MODELS, ModelName
from fairstream.experiment.pool import Device
from fairstream.experiment.store import Store


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
        typer.Option(min=1, help="Processes at a time.", show_default="one a core, on a GPU one for each"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run the paper's experiments (RQ1–RQ6): every method, both models, both data sets, both tasks.

    Interrupted at any moment it goes on where it was when it is called again: each finished run is a
    file in the store, and work that runs share is done once. `fairstream report` makes a page of it.
    """
    names = _known("data set", dataset or list(DATASETS), DATASETS)
    (kind,) = _known("device", [device], ("auto", "cpu", "cuda"))
    RunConfig(protocol=protocol, device=cast("Device", kind)).torch_device()  # said now, before anything is written
    sources = {
        name: Source.of(str(locate(name, data)), group=GROUPS[name][0], advantaged=GROUPS[name][1]) for name in names
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
        device=cast("Device", kind),
        n_workers=workers or _n_workers(kind),
    )
    with work.store.writing(), JobProgress(quiet=quiet) as progress:
        failed = work.run(progress.stage, lambda line: console.print(line, highlight=False))
    for sentence in failed:
        console.print(f"Failed: {sentence}", highlight=False)
    console.print(f"Done. `fairstream report {store}` makes a page of it.", highlight=False)


def _n_workers(device: str) -> int:
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return os.cpu_count() or 1


def _known(what: str, given: list[str], known: tuple[str, ...]) -> list[str]:
    for name in given:
        if name not in known:
            raise ConfigurationError(f"the {what} must be one of {', '.join(known)}, got {name!r}")
    return given
