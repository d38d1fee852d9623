"""The command line on real files: what it prints, writes, refuses and leaves behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import fairstream
from fairstream.cli.console import Output
from fairstream.display import Table
from fairstream.text import between, number, signed
from support import made_run

STREAM = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
SMALL = ("--model=mf", "--pretrain-epochs=1", "--update-epochs=1", "--set=embedding_dim=8", "--device=cpu")
SURE = ("--min-group-size=1", "--n-resamples=20")
FAST = (*SMALL, "--n-periods=3", *SURE)
LEAN = (*SMALL, "--n-periods=2", "--min-group-size=1", "--n-resamples=0", "--task=next")
"""Where the numbers themselves do not matter."""
PYTHON = {
    "pretrain_epochs": 1,
    "update_epochs": 1,
    "model_settings": {"embedding_dim": 8},
    "n_periods": 3,
    "min_group_size": 1,
    "n_resamples": 20,
    "device": "cpu",
}
AGES = (5, 18, 25, 35, 45, 50, 100)  # in another order as words

Command = Callable[..., Any]


def write_folder(
    folder: Path, kind: str = "csv", *, events: pa.Table = STREAM.events, users: pa.Table | None = STREAM.users
) -> Path:
    folder.mkdir(parents=True)
    write = {"csv": pyarrow.csv.write_csv, "parquet": pyarrow.parquet.write_table}[kind]
    write(events, folder / f"interactions.{kind}")
    if users is not None:
        write(users, folder / f"users.{kind}")
    return folder


def dates(times: pa.ChunkedArray) -> list[datetime]:
    """The stream's own clock in days."""
    return [datetime(2024, 1, 1) + timedelta(days=time) for time in times.to_pylist()]


def unequal() -> tuple[pa.Table, pa.Table]:
    """Half of the users all like the same things, the others each their own; odd and even are alike."""
    rng = np.random.default_rng(0)
    own = {user: range(30) if user < 40 else 30 + rng.permutation(100)[:30] for user in range(80)}
    pairs = [(user, int(own[user][at])) for at in range(30) for user in rng.permutation(80)]
    users, items = zip(*pairs, strict=True)
    events = pa.table({"user_id": users, "item_id": items, "time": range(len(pairs))})
    taste = ["common" if user < 40 else "own" for user in range(80)]
    return events, pa.table({"user_id": range(80), "taste": taste, "parity": ["even", "odd"] * 40})


