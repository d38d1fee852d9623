"""Options mean the same everywhere; choices, completion, JSON, usage errors, interruptions and progress."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fairstream
from fairstream.cli import COMMANDS, load_command, progress
from fairstream.cli.console import Interrupted, on_interrupt
from fairstream.compiled import njit
from fairstream.data.datasets import locate
from fairstream.reporting import COMPILING

Command = Callable[..., Any]
WITHOUT_RESULTS = {"serve"}
"""Commands that have nothing to write as JSON."""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command, those of groups too."""
    for name in COMMANDS:
        loaded = load_command(name)
        inside = getattr(loaded, "commands", None)
        if inside is None:
            yield name, loaded
        else:
            yield from ((f"{name} {child}", command) for child, command in inside.items())


def options() -> Iterator[tuple[str, Any]]:
    for name, command in commands():
        yield from ((name, param) for param in command.params if param.param_type_name == "option")


def test_an_option_has_one_meaning_wherever_it_is() -> None:
    meanings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, option in options():
        first_clause = re.split(r"[.;:]", option.help or "")[0].strip()
        meanings[option.opts[0]][first_clause].append(name)
    several = {option: dict(said) for option, said in meanings.items() if len(said) > 1}
    assert several == {}


def test_the_help_names_no_task_or_default_that_a_command_lacks(command: Command) -> None:
    for name in ("explain", "frontier"):
        task = next(option for of, option in options() if (of, option.opts[0]) == (name, "--task"))
        assert "remain" not in task.help
    assert all(option.show_default == "first" for _, option in options() if option.opts[0] == "--repeats")
    usage = command("forget", "--help").out
    assert "[USER…]" in usage
    assert "[[" not in usage


def test_every_command_with_results_writes_json_and_can_be_quiet() -> None:
    by_command: dict[str, set[str]] = defaultdict(set)
    for name, option in options():
        by_command[name].add(option.opts[0])
    assert {name for name, own in by_command.items() if "--json" not in own} == WITHOUT_RESULTS
    printed_anyway = {"export", "keys add"}
    assert {name for name, own in by_command.items() if "--quiet" not in own} == printed_anyway


def test_options_that_name_the_environment_say_so(command: Command) -> None:
    variables = {option.envvar for _, option in options() if option.envvar}
    assert variables == {
        "FAIRSTREAM_DATA",
        "FAIRSTREAM_DATABASE",
        "FAIRSTREAM_SCHEMA",
        "FAIRSTREAM_DEVICE",
        "FAIRSTREAM_HOST",
        "FAIRSTREAM_LOG_LEVEL",
        "FAIRSTREAM_PORT",
        "FAIRSTREAM_WORKERS",
    }
    page = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text()
    assert all(f"`{name}`" in page for name in variables)
    assert "FAIRSTREAM_DEVICE" in command("sweep", "--help").out


def test_a_device_of_the_environment_is_used(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSTREAM_DEVICE", "quantum")
    outcome = command("demo")
    assert (outcome.code, outcome.out) == (2, "")
    assert "FAIRSTREAM_DEVICE" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compare", "a", "--part", "x"), "Invalid value for '--part': 'x' is not one of 'all', 'warm', 'cold'"),
        (("keys", "add", "w", "n", "--scope", "root"), "'root' is not one of 'ingest', 'attributes', 'read', 'admin'"),
        (("run", "synthetic", "--time-unit", "h"), "'h' is not one of 's', 'ms', 'us', 'ns'"),
        (("run",), "Missing argument 'DATA'"),
        (("run", "x", "--foo"), "No such option: --foo"),
        (("nothing",), "No such command 'nothing'"),
        (("run", "nowhere"), "there is no file or folder nowhere; give .*movielens-1m"),
        (("run", "modcloth"), "modcloth is not in .*; fetch it with `fairstream data get modcloth`"),
    ],
)
def test_wrong_use_is_one_sentence(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setenv("FAIRSTREAM_DATA", str(tmp_path))
    outcome = command(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert re.match(f"fairstream: {sentence}" if sentence[0].isupper() else f"fairstream: .*{sentence}", outcome.err)
    assert outcome.err.count("\n") == 1


def test_without_arguments_the_help_is_printed(command: Command) -> None:
    outcome = command()
    assert outcome.code == 2
    assert "Experiments" in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("compare --part ", {"all", "warm", "cold"}),
        ("run synthetic --method Re", {"Retrain", "Retrain-Fair", "Rerank"}),
        ("run mov", {"movielens-1m", "movielens-100k"}),
        ("peri", {"periods"}),
    ],
)
def test_the_shell_completes(words: str, offered: set[str]) -> None:
    line = f"fairstream {words}"
    environment = {
        **os.environ,
        "_FAIRSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "fairstream"], env=environment, capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) == offered


def test_init_announces_no_key_that_it_writes_to_a_file(command: Command) -> None:
    outcome = command("init", "w", "--json", "w.json")
    assert outcome.code == 0, outcome.err
    assert "key" not in outcome.out
    assert json.loads((outcome.folder / "w.json").read_text())["key"].startswith("fs_")


# ── data sets by name ────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_data_set_that_was_prepared_is_found_by_its_name(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    stream = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
    (tmp_path / "modcloth").mkdir()
    pq.write_table(stream.events, tmp_path / "modcloth" / "interactions.parquet")
    pq.write_table(stream.users, tmp_path / "modcloth" / "users.parquet")
    monkeypatch.setenv("FAIRSTREAM_DATA", str(tmp_path))
    assert locate("modcloth") == tmp_path / "modcloth"
    by_name = json.loads(command("data", "check", "modcloth", "--json", "-").out)
    assert by_name == json.loads(command("data", "check", tmp_path / "modcloth", "--json", "-").out)
    assert by_name["n_events"] == len(fairstream.read_events("modcloth"))
    small = ("--model=item-item", "--n-periods=3", "--n-resamples=10", "--min-group-size=1", "--json=-", "--device=cpu")
    assert json.loads(command("run", "modcloth", *small).out)["data"]["n_events"] == by_name["n_events"]


# ── interruptions ────────────────────────────────────────────────────────────────────────


def test_an_interrupted_block_says_what_is_kept() -> None:
    with pytest.raises(Interrupted, match="two of them are kept"), on_interrupt(lambda: "two of them are kept"):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_that_is_interrupted_says_what_is_kept(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fairstream.experiments.run import Run

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "begin", interrupted)
    for more, sentence in (
        ((), "nothing was kept; with --store DIR"),
        (("--store", tmp_path / "runs", "--workers=1"), "0 finished runs are kept in .*; the same command resumes"),
    ):
        outcome = command("run", "synthetic", "--model=item-item", "--device=cpu", "--quiet", *more)
        assert (outcome.code, outcome.out) == (130, "")
        assert re.fullmatch(f"fairstream: interrupted: {sentence}.*\n", outcome.err)


def test_an_interruption_elsewhere_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairstream.cli import data

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "open_events", interrupted)
    outcome = command("data", "check", "synthetic")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "fairstream: interrupted\n")


