"""The command line, as a real process with real files.

Importing PyTorch takes longer than most of these runs. So one interpreter imports everything once
and forks a process of its own for each command (see `_SERVER`); one test starts from nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import fairstream

STREAM = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
FAST = ("--pretrain-epochs=1", "--update-epochs=1", "--embedding-dim=8", "--n-periods=3", "--device=cpu")

_SERVER = """
import json, os, sys, traceback
import pandas, torch._dynamo  # what Arrow and the optimizers would import late, in every process anew
from fairstream.cli import main

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(asked["folder"])
        for fd, path in ((1, asked["out"]), (2, asked["err"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), fd)
        sys.argv = ["fairstream", *asked["arguments"]]
        try:
            main()
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # taking all of PyTorch down properly takes seconds
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Outcome(NamedTuple):
    """How a command ended, what it said, and the folder that it ran in."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*"))


Command = Callable[..., Outcome]


def plain_environment() -> dict[str, str]:
    """No terminal and no wish for colours, whoever runs the tests."""
    decides = ("COLUMNS", "FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TERM")
    return {name: value for name, value in os.environ.items() if name not in decides} | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Run `fairstream` with these arguments in an empty folder."""
    numbers = count()
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=plain_environment(),
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def run(*arguments: object) -> Outcome:
        base = tmp_path_factory.mktemp(f"command-{next(numbers)}")
        folder, out, err = base / "folder", base / "out", base / "err"
        folder.mkdir()
        asked = {"folder": folder, "out": out, "err": err, "arguments": list(map(str, arguments))}
        print(json.dumps(asked, default=str), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return Outcome(code, out.read_text(), err.read_text(), folder)

    yield run
    server.stdin.close()
    assert server.wait(timeout=60) == 0
    server.stdout.close()


def write_folder(
    folder: Path, kind: str = "csv", *, events: pa.Table = STREAM.events, users: pa.Table | None = STREAM.users
) -> Path:
    folder.mkdir(parents=True)
    write = {"csv": pyarrow.csv.write_csv, "parquet": pyarrow.parquet.write_table}[kind]
    write(events, folder / f"interactions.{kind}")
    if users is not None:
        write(users, folder / f"users.{kind}")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with data, good and bad; no command may change them."""
    base = tmp_path_factory.mktemp("data")
    write_folder(base / "csv")
    whole = write_folder(base / "parquet", "parquet") / "interactions.parquet"
    write_folder(base / "without items", events=STREAM.events.drop(["item_id"]))
    write_folder(base / "one group", users=STREAM.users.set_column(1, "community", [["all"] * 100]))
    write_folder(base / "without users", users=None)
    write_folder(base / "empty", "parquet", events=STREAM.events.slice(0, 0))
    write_folder(base / "header only", events=STREAM.events.slice(0, 0))
    write_folder(base / "five events", events=STREAM.events.slice(0, 5))
    write_folder(base / "ratings in words", events=STREAM.events.append_column("rating", [["good"] * 2000]))
    write_folder(base / "other ids", users=STREAM.users.set_column(0, "user_id", [[f"u{n}" for n in range(100)]]))
    write_folder(base / "no bytes")
    (base / "no bytes" / "interactions.csv").write_bytes(b"")
    for name, content in (("garbage", b"PAR1 and then nothing"), ("truncated", whole.read_bytes()[:5000])):
        write_folder(base / name, "parquet")
        (base / name / "interactions.parquet").write_bytes(content)
    (base / "nothing inside").mkdir()
    return base


# ── version and help ─────────────────────────────────────────────────────────────────────


def test_the_version_is_printed_by_a_process_started_from_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "from fairstream.cli import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env=plain_environment(),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fairstream {fairstream.__version__}\n", "")


def test_help_names_the_commands(command: Command) -> None:
    outcome = command("--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert re.search(r"\brun\b.*Carry one method", outcome.out)
    assert re.search(r"\bdemo\b.*synthetic stream", outcome.out)


def test_every_option_is_in_the_help_and_explained(command: Command) -> None:
    outcome = command("run", "--help")
    assert (outcome.code, outcome.err) == (0, "")
    reading = ["group", "advantaged", "seed", "device", "json", "quiet"]
    learning = ["method", "model", "protocol", "fairness-weight", "temperature", "n-negatives", "n-fairness-negatives"]
    time = ["pretrain-epochs", "update-epochs", "pretrain-ratio", "n-periods", "restart", "restart-every"]
    for option in reading + learning + time:
        # the name whole, and a word of explanation behind it
        assert re.search(rf"--{option}\s.*[a-z]{{2}}", outcome.out), option


def test_help_of_the_demo(command: Command) -> None:
    outcome = command("demo", "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert all(f"--{option} " in outcome.out for option in ("seed", "device", "quiet"))


# ── running ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_a_run_writes_the_result_that_python_gives(command: Command, data: Path, kind: str, protocol: str) -> None:
    options = {"protocol": protocol, "batch_size": 64, "seed": 3, "fairness_weight": 1.5}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    outcome = command("run", data / kind, "--group=community", "--json=result.json", *FAST, *arguments)
    assert (outcome.code, outcome.err, outcome.left) == (0, "", ["result.json"])
    document = json.loads((outcome.folder / "result.json").read_text(), parse_constant=pytest.fail)
    log = fairstream.read_events(STREAM.events, users=STREAM.users, group="community")
    expected = fairstream.run(
        log, pretrain_epochs=1, update_epochs=1, embedding_dim=8, n_periods=3, device="cpu", **options
    )
    list(expected)
    assert [period["t"] for period in document["periods"]] == [1, 2]
    assert document["config"] == expected.config.model_dump()
    for part in ("pretrained", "periods", "summary", "versions"):
        assert document[part] == json.loads(json.dumps(expected.document()[part]))


def test_the_tables_show_both_tasks_and_every_period(command: Command, data: Path) -> None:
    outcome = command("run", data / "csv", "--method=finetune", "--restart-every=2", *FAST)
    assert (outcome.code, outcome.err, outcome.left) == (0, "", [])
    n_users = len(STREAM.events["user_id"].unique())
    assert f"2,000 events, {n_users} users, 60 items; community: majority (advantaged)" in outcome.out
    for task in ("Task-R", "Task-N"):
        table = outcome.out.partition(task)[2].partition("mean")[0]
        assert re.findall(r"^ +(\d) ", table, flags=re.MULTILINE) == ["0", "1", "2"]


def test_the_tables_show_the_numbers_of_the_result(command: Command, data: Path) -> None:
    outcome = command("run", data / "csv", "--json=result.json", *FAST)
    document = json.loads((outcome.folder / "result.json").read_text())
    for period in (document["pretrained"], *document["periods"]):
        assert period["step"] in outcome.out or period["t"] == 0
        for task in period["tasks"].values():
            for metric in ("ndcg@20", "f1@20"):
                assert metric in outcome.out
                assert f"{task[metric]['overall']:.4f}" in outcome.out
                assert f"{task[metric]['performance_disparity']:+.4f}" in outcome.out


def test_single_files_and_other_column_names(command: Command, data: Path, tmp_path: Path) -> None:
    events = STREAM.events.rename_columns(["who", "what", "when"])
    write_folder(tmp_path / "renamed", events=events, users=STREAM.users.rename_columns(["who", "community"]))
    named = ("--user-column=who", "--item-column=what", "--time-column=when")
    found = [
        command("run", data / "csv", "--json=r.json", *FAST),
        command("run", tmp_path / "renamed", *named, "--json=r.json", *FAST),
        command(
            "run", data / "csv/interactions.csv", "--users", data / "parquet/users.parquet", "--json=r.json", *FAST
        ),
    ]
    results = [json.loads((outcome.folder / "r.json").read_text())["periods"] for outcome in found]
    assert results[0] == results[1] == results[2]


def test_advantaged_decides_the_sign(command: Command, data: Path) -> None:
    summaries = []
    for advantaged in ("majority", "minority"):
        arguments = ("--method=Finetune", f"--advantaged={advantaged}", "--json=r.json", *FAST)
        outcome = command("run", data / "csv", *arguments)
        summaries.append(json.loads((outcome.folder / "r.json").read_text())["summary"]["remain"]["ndcg@20"])
    assert summaries[0]["performance_disparity"] == -summaries[1]["performance_disparity"] != 0


def test_quiet_prints_nothing(command: Command, data: Path) -> None:
    for quiet in ("--quiet", "-q"):
        outcome = command("run", data / "csv", quiet, "--json=result.json", *FAST)
        assert (outcome.code, outcome.out, outcome.err, outcome.left) == (0, "", "", ["result.json"])


def test_without_a_terminal_there_are_no_bars_and_no_escape_codes(command: Command, data: Path) -> None:
    for arguments in (("run", data / "csv", *FAST), ("run", data / "csv", "--k=1000"), ("run", "--help")):
        outcome = command(*arguments)
        assert "\x1b" not in outcome.out + outcome.err
        assert "\r" not in outcome.out + outcome.err
        assert "━" not in outcome.out + outcome.err
        assert "epoch" not in outcome.out + outcome.err or "--help" in arguments


def test_a_result_replaces_an_older_one_whole(command: Command, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("older" * 10_000)
    assert command("run", data / "csv", "--json", path, *FAST).code == 0
    assert json.loads(path.read_text())["config"]["n_periods"] == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


# ── what a user can put right ────────────────────────────────────────────────────────────


BAD = [
    # (folder, arguments, what the sentence must name)
    ("missing folder", [], "missing folder"),
    ("nothing inside", [], "interactions.parquet or interactions.csv"),
    ("without items", [], "item_id.*--item-column"),
    ("csv", ["--user-column=who"], "no column 'who'"),
    ("csv", ["--method=FOO"], "one of Pretrain, .*FADE, got 'FOO'"),
    ("csv", ["--model=svd"], "model must be one of .*, got 'svd'"),
    ("csv", ["--model=custom"], "model must be"),
    ("csv", ["--protocol=loose"], "one of 'paper' or 'strict', got 'loose'"),
    ("csv", ["--fairness-weight=-1"], "fairness_weight must be >= 0, got -1.0"),
    ("csv", ["--temperature=nan"], "temperature must be a finite number, got nan"),
    ("csv", ["--temperature=0"], "temperature must be > 0, got 0.0"),
    ("csv", ["--n-negatives=0"], "n_negatives must be >= 1, got 0"),
    ("csv", ["--n-negatives=1000"], "n_negatives"),
    ("csv", ["--learning-rate=1e30"], "diverged.*lower learning_rate"),
    ("csv", ["--seed=-1"], "seed must be >= 0, got -1"),
    ("csv", ["--device=gpu"], "device must be one of 'auto', 'cpu' or 'cuda', got 'gpu'"),
    ("csv", ["--n-periods=11"], "n_periods must be at most n_blocks, 10, got 11"),
    ("csv", ["--pretrain-ratio=1"], "pretrain_ratio must be < 1"),
    ("csv", ["--restart=often"], "restart must be one of 'never' or 'on-degradation'"),
    ("csv", ["--restart=on-degradation", "--restart-every=2"], "give one of them"),
    ("csv", ["--group=height"], "no column 'height'.*user_id, community"),
    ("csv", ["--advantaged=tall"], "community = 'tall'.*'majority', 'minority'"),
    ("one group", ["--group=community"], "two groups are compared, but 'community' takes 1 value"),
    ("one group", [], "--group COLUMN"),
    ("without users", [], "no groups.*--group COLUMN"),
    ("without users", ["--users=nowhere.csv"], "no file nowhere.csv"),
    ("other ids", [], "of one kind"),
    ("empty", [], "no events"),
    ("header only", [], "no events"),
    ("no bytes", [], "interactions.csv cannot be read.*Empty CSV"),
    ("five events", [], "5 events are too few"),
    ("csv", ["--k=1000"], "k must be at most the .* items .*, got 1000"),
    ("csv", ["--json=nowhere/result.json"], "could not be written to nowhere/result.json"),
    ("csv", ["--json=."], "could not be written to"),
    ("csv", ["--json=/dev/null/result.json"], "could not be written"),
    ("garbage", [], "interactions.parquet cannot be read"),
    ("truncated", [], "interactions.parquet cannot be read"),
    ("ratings in words", [], "rating"),
]


@pytest.mark.parametrize(("folder", "arguments", "named"), BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(
    command: Command, data: Path, folder: str, arguments: list[str], named: str
) -> None:
    before = sorted(data.rglob("*"))
    outcome = command("run", data / folder, *FAST, "--quiet", *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("fairstream: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert not re.search(r"[.!?] [A-Z]", outcome.err)  # one sentence
    assert re.search(named, outcome.err)
    assert outcome.left == []
    assert sorted(data.rglob("*")) == before


@pytest.mark.parametrize("arguments", [["run"], ["run", "csv", "--seed=x"], ["run", "csv", "--lambda=1"], ["rnu"]])
def test_what_click_refuses_is_refused_without_a_traceback(command: Command, arguments: list[str]) -> None:
    outcome = command(*arguments)
    assert outcome.code == 2
    assert outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.slow
def test_the_demo_tells_what_its_table_shows(command: Command) -> None:
    outcome = command("demo")
    assert (outcome.code, outcome.err, outcome.left) == (0, "", [])
    assert all(method in outcome.out for method in ("Pretrain", "Retrain", "Finetune", "FADE"))
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines() if re.match(r" +(Finetune|FADE) ", line)}
    gap = {method: float(cells[5]) for method, cells in rows.items()}
    assert ("lowers the disparity" in outcome.out) == (gap["FADE"] < gap["Finetune"])