UNEQUAL, UNEQUALS = unequal()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with data, good and bad; no command may change them."""
    base = tmp_path_factory.mktemp("data")
    write_folder(base / "csv")
    whole = write_folder(base / "parquet", "parquet") / "interactions.parquet"
    write_folder(base / "without items", events=STREAM.events.drop(["item_id"]))
    people = {"gender": ["F", "M", "M"] * 33 + ["F"], "age": [AGES[user % 7] for user in range(100)]}
    write_folder(base / "people", users=pa.table({"user_id": range(100), **people}))
    write_folder(base / "dated", events=STREAM.events.set_column(2, "time", [dates(STREAM.events["time"])]))
    write_folder(base / "unequal", events=UNEQUAL, users=UNEQUALS)
    write_folder(
        base / "too many groups", users=pa.table({"user_id": range(101), "name": [f"n{u}" for u in range(101)]})
    )
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


@pytest.mark.slow
def test_the_version_is_printed_by_a_process_started_from_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "from fairstream.cli import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fairstream {fairstream.__version__}\n", "")


def test_help_names_the_commands(command: Command) -> None:
    outcome = command("--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert re.search(r"\brun\b.*Evaluate a method", outcome.out)
    assert re.search(r"\bdemo\b.*synthetic stream", outcome.out)
    assert re.search(r"\bcompare\b.*paired", outcome.out)


def test_every_option_is_in_the_help_and_explained(command: Command) -> None:
    outcome = command("run", "--help")
    assert (outcome.code, outcome.err) == (0, "")
    reading = ["group", "advantaged", "seed", "seeds", "device", "json", "quiet", "min-group-size", "n-resamples"]
    learning = ["method", "model", "protocol", "fairness-weight", "surrogate", "temperature"]
    learning += ["n-negatives", "n-fairness-negatives", "set"]
    time = ["pretrain-epochs", "update-epochs", "pretrain-ratio", "n-periods", "period", "restart", "restart-every"]
    for option in reading + learning + time:
        # the name whole, and a word of explanation behind it
        assert re.search(rf"--{option}\s.*[a-z]{{2}}", outcome.out), option


@pytest.mark.parametrize(
    ("name", "options"),
    [("demo", ("seed", "device", "quiet")), ("compare", ("metric", "task", "part", "against", "json", "quiet"))],
)
def test_help_of_the_other_commands(command: Command, name: str, options: tuple[str, ...]) -> None:
    outcome = command(name, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert all(f"--{option} " in outcome.out for option in options)


# ── running ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "protocol"), [("csv", "strict"), ("parquet", "paper")])
def test_a_run_writes_the_result_that_python_gives(command: Command, data: Path, kind: str, protocol: str) -> None:
    options = {"protocol": protocol, "batch_size": 64, "seed": 3, "fairness_weight": 1.5}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    outcome = command("run", data / kind, "--group=community", "--json=result.json", *FAST, *arguments)
    assert (outcome.code, outcome.err, outcome.left) == (0, "", ["result.json"])
    document = json.loads((outcome.folder / "result.json").read_text(), parse_constant=pytest.fail)
    log = fairstream.read_events(STREAM.events, users=STREAM.users, group="community")
    expected = fairstream.run(log, model="mf", **PYTHON, **options)
    list(expected)
    assert [period["t"] for period in document["periods"]] == [1, 2]
    assert document["config"] == expected.config.model_dump(mode="json")
    for part in ("data", "pretrained", "periods", "summary", "slices", "versions"):
        assert document[part] == json.loads(json.dumps(expected.document()[part]))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options", [{"fairness": "largest", "surrogate": "log-likelihood"}, {"surrogate": "approx-ndcg"}]
)
def test_fairness_losses_are_chosen_by_name(command: Command, data: Path, options: dict[str, Any]) -> None:
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    outcome = command("run", data / "csv", "--group=community", "--json=-", *LEAN, *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    document = json.loads(outcome.out)
    assert {name: document["config"][name] for name in options} == options
    assert document["periods"][0]["training"]["fairness_weight"] > 0


@pytest.mark.slow
def test_the_tables_show_both_tasks_and_every_period(command: Command, data: Path) -> None:
    outcome = command("run", data / "csv", "--method=finetune", "--restart-every=2", *FAST)
    assert (outcome.code, outcome.err, outcome.left) == (0, "", [])
    n_users = len(STREAM.events["user_id"].unique())
    groups = "community: majority (advantaged, the larger group of the pre-training data) against minority"
    assert f"2,000 events, {n_users} users, 60 items; {groups}" in " ".join(outcome.out.split())
    for task in ("Task-R", "Task-N"):
        table = outcome.out.partition(task)[2].partition("mean")[0]
        assert re.findall(r"^ +(\d) ", table, flags=re.MULTILINE) == ["0", "1", "2"]


@pytest.mark.slow
def test_the_tables_show_the_numbers_of_the_result(command: Command, data: Path) -> None:
    outcome = command("run", data / "csv", "--json=result.json", *FAST)
    document = json.loads((outcome.folder / "result.json").read_text())
    for period in (document["pretrained"], *document["periods"]):
        assert period["step"] in outcome.out or period["t"] == 0
        for task in period["tasks"].values():
            score = task["ndcg@20"]
            low, high = score["disparity"]["interval"]
            for value in (score["mean"], *score["by_group"].values(), score["disparity"]["null_mean"]):
                assert f"{value:.4f}" in outcome.out
            assert signed(score["performance_disparity"]) in outcome.out
            assert between((low, high), is_signed=True) in outcome.out
    assert list(document["summary"]) == ["event", "next", "remain"]
    for metric, score in document["summary"]["event"].items():  # every metric of the first task, averaged
        assert re.search(rf"^ *{metric} +{score['mean']:.4f} ", outcome.out, flags=re.MULTILINE)
    slices = {"warm_users": "users seen before", "cold_users": "users not seen before", "history_0": "first event"}
    for name, shown in slices.items():
        part = document["slices"]["event"][name]
        assert re.search(rf"{shown}.* {part['ndcg@20']['mean']:.4f} ", outcome.out)
    assert "users without a group" not in outcome.out  # there are none


@pytest.mark.slow
def test_popularity_stands_beside_every_run_and_is_named_where_it_is_not_beaten(command: Command, data: Path) -> None:
    arguments = ("run", data / "csv", "--task=next", "--n-resamples=50")
    outcome = command(*arguments, "--json=result.json", *FAST)
    document = json.loads((outcome.folder / "result.json").read_text())
    assert list(document["baselines"]) == ["popularity", "recent-popularity"]
    mine = document["summary"]["next"]["ndcg@20"]["mean"]
    plain = [option for option in FAST if option != "--set=embedding_dim=8"]  # popularity has no such setting
    for name, baseline in document["baselines"].items():
        alone = command(*arguments, *plain, f"--model={name}", "--method=Finetune", "--json=alone.json")
        found = json.loads((alone.folder / "alone.json").read_text())
        assert found["summary"] == baseline["summary"]
        assert name not in found["baselines"]
        value = baseline["summary"]["next"]["ndcg@20"]["mean"]
        assert re.search(rf"mean +{name.partition('-')[0]} +{value:.4f} ", outcome.out)
        said = rf"{name} \({value:.4f}\) (is better than|cannot be told from) this model \({mine:.4f}\)"
        assert value < mine or re.search(said, " ".join(outcome.out.split()))


@pytest.mark.slow
def test_adver_says_how_well_the_group_can_be_told(command: Command, data: Path) -> None:
    arguments = ("run", data / "csv", "--method=adver", "--set=adversary-weight=5", *LEAN)
    outcome = command(*arguments, "--json=result.json")
    assert (outcome.code, outcome.err) == (0, "")
    document = json.loads((outcome.folder / "result.json").read_text())
    assert document["config"]["adversary_weight"] == 5
    found = document["group_recovery"]
    low, high = found["interval"]
    said = f"accuracy of {found['balanced_accuracy']:.4f} (95 % interval {low:.4f} … {high:.4f}, by chance 0.5000)"
    assert said in " ".join(outcome.out.split())


def marks(out: str) -> list[str]:
    """The mark behind each PD of the first table."""
    return re.findall(r"^ *(?:\d|mean) .*?[+−]0\.\d{4}(.)", out.partition("Task-N")[0], flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("group", "is_chance"), [("taste", False), ("parity", True)])
def test_what_cannot_be_told_from_chance_is_marked(command: Command, data: Path, group: str, is_chance: bool) -> None:
    arguments = (f"--group={group}", "--method=finetune", "--pretrain-epochs=100", "--learning-rate=0.02")
    outcome = command("run", data / "unequal", *FAST, *arguments, "--n-resamples=200", "--json=result.json")
    document = json.loads((outcome.folder / "result.json").read_text())
    results = [period["tasks"]["event"] for period in (document["pretrained"], *document["periods"])]
    means = [run["summary"]["event"] for run in (document, *document["baselines"].values())]
    p_values = [score["ndcg@20"]["disparity"]["p_value"] for score in (*results, *means)]
    assert marks(outcome.out) == ["~" if p_value >= 0.05 else " " for p_value in p_values]
    assert (p_values[len(results)] >= 0.05) == is_chance
    assert "~ not significant (permutation p ≥ 0.05)" in " ".join(outcome.out.split())


@pytest.mark.slow
def test_without_resamples_nothing_is_marked(command: Command, data: Path) -> None:
    outcome = command("run", data / "csv", *SMALL, "--n-periods=3", "--min-group-size=1", "--n-resamples=0")
    assert outcome.code == 0
    assert set(marks(outcome.out)) == {" "}


# ── any number of groups ─────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_seven_groups_have_a_table_of_their_own(command: Command, data: Path) -> None:
    outcome = command("run", data / "people", "--group=age", "--advantaged=25", "--json=result.json", *FAST)
    assert (outcome.code, outcome.err) == (0, "")
    others = ", ".join(str(age) for age in AGES if age != 25)
    assert f"age: 25 (advantaged) against {others}" in " ".join(outcome.out.split())
    document = json.loads((outcome.folder / "result.json").read_text())
    assert (document["data"]["groups"][0], len(document["data"]["groups"])) == ("25", 7)
    score = document["summary"]["event"]["ndcg@20"]
    table = outcome.out.partition("ndcg@20 by age")[2].partition("All metrics")[0]
    rows = re.findall(r"^ *(\d+) +(\d\.\d{4}) .*?([+−]\d\.\d{4})([~ ])", table, flags=re.MULTILINE)
    assert [int(age) for age, *_ in rows] == list(AGES)  # numbers in the order of numbers
    for age, value, gap, mark in rows:
        assert value == f"{score['by_group'][age]:.4f}"
        assert gap == signed(score["gaps"][age]["value"])
        assert (mark == "~") == (score["gaps"][age]["p_value"] >= 0.05)
        assert f"{score['attainable'][age]:.4f}" in table


@pytest.mark.slow
def test_intersections_are_groups_and_small_ones_are_set_aside(command: Command, data: Path) -> None:
    arguments = (
        "--group=gender,age",
        "--json=result.json",
        *SMALL,
        "--n-periods=3",
        "--min-group-size=6",
        "--n-resamples=0",
    )
    outcome = command("run", data / "people", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    document = json.loads((outcome.folder / "result.json").read_text())
    assert set(document["data"]["groups"]) == {f"{gender},{age}" for gender in "FM" for age in AGES}
    aside = {name for period in document["periods"] for name in period["tasks"]["remain"]["excluded_groups"]}
    assert aside
    line = re.search(r"excluded in some period \(fewer than 6 users\): (.*)", " ".join(outcome.out.split()))
    assert line is not None
    assert all(f"{name} (at most" in line[1] for name in aside)


@pytest.mark.slow
def test_many_groups_that_are_too_small_are_one_line(command: Command, tmp_path: Path) -> None:
    people = STREAM.users.append_column("code", pa.array([n % 40 for n in range(len(STREAM.users))]))
    pyarrow.parquet.write_table(STREAM.events, tmp_path / "interactions.parquet")
    pyarrow.parquet.write_table(people, tmp_path / "users.parquet")
    outcome = command("run", tmp_path, "--group=code", "--n-periods=3", "--model=item-item", "--n-resamples=0")
    assert (outcome.code, outcome.err) == (0, "")
    assert re.search(r"\(fewer than 20 users\): \d+ of 40 groups, the largest with", " ".join(outcome.out.split()))
    assert "40 groups" in outcome.out
    assert outcome.out.count("excluded") <= 6
    assert len(outcome.out.splitlines()) < 120


# ── periods ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("period", "ends"),
    [
        ("200", [1200, 1400, 1600, 1800, 2000]),
        ("12.5%", [1200, 1450, 1700, 1950]),
        ("2d", [1200, 1360, 1520, 1680, 1840, 2000]),
    ],
)
def test_a_period_has_the_length_asked_for(command: Command, data: Path, period: str, ends: list[int]) -> None:
    outcome = command(
        "run",
        data / "dated",
        f"--period={period}",
        "--json=result.json",
        *SMALL,
        *SURE,
        "--task=next",
        "--n-resamples=0",
    )
    assert (outcome.code, outcome.err) == (0, "")
    document = json.loads((outcome.folder / "result.json").read_text())
    assert document["data"]["period_ends"] == ends
    assert (document["config"]["period"], document["config"]["n_periods"]) == (period, len(ends) - 1)
    assert len(document["periods"]) == len(ends) - 2


# ── several seeds ────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_several_seeds_write_a_result_each_and_show_their_mean(command: Command, data: Path) -> None:
    arguments = ("run", data / "csv", "--method=finetune", *FAST)
    outcome = command(*arguments, "--seed=3", "--seeds=2", "--json=result.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.left == ["result-seed3.json", "result-seed4.json"]
    documents = [json.loads((outcome.folder / name).read_text()) for name in outcome.left]
    alone = command(*arguments, "--seed=4", "--json=r.json")
    single = json.loads((alone.folder / "r.json").read_text())
    of_another_seed = {"timing": {}, "baselines": {}}  # the rows of popularity are those of the first seed
    assert {**documents[1], **of_another_seed} == {**single, **of_another_seed}
    assert "mean of 2 seeds" in outcome.out
    scores = [document["summary"]["remain"]["ndcg@20"] for document in documents]
    for field in ("mean", "performance_disparity"):
        one, other = (score[field] for score in scores)
        mean = (number if field == "mean" else signed)((one + other) / 2)
        assert re.search(rf"{re.escape(mean)}[~ ]* ± {abs(one - other) / 2**0.5:.4f}", outcome.out)


@pytest.mark.slow
def test_a_folder_that_was_ingested(command: Command, data: Path, tmp_path: Path) -> None:
    fairstream.ingest(data / "csv", tmp_path / "log")
    documents = []
    for name, folder in (("files", data / "csv"), ("log", tmp_path / "log")):
        assert command("run", folder, *LEAN, "--json", tmp_path / f"{name}.json").code == 0
        documents.append(json.loads((tmp_path / f"{name}.json").read_text()))
    assert documents[0]["data"] == documents[1]["data"]
    assert documents[0]["periods"] == documents[1]["periods"]
    (tmp_path / "log" / "items.arrow").unlink()
    broken = command("run", tmp_path / "log", *FAST)
    assert broken.code != 0
    assert "items.arrow is missing" in broken.err


@pytest.mark.slow
def test_single_files_and_other_column_names(command: Command, data: Path, tmp_path: Path) -> None:
    events = STREAM.events.rename_columns(["who", "what", "when"])
    write_folder(tmp_path / "renamed", events=events, users=STREAM.users.rename_columns(["who", "community"]))
    named = ("--user-column=who", "--item-column=what", "--time-column=when")
    found = [
        command("run", data / "csv", "--json=r.json", *LEAN),
        command("run", tmp_path / "renamed", *named, "--json=r.json", *LEAN),
        command(
            "run", data / "csv/interactions.csv", "--users", data / "parquet/users.parquet", "--json=r.json", *LEAN
        ),
    ]
    results = [json.loads((outcome.folder / "r.json").read_text())["periods"] for outcome in found]
    assert results[0] == results[1] == results[2]


def test_advantaged_decides_the_sign(command: Command, data: Path) -> None:
    summaries = []
    for advantaged in ("majority", "minority"):
        arguments = ("--method=Finetune", f"--advantaged={advantaged}", "--json=r.json", *LEAN)
        outcome = command("run", data / "csv", *arguments)
        summaries.append(json.loads((outcome.folder / "r.json").read_text())["summary"]["next"]["ndcg@20"])
    one, other = (summary["performance_disparity"] for summary in summaries)
    assert one == pytest.approx(-other, abs=1e-12)
    assert one != 0


def test_a_pipe_cuts_no_table(capfd: pytest.CaptureFixture[str]) -> None:
    wide = [f"{number}" * 40 for number in range(5)]
    Output().print(Table([*wide, "ndcg@20"], [["●", *wide[1:], "0.1234"]]))
    printed = capfd.readouterr().out
    assert "●" in printed
    assert "0.1234" in printed
    assert "…" not in printed


def test_quiet_prints_nothing(command: Command, data: Path) -> None:
    outcome = command("run", data / "csv", "-q", "--json=result.json", *LEAN)
    assert (outcome.code, outcome.out, outcome.err, outcome.left) == (0, "", "", ["result.json"])


def test_without_a_terminal_there_are_no_bars_and_no_escape_codes(command: Command, data: Path) -> None:
    for arguments in (("run", data / "csv", *LEAN), ("run", data / "csv", "--k=1000"), ("run", "--help")):
        outcome = command(*arguments)
        assert "\x1b" not in outcome.out + outcome.err
        assert "\r" not in outcome.out + outcome.err
        assert "━" not in outcome.out + outcome.err
        assert "epoch" not in outcome.out + outcome.err or "--help" in arguments


def test_a_result_replaces_an_older_one_whole(command: Command, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("older" * 10_000)
    assert command("run", data / "csv", "--json", path, *LEAN).code == 0
    assert json.loads(path.read_text())["config"]["n_periods"] == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


# ── what a user can put right ────────────────────────────────────────────────────────────


BAD = [
    # (folder, arguments, what the sentence must name)
    ("missing folder", [], "missing folder"),
    ("nothing inside", [], "interactions.parquet or interactions.csv"),
    ("without items", [], "item_id.*--item-column"),
    ("csv", ["--user-column=who"], "no column 'who'"),
    ("csv", ["--method=FOO"], "one of Pretrain, .*FADE, .*got 'FOO'"),
    ("csv", ["--model=svd"], "model must be one of .*, got 'svd'"),
    ("csv", ["--model=custom"], r"custom model; pass it again"),
    ("csv", ["--protocol=loose"], "protocol must be strict, paper, or paper with repairs .*, got 'loose'"),
    ("csv", ["--protocol=paper+speed"], "there are leak, ranking, .*got 'paper.speed'"),
    ("csv", ["--min-group-size=0"], "min_group_size must be >= 1, got 0"),
    ("csv", ["--n-resamples=-1"], "n_resamples must be >= 0, got -1"),
    ("csv", ["--period=soon"], "period must be a number of events .*, got 'soon'"),
    ("csv", ["--period=0"], "period must be a number of events .*, got '0'"),
    ("csv", ["--period=900"], "3 periods of 900 are needed .*, but there are 0; choose shorter"),
    ("csv", ["--period=1mo"], "3 periods of 1mo are needed .*, but there are"),
    ("csv", ["--period=1d", "--protocol=paper"], "period goes with strict"),
    ("csv", ["--seeds=2", "--k=1000"], "k must be at most the .* items .*, got 1000"),
    ("csv", ["--seeds=2", "--json=nowhere/result.json"], "could not be written to nowhere/result.json"),
    ("csv", ["--seeds=2", "--group=height"], "no column 'height'"),
    ("people", ["--group=gender,height"], "no column 'height'.*user_id, gender, age"),
    ("people", ["--group=age", "--advantaged=99"], "age = '99'.*'18', '25'"),
    ("unequal", ["--group=item"], "no column 'item'"),
    ("too many groups", ["--group=name"], "at most 100 groups can be compared, but 'name' takes 101 values.*coarser"),
    ("csv", ["--fairness-weight=-1"], "fairness_weight must be >= 0, got -1.0"),
    ("csv", ["--temperature=nan"], "temperature must be a finite number, got nan"),
    ("csv", ["--temperature=0"], "temperature must be >= 1e-06, got 0.0"),
    ("csv", ["--n-negatives=0"], "n_negatives must be >= 1, got 0"),
    ("csv", ["--n-negatives=1000"], "n_negatives"),
    ("csv", ["--learning-rate=1e30"], "diverged.*lower learning_rate"),
    ("csv", ["--seed=-1"], "seed must be >= 0, got -1"),
    ("csv", ["--device=gpu"], "'gpu' is not one of 'auto', 'cpu', 'cuda'"),
    ("csv", ["--n-periods=11"], "n_periods must be at most n_blocks, 10, got 11"),
    ("csv", ["--pretrain-ratio=1"], "pretrain_ratio must be < 1"),
    ("csv", ["--restart=often"], "'--restart': 'often' is not one of 'never', 'on-degradation'"),
    ("csv", ["--restart=on-degradation", "--restart-every=2"], "give one of them"),
    ("csv", ["--group=height"], "no column 'height'.*user_id, community"),
    ("csv", ["--advantaged=tall"], "community = 'tall'.*'majority', 'minority'"),
    ("one group", ["--group=community"], "groups are compared, but 'community' takes 1 value"),
    ("one group", [], "--group COLUMN"),
    ("without users", ["--max-gap=0.1"], "max_gap is about groups of users.*--group COLUMN"),
    ("without users", ["--method=Rerank"], "method Rerank is about groups of users"),
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


@pytest.mark.few(12)
@pytest.mark.parametrize(("folder", "arguments", "named"), BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(
    command: Command, data: Path, folder: str, arguments: list[str], named: str
) -> None:
    before = sorted(data.rglob("*"))
    need_one_sentence(command("run", data / folder, *FAST, "--quiet", *arguments), named)
    assert sorted(data.rglob("*")) == before


def need_one_sentence(outcome: Any, named: str) -> None:
    """A command that could not be carried out."""
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("fairstream: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert not re.search(r"[.!?] [A-Z]", outcome.err)  # one sentence
    assert re.search(named, outcome.err)
    assert outcome.left == []


# ── comparing ────────────────────────────────────────────────────────────────────────────


def write_runs(folder: Path, **runs: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, document in runs.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with stored runs, good and bad; no command may change them."""
    base, rng, groups = tmp_path_factory.mktemp("runs"), np.random.default_rng(0), np.arange(80) % 2
    weak, strong = rng.integers(0, 2, (2, 2, 80)), rng.integers(2, 5, (2, 2, 80))
    methods = {"fade": ("FADE", strong), "finetune": ("Finetune", weak)}
    stored = {
        f"{name}-{seed}": made_run(found[seed], groups, method=method, seed=seed)
        for name, (method, found) in methods.items()
        for seed in range(2)
    }
    write_runs(base / "good", **stored)
    (base / "good" / "notes.txt").write_text("not a run, and not asked for")
    cold = np.arange(80) < 20
    newcomers = {name: made_run(f[0], groups, method=method, is_cold=cold) for name, (method, f) in methods.items()}
    write_runs(base / "newcomers", **newcomers)
    write_runs(base / "one kind", **{name: run for name, run in stored.items() if name.startswith("fade")})
    write_runs(base / "seeds apart", a=stored["fade-0"], b=stored["finetune-1"])
    other = made_run(weak[0], groups, method="Finetune")
    other["data"]["sha256"] = "1" * 64
    write_runs(base / "data apart", a=stored["fade-0"], b=other)
    write_runs(base / "no run", a=stored["fade-0"], b={"verdicts": []})
    write_runs(base / "no json")
    (base / "no json" / "a.json").write_text("{")
    (base / "empty").mkdir()
    return base