# ── progress ─────────────────────────────────────────────────────────────────────────────


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress.WorkProgress(quiet=False) as shown:
        advance = shown.run_bar("FADE", [100, 10])
        advance(0, 5, 10)
        advance(1, 1, 1)
    with progress.WorkProgress(quiet=True) as silent:
        silent.job_bar("sweep", [])(0.0, 1)
    out, err = capfd.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert re.fullmatch(r"FADE: pre-training, epoch 5/10; \d+ s elapsed, about \d+ s left", first)
    assert re.fullmatch(r"FADE: period 1 of 1, epoch 1/1; \d+ s elapsed", second)


def test_short_work_says_nothing(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", float("inf"))
    with progress.WorkProgress(quiet=False) as shown:
        shown.run_bar("FADE", [100])(0, 1, 1)
    assert capfd.readouterr() == ("", "")


def test_compiling_is_said_once_and_only_while_somebody_listens(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(COMPILING, "disabled", False)
    console = Console(stderr=True)
    with progress.reporting_compilation(quiet=False, console=console):
        for _ in range(2):
            COMPILING.info("Compiling something")
    COMPILING.info("Compiling unheard")
    assert capfd.readouterr().err == "Compiling something\n"


def test_the_first_function_that_is_compiled_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairstream import compiled

    sentences: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sentences.append(record.getMessage())

    compiled._log_first_compilation.cache_clear()
    monkeypatch.setattr(COMPILING, "disabled", False)
    listening, level = Listening(), COMPILING.level
    COMPILING.addHandler(listening)
    COMPILING.setLevel(logging.INFO)
    try:
        namespace: dict[str, Any] = {}
        exec("def thrice(x):\n    return 3 * x", namespace)  # without a file nothing is kept on disk
        assert njit(namespace["thrice"])(14) == 42
    finally:
        COMPILING.removeHandler(listening)
        COMPILING.setLevel(level)
    assert len(sentences) == 1
    assert sentences[0].startswith("Compiling loops to machine code")


# ── what needs neither PyTorch nor Numba ─────────────────────────────────────────────────


@pytest.mark.slow
def test_commands_that_compute_nothing_load_nothing_heavy(tmp_path: Path, command: Command) -> None:
    workspace, events = str(tmp_path / "w"), tmp_path / "events.csv"
    assert command("init", workspace, "--quiet").code == 0
    events.write_text("user_id,item_id,time\n1,2,3\n")
    heavy = {"torch", "numba", "scipy", "pyarrow.dataset", "alembic"}
    reading = [[*words.split(), workspace] for words in ("status", "keys list", "models", "periods", "audit")]
    for words in (*reading, ["ingest", workspace, str(events)], ["upgrade", workspace]):
        code = (
            "import sys\nfrom fairstream.cli import main\n"
            f"sys.argv = ['fairstream', *{words!r}]\n"
            f"try:\n    main()\nexcept SystemExit as end:\n    print(end.code or 0, *({heavy!r} & sys.modules.keys()))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        loaded = "0 alembic" if words[0] == "upgrade" else "0"
        assert done.stdout.splitlines()[-1] == loaded, (words, done)
