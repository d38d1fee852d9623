"""`fairstream reproduce` on small data under the paper's names, and what it says to bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

import fairstream
from fairstream.data.datasets.sources import SOURCES
from fairstream.experiments.store import Store
from fairstream.pages import rendering
from fairstream.paper.collect import findings_of
from fairstream.paper.settings import DATASETS
from fairstream.paper.timing import TIMED
from stores import contents

pytestmark = pytest.mark.slow

OTHER_VALUE = {"movielens-1m": "F", "modcloth": "Large"}
PART = ("--quick", "--experiment", "trend", "--model", "mf", "--dataset", "modcloth", "--device", "cpu", "--workers", 1)
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both data sets of the paper, by name; the paper's batches of 256 leave one to each period."""
    home = tmp_path_factory.mktemp("data")
    stream = fairstream.synthetic_stream(n_users=120, n_items=150, n_events=7_500)
    for name in DATASETS:
        column, ahead = SOURCES[name].group, SOURCES[name].advantaged
        (home / name).mkdir()
        pq.write_table(stream.events, home / name / "interactions.parquet")
        groups = pc.if_else(pc.equal(stream.users["community"], "majority"), ahead, OTHER_VALUE[name])
        users = stream.users.drop_columns("community").append_column(column, groups)
        pq.write_table(users, home / name / "users.parquet")
    return home


@pytest.fixture
def command(command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`fairstream reproduce` with these arguments in an empty folder: exit code, output, errors."""
    monkeypatch.delenv("FAIRSTREAM_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "nothing"))
    return lambda *arguments: command("reproduce", *arguments, folder=tmp_path)[:3]


def test_it_runs_says_what_it_chose_and_does_nothing_the_second_time(
    command: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = command(*PART, "--data", data, "--seeds", 2)
    assert code == 0, err
    assert "FADE on modcloth MF NDCG@20: fairness_weight = " in out
    assert out.rstrip().endswith("reproduction.html: open it in any browser.")
    assert re.search(r"\nOf \d+ numbers compared with the paper's, \d+ \(\d+\.\d %\) agree; of 38 claims, \d+", out), (
        out
    )
    assert "<html" in (tmp_path / "reproduction.html").read_text()
    store = Store(tmp_path / "reproduction")
    plan = store.note("plan")
    assert plan is not None
    assert sorted(row["id"] for row in plan["runs"]) == store.ids()
    seeds = [row["seed"] for row in plan["runs"]]
    assert seeds.count(0) == 2 + 3 + 1  # Retrain, Finetune, three λ of FADE and one of Retrain-Fair
    assert 2 < seeds.count(1) <= seeds.count(0)
    before = contents(store)
    assert {name.partition("/")[0] for name in before} == {"runs", "plan.json"}
    chosen = {(choice.method, choice.metric) for choice in findings_of(store.folder).choices}
    assert chosen == {(method, metric) for method in ("FADE", "Retrain-Fair") for metric in ("NDCG@20", "F1@20")}
    stamps = {path: path.stat().st_mtime_ns for path in (store.folder / "runs").iterdir()}
    assert command(*PART, "--data", data, "--seeds", 2)[0] == 0
    assert contents(store) == before
    assert {path: path.stat().st_mtime_ns for path in (store.folder / "runs").iterdir()} == stamps
    found = findings_of(store.folder)
    assert (found.n_missing, found.seeds, found.quick) == (0, (0, 1), True)
    verdicts = {claim.text: claim.verdict for claim in found.claims}
    assert verdicts["FADE has a smaller |PD| than Finetune (by 48.91 % on average)"] != "not tested"
    # Without the extra it writes no page, and names none, although an older one exists.
    with monkeypatch.context() as without:
        without.setattr(rendering, "find_spec", lambda name: None)
        code, out, err = command(*PART, "--data", data, "--seeds", 2, "--json", "-")
    assert (code, json.loads(out)["page"]) == (0, None), err
    # A store of another kind is not mixed with.
    for other in (("--protocol", "strict"), ()):
        code, _, err = command(*(PART if other else PART[1:]), "--data", data, *other)
        assert code == 2
        assert one_sentence(err)
        assert "was started with" in err
        assert contents(store) == before


@pytest.mark.slow
def test_times_are_measured_once_and_change_nothing_else(command: Command, data: Path, tmp_path: Path) -> None:
    timed = (*PART[:2], "time", *PART[3:], "--data", data)
    assert command(*timed)[0] == 0
    store = Store(tmp_path / "reproduction")
    times = store.note("running_times") or {}
    assert len(times) == len(TIMED)
    assert contents(store).keys() == {"plan.json"}
    for measured in times.values():
        assert measured["periods"] == list(range(1, 7))  # MF at the paper's settings, also in a quick look
        assert len(measured["update_s"]) == len(measured["periods"])
        assert ("rerank_s" in measured) == (measured["method"] == "Rerank")
        assert all(seconds > 0 for seconds in measured["update_s"])
    assert command(*timed)[0] == 0
    assert store.note("running_times") == times
    claims = [claim for claim in findings_of(store.folder).claims if claim.unit == "×"]
    assert {claim.verdict for claim in claims}.isdisjoint({"not tested"})


def one_sentence(err: str) -> bool:
    return err.startswith("fairstream: ") and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--experiment", "everything"), "--experiment takes observation, tradeoff, "),
        pytest.param(
            ("--device", "cuda"),
            "PyTorch finds no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        (("--protocol", "best"), "protocol must be strict, paper, or paper with repairs"),
        (("--store", "file"), "the store file cannot be written to: "),
        (("--data", "nowhere"), "is not in nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    command: Command, data: Path, tmp_path: Path, arguments: tuple[str, str], sentence: str
) -> None:
    (tmp_path / "file").touch()
    where = () if arguments[0] == "--data" else ("--data", data)
    part = ("--experiment", "tau", "--quick", "--device", "cpu")
    code, out, err = command(*part, *where, *arguments)
    assert code == 2
    assert one_sentence(err)
    assert sentence in err
    assert out == ""
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


@pytest.mark.parametrize("arguments", [("--dataset", "netflix"), ("--model", "svd"), ("--device", "tpu")])
def test_a_choice_that_does_not_exist_is_a_usage_error(
    command: Command, tmp_path: Path, arguments: tuple[str, str]
) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert f"'{arguments[1]}' is not one of" in err
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_use_is_left_alone(command: Command, data: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "reproduction")
    with store.writing():
        code, _, err = command(*PART, "--data", data)
    assert (code, one_sentence(err)) == (2, True)
    assert "another process is writing to the store reproduction" in err
    assert contents(store) == {}