@pytest.mark.parametrize("how", ["folder", "files", "both"])
def test_a_comparison_shows_what_python_gives(command: Command, runs: Path, how: str) -> None:
    files = sorted((runs / "good").glob("*.json"))
    asked = {"folder": [runs / "good"], "files": files, "both": [*files, runs / "good"]}[how]
    outcome = command("compare", *asked, "--metric=precision@4", "--against=Finetune", "--json=comparison.json")
    assert (outcome.code, outcome.err, outcome.left) == (0, "", ["comparison.json"])
    expected = fairstream.compare([fairstream.Record.read(file) for file in files], metric="precision@4")
    document = json.loads((outcome.folder / "comparison.json").read_text(), parse_constant=pytest.fail)
    assert document.pop("verdicts") == expected.verdicts()
    assert document == json.loads(json.dumps(asdict(expected)))
    assert [contender.label for contender in expected.contenders] == ["FADE", "Finetune"]
    for contender in expected.contenders:
        row = next(line for line in outcome.out.splitlines() if re.match(rf"[● ]+{contender.label} ", line))
        for part in (contender.performance, contender.disparity):
            assert f"{part.value:.4f}  {part.low:.4f} … {part.high:.4f}" in re.sub(" {2,}", "  ", row)
        assert ("●" in row) == contender.is_on_front
        assert all(f"{value:.4f}" in row for value in contender.by_group.values())
    (difference,) = expected.against("Finetune")
    table = outcome.out.partition("The others minus Finetune")[2]
    for part in (difference.performance, difference.disparity):
        mark = " " if part.excludes_zero else "~"
        assert f"{signed(part.value)}{mark}" in table
        assert between((part.low, part.high), is_signed=True) in table
    assert difference.performance.excludes_zero
    assert not difference.disparity.excludes_zero
    said = " ".join(outcome.out.split())
    assert all(verdict in said for verdict in expected.verdicts())
    assert "FADE wins on performance" in said
    assert "precision@4" in outcome.out
    assert "80 users, 2 seeds" in said


