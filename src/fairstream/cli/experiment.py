"""`fairstream experiment start|status|stop|promote`: two models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fairstream.cli.console import Output
from fairstream.cli.options import CommandGroup, WorkspaceFolder
from fairstream.cli.workspaces import opened, who
from fairstream.errors import ConfigurationError
from fairstream.service import experiments
from fairstream.service.experiments import Experiment, Options
from fairstream.service.incoming import parse_json

experiment_app = CommandGroup(help="Compare the model in service with another one on people.", no_args_is_help=True)


@experiment_app.command()
def start(
    folder: WorkspaceFolder,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model B, as `fairstream models` lists it.")],
    mode: Annotated[
        Literal["split", "interleave", "shadow"], typer.Option(help="How people get the lists of B.")
    ] = "split",
    options: Annotated[
        Path | None, typer.Option(help="JSON file with further options of PUT /v1/experiment.", show_default=False)
    ] = None,
    *,
    output: Output,
) -> None:
    """Start an experiment: the model in service (A) and MODEL (B) side by side."""
    further: Any = {} if options is None else parse_json(options.read_bytes(), str(options))
    if not isinstance(further, dict):
        raise ConfigurationError(f"{options} must hold a JSON object of options")
    with opened(folder) as workspace:
        _show(experiments.start(workspace, Options(**{"b": model, "mode": mode, **further}), by=who()), output)


@experiment_app.command()
def status(folder: WorkspaceFolder, *, output: Output) -> None:
    """Show the running experiment, else the last one: its arms, tests and decision."""
    with opened(folder) as workspace:
        _show(experiments.get(workspace.engine), output)


@experiment_app.command()
def stop(folder: WorkspaceFolder, *, output: Output) -> None:
    """End the experiment: everybody gets the model in service."""
    with opened(folder) as workspace:
        _show(experiments.stop(workspace, by=who()), output)


@experiment_app.command()
def promote(folder: WorkspaceFolder, *, output: Output) -> None:
    """Put model B into service, which ends the experiment."""
    with opened(folder) as workspace:
        model = experiments.promote(workspace, by=who())
    output.print(f"Model {model} is in service.")
    output.write({"model": model})


def _show(experiment: Experiment, output: Output) -> None:
    output.print(*experiment.sentences)
    output.write(experiment.model_dump(mode="json"))
