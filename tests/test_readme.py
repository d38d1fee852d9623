"""What the README and the page that it leads to first show runs as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

import fairstream
from fairstream.cli import COMMANDS, load_command

ROOT = Path(__file__).parents[1]
README, RECOMMENDING = ROOT / "README.md", ROOT / "docs" / "how-to" / "recommending.md"


def python_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def test_the_python_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = python_of(README)
    exec(block, {})
    assert sum(1 for line in block.splitlines() if line) == 10
    assert "ndcg@20" in capsys.readouterr().out
    assert (tmp_path / "model" / "manifest.json").is_file()


@pytest.mark.slow
def test_the_python_of_the_page_on_recommending_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = fairstream.synthetic_stream(
        n_users=150, n_items=50, n_events=2400, new_user_share=0.0, new_item_share=0.0, disadvantaged_share=0.4, seed=0
    )
    seconds = pc.cast(pc.floor(pc.add(pc.multiply(stream.events["time"], 1e6), 1.6e9)), pa.int64())
    events = stream.events.set_column(2, "time", pc.cast(seconds, pa.timestamp("s")))
    gender = pc.if_else(pc.equal(stream.users["community"], "majority"), "M", "F")
    pyarrow.parquet.write_table(events.slice(0, 2000), tmp_path / "events.parquet")
    pyarrow.parquet.write_table(stream.users.append_column("gender", gender), tmp_path / "users.parquet")
    items = pc.unique(events["item_id"])
    described = pa.table({"item_id": items, "title": [f"Film {item}" for item in items.to_pylist()]})
    pyarrow.parquet.write_table(described, tmp_path / "items.parquet")
    monkeypatch.chdir(tmp_path)
    blocks = python_of(RECOMMENDING)
    assert len(blocks) >= 6
    names: dict[str, Any] = {
        "new_events": events.slice(2000, 200),
        "more_events": events.slice(2200),
        "events_of_this_year": events.slice(500),
    }
    for block in blocks:
        exec(block, names)
    assert (tmp_path / "model" / "manifest.json").is_file()


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/recommending.md", "docs/how-to/experiments.md"])
def test_every_option_that_the_page_names_exists(page: str) -> None:
    known = {"--help", *(option for name in COMMANDS for option in options_of(load_command(name)))}
    assert set(re.findall(r"--[a-z][a-z0-9-]+", (ROOT / page).read_text())) <= known


def options_of(command: Any) -> Iterator[str]:
    """The names of all options of a command and of those below it."""
    for option in command.params:
        yield from option.opts
    for below in getattr(command, "commands", {}).values():
        yield from options_of(below)