def test_newcomers_can_be_compared_alone(command: Command, runs: Path) -> None:
    n_users = {}
    for part in ("all", "warm", "cold"):
        outcome = command("compare", runs / "newcomers", f"--part={part}", "--task=next", "--json=c.json", "--quiet")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
        document = json.loads((outcome.folder / "c.json").read_text())
        assert (document["part"], document["task"], document["metric"]) == (part, "next", "ndcg@4")
        n_users[part] = document["n_users"]
    assert n_users == {"all": 80, "warm": 60, "cold": 20}


@pytest.mark.slow
def test_runs_that_were_just_written_can_be_compared(command: Command, data: Path, tmp_path: Path) -> None:
    for method in ("FADE", "Pretrain"):
        outcome = command("run", data / "csv", f"--method={method}", "--json", tmp_path / f"{method}.json", *LEAN)
        assert outcome.code == 0
    outcome = command("compare", tmp_path)
    assert (outcome.code, outcome.err, outcome.left) == (0, "", [])
    said = " ".join(outcome.out.split())
    assert "The others minus FADE, on the same users and seeds" in said
    assert re.search("(FADE|Pretrain) (wins|leads) on performance", said)
    assert "On the Pareto front of performance and disparity: " in said
    assert "Regret by group" in said


BAD_COMPARISONS = [
    # (folder or file, arguments, what the sentence must name)
    ("nowhere.json", [], "nowhere.json cannot be read: No such file"),
    ("empty", [], "empty holds no runs"),
    ("no json", [], "a.json is not JSON"),
    ("no run", [], "b.json is not a finished run"),
    ("good/fade-0.json", [], "differ in more than their seed, got 1 of that kind"),
    ("one kind", [], "add runs of another method"),
    ("seeds apart", [], "no seed in common"),
    ("data apart", [], "only runs on the same data can be compared: sha256"),
    ("good", ["--metric=auc"], "metric must be one of ndcg@4, .*, got 'auc'"),
    ("good", ["--task=later"], "'--task': 'later' is not one of 'event', 'moment', 'next', 'remain'"),
    ("good", ["--part=cold"], "no cold users"),
    ("good", ["--against=Retrain"], "against must be one of FADE, Finetune, got 'Retrain'"),
    ("good", ["--json=nowhere/c.json"], "could not be written to nowhere/c.json"),
]


