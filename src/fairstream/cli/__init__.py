"""The command line. Each command is imported when it is called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from fairstream._version import __version__
from fairstream.cli.console import Interrupted, print_error
from fairstream.cli.options import CommandGroup
from fairstream.errors import ConfigurationError, FairstreamError
from fairstream.reporting import silence
from fairstream.threads import configure_openmp

EXPERIMENTS, SERVICE, DATA = "Experiments", "Live service", "Data"
EXTRAS = {EXPERIMENTS: "report", SERVICE: "live", DATA: "ingest"}  # panel → the extra that its commands may need
INTERRUPTED = 130  # the exit code after Ctrl-C
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of all usage errors, which Typer does not export."""


class Command(NamedTuple):
    """The description of a command, so that `--help` need not import it: most commands import PyTorch."""

    module: str  # its file here; the command is the function with its name, or the group NAME_app
    panel: str
    help: str


COMMANDS = {
    "demo": Command("demo", EXPERIMENTS, "Show on a synthetic stream what histories, updates and fairness are worth."),
    "run": Command("run", EXPERIMENTS, "Evaluate a method on your events, period by period, for each group of users."),
    "compare": Command("compare", EXPERIMENTS, "Compare runs, paired on the same users, periods and seeds."),
    "sweep": Command("sweep", EXPERIMENTS, "Evaluate combinations of options in parallel; show the Pareto front."),
    "frontier": Command("frontier", EXPERIMENTS, "Show what each level of disparity would have cost on your own past."),
    "explain": Command("explain", EXPERIMENTS, "Say what changed in the last period, or why a group is behind."),
    "report": Command("report", EXPERIMENTS, "Write runs, or a reproduction of the paper, as one HTML page."),
    "reproduce": Command("reproduce", EXPERIMENTS, "Run all experiments of the paper."),
    "evaluate": Command("evaluate", EXPERIMENTS, "Evaluate lists of any recommender, by group, and compare systems."),
    "leakcheck": Command("evaluate", EXPERIMENTS, "Show what leaks across time in a train/test split."),
    "init": Command("init", SERVICE, "Create a workspace."),
    "serve": Command("serve", SERVICE, "Start the HTTP service and the dashboard."),
    "ingest": Command("ingest", SERVICE, "Store events and users' groups from files."),
    "items": Command("items", SERVICE, "Store the catalogue's items and properties from files, or list them."),
    "update": Command("workspace_commands", SERVICE, "Train on new events; promote the model if it passes the gate."),
    "status": Command("workspace_commands", SERVICE, "Show the model in service, the last update and waiting events."),
    "models": Command("workspace_commands", SERVICE, "List the models, the newest first."),
    "periods": Command("workspace_commands", SERVICE, "List the periods and how the model in service did on each."),
    "recommend": Command("people", SERVICE, "Recommend items to users with the model in service."),
    "promote": Command("workspace_commands", SERVICE, "Put a model into service."),
    "rollback": Command("workspace_commands", SERVICE, "Return to the model that the current one was trained from."),
    "experiment": Command("experiment", SERVICE, "Compare the model in service with another one on people."),
    "forget": Command("people", SERVICE, "Delete people: their events, attributes and rows in models."),
    "export": Command("people", SERVICE, "Print everything that the workspace stores about a person, as JSON."),
    "audit": Command("workspace_commands", SERVICE, "Verify the audit record and print it."),
    "keys": Command("workspace_commands", SERVICE, "Create, list and revoke API keys."),
    "backup": Command("backup", SERVICE, "Write everything of a workspace into one file."),
    "restore": Command("backup", SERVICE, "Make a workspace of a backup."),
    "doctor": Command("backup", SERVICE, "Examine an installation and a workspace."),
    "upgrade": Command("workspace_commands", SERVICE, "Migrate a workspace's tables to this version."),
    "data": Command("data", DATA, "Download the paper's data sets; describe or ingest your data."),
}
"""Every command, in the order of the help."""


class LazyGroup(TyperGroup):
    """Lists the commands from the table above, and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


def load_command(name: str) -> Any:
    """Import a command."""
    command = COMMANDS[name]
    try:
        module = import_module(f"fairstream.cli.{command.module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fairstream"):
            raise  # a bug, not a missing extra
        extra = f"pip install 'fairstream[{EXTRAS[command.panel]}]'"
        raise ConfigurationError(f"this command needs {error.name}, which is not installed; {extra}") from None
    if (group := getattr(module, f"{name}_app", None)) is not None:
        return typer.main.get_command(group)
    alone = CommandGroup()
    alone.command(name)(getattr(module, name))
    return typer.main.get_command(alone)


app = typer.Typer(
    name="fairstream",
    cls=LazyGroup,
    help="Recommendations that keep up with new data and stay fair to groups of users while they do.",
    epilog="Start with `fairstream demo`; then `fairstream run FOLDER --group COLUMN` on your own data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.help, rich_help_panel=_command.panel)(lambda: None)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"fairstream {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    silence()


def main() -> None:
    """Run the command line; an error that the user can correct prints one sentence and exits with 2."""
    configure_openmp()
    try:
        code = app(prog_name="fairstream", standalone_mode=False)
    except FairstreamError as error:
        print_error(str(error))
        code = 2
    except Interrupted as interruption:
        print_error(f"interrupted: {interruption}")
        code = INTERRUPTED
    except _UsageError as error:
        if sentence := _usage_sentence(error):
            print_error(sentence)
        code = 2
    else:
        if code == INTERRUPTED:  # by Ctrl-C, in a command that keeps nothing
            print_error("interrupted")
    sys.exit(code)


def _usage_sentence(error: Any) -> str:
    """Return the error and a hint to the help, or nothing if the help was printed already."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    where = f"; see `{error.ctx.command_path} --help`" if error.ctx is not None else ""
    words = " ".join(error.format_message().replace("Value error, ", "").split())
    return f"{words.rstrip('.')}{where}"
