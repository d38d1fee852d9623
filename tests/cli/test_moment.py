"""The task `moment` and the note on equal times at the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fairstream as fs

READING = ("--group=community", "--advantaged=majority")
QUICK = ("--model=item-item", "--device=cpu", "--n-periods=3", "--min-group-size=1", "--n-resamples=20")
SAID = "% of the {} have the same time as the user's previous one: the order among them may be that of a file; the task"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic stream whose times are whole days since 1970."""
    stream = fs.synthetic_stream(n_users=60, n_items=40, n_events=1000)
    times = stream.events["time"].to_numpy()
    days = np.floor(times / np.ptp(times) * 100).astype("datetime64[D]") + np.timedelta64(19_000, "D")
    folder = tmp_path_factory.mktemp("data") / "days"
    folder.mkdir()
    pq.write_table(stream.events.set_column(2, "time", [pa.array(days)]), folder / "interactions.parquet")
    pq.write_table(stream.users, folder / "users.parquet")
    return folder


def said(outcome: Any) -> str:
    assert (outcome.code, outcome.err) == (0, "")
    return " ".join(outcome.out.split())


def test_the_data_are_described_with_their_ties(command: Callable[..., Any], data: Path) -> None:
    outcome = command("data", "check", data, "--json=described.json")
    described = json.loads((outcome.folder / "described.json").read_text())
    share = f"{100 * described['n_tied'] / described['n_events']:.1f} "
    assert f"Equal times: {share}{SAID.format('events')}" in said(outcome)


def test_a_run_has_the_task_and_a_note(command: Callable[..., Any], data: Path) -> None:
    outcome = command("run", data, *READING, *QUICK, "--task=event", "--task=moment", "--json=result.json")
    out, document = said(outcome), json.loads((outcome.folder / "result.json").read_text())
    assert "evaluated on each moment of the next period, with all of a user's events at that time" in out
    assert list(document["summary"]) == ["event", "moment"]
    first, *_, last = document["data"]["period_ends"]
    assert f"{100 * document['data']['n_tied'] / (last - first):.1f} {SAID.format('tested events')}" in out


@pytest.mark.slow
def test_every_command_with_a_task_takes_it(command: Callable[..., Any], data: Path, tmp_path: Path) -> None:
    tasks = ("--task=moment", "--task=next", "--store=results", "--workers=1")
    for model in ("item-item", "popularity"):
        said(command("run", data, *READING, *QUICK, f"--model={model}", *tasks, "--explain", folder=tmp_path))
    for name, options in {
        "compare": ("results",),
        "report": ("results",),
        "sweep": (data, *READING, "--grid=model=item-item,popularity", "--set=min-group-size=1", "--set=tasks=moment"),
        "frontier": (data, *READING, "--model=item-item", "--n-updates=2", "--n-resamples=20", "--min-group-size=2"),
    }.items():
        outcome = command(name, *options, "--task=moment", "--json=out.json", folder=tmp_path)
        assert outcome.code == 0, outcome.err
        assert json.loads((tmp_path / "out.json").read_text())["task"] == "moment"
    run = next((tmp_path / "results" / "runs").iterdir())
    for options in ((), ("--between=groups",)):
        assert "at each moment" in said(command("explain", run, *options, "--task=moment", folder=tmp_path))