@pytest.mark.parametrize(("folder", "arguments", "named"), BAD_COMPARISONS)
def test_what_cannot_be_compared_is_one_sentence_and_leaves_nothing_behind(
    command: Command, runs: Path, folder: str, arguments: list[str], named: str
) -> None:
    before = sorted(runs.rglob("*"))
    need_one_sentence(command("compare", runs / folder, "--quiet", *arguments), named)
    assert sorted(runs.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "csv", "--seed=x"],
        ["run", "csv", "--seeds=0"],
        ["run", "csv", "--lambda=1"],
        ["compare"],
        ["compare", "csv", "--part=tepid"],
        ["rnu"],
    ],
)
def test_what_click_refuses_is_refused_without_a_traceback(command: Command, arguments: list[str]) -> None:
    outcome = command(*arguments)
    assert outcome.code == 2
    assert outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.slow
def test_the_demo_tells_what_its_table_shows(command: Command) -> None:
    outcome = command("demo")
    assert (outcome.code, outcome.err, outcome.left) == (0, "", [])
    row = re.compile(r" +(recent popularity|MF, updated|blend, \w+) +(.+)")
    rows = {found[1]: found[2].split() for line in outcome.out.splitlines() if (found := row.match(line))}
    assert list(rows) == ["recent popularity", "MF, updated", "blend, kept", "blend, updated", "blend, fair"]
    quality, gap = ({name: float(cells[at]) for name, cells in rows.items()} for at in (0, -2))
    said = " ".join(outcome.out.split())
    assert ("Updating, next to keeping the model, raises" in said) == (
        quality["blend, updated"] > quality["blend, kept"]
    )
    assert ("lowers the disparity" in said) == (gap["blend, fair"] < gap["blend, updated"])
    minority = {name: float(cells[2]) for name, cells in rows.items()}
    assert ("levels down" in said) == (minority["blend, fair"] <= minority["blend, updated"])
