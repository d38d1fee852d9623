"""What docs/how-to/evaluating.md shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import fairstream
from fairstream.cli import COMMANDS, load_command

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "evaluating.md"


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng, users = np.random.default_rng(0), np.arange(90)
    events = fairstream.synthetic_stream(n_users=50, n_items=30, n_events=600, seed=0).events
    tables: dict[str, Any] = {
        "truth": {"user_id": users, "item_id": users % 8},
        "users": {"user_id": users, "gender": np.where(users % 3, "M", "F")},
        "train": events.slice(0, 400),
        "test": events.slice(400),
    }
    for name in ("lists", "als", "bpr"):
        items = np.concatenate([rng.permutation(8)[:3] for _ in users])
        tables[name] = {"user_id": np.repeat(users, 3), "item_id": items, "rank": np.tile([1, 2, 3], len(users))}
    for name, table in tables.items():
        pa.parquet.write_table(pa.table(table), f"{name}.parquet")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["difference"].system == "bpr"
    assert names["scores"].gap.interval == pytest.approx((0.27, 0.66), abs=0.005)
    assert not names["report"].leaks


def test_every_option_of_the_page_exists() -> None:
    known = {option for name in ("evaluate", "leakcheck") for part in load_command(name).params for option in part.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE.read_text())) <= known
    assert set(re.findall(r"fairstream (\w+) \w+\.parquet", PAGE.read_text())) <= set(COMMANDS)
