"""`fairstream evaluate`: tables of lists in files, the same numbers as from Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fairstream import evaluate_recommendations


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("lists"), np.random.default_rng(0)
    users = np.arange(90)
    for name in ("als", "bpr"):
        items = np.concatenate([rng.permutation(8)[:3] for _ in users])
        lists = {"user_id": np.repeat(users, 3), "item_id": items, "place": np.tile([1, 2, 3], len(users))}
        pa.parquet.write_table(pa.table(lists), folder / f"{name}.parquet")
    pa.csv.write_csv(pa.table({"user_id": users, "item_id": users % 8}), folder / "truth.csv")
    pa.csv.write_csv(pa.table({"user_id": users, "gender": np.where(users % 3, "M", "F")}), folder / "people.csv")
    return folder


def test_the_command_says_what_the_function_says(command: Callable[..., Any], files: Path) -> None:
    given = ["--users", files / "people.csv", "--group", "gender", "--k", 3, "--rank-column", "place"]
    done = command("evaluate", files / "als.parquet", files / "truth.csv", *given, "--json", "result.json")
    assert (done.code, done.err) == (0, "")
    options: dict[str, Any] = {"users": files / "people.csv", "group": "gender", "k": 3, "rank_column": "place"}
    expected = evaluate_recommendations(files / "als.parquet", files / "truth.csv", **options)
    assert done.out.strip() == str(expected)
    assert json.loads((done.folder / "result.json").read_text()) == expected.to_dict()


def test_several_systems_are_compared_under_the_names_of_their_files(command: Callable[..., Any], files: Path) -> None:
    given = ["--compare", files / "bpr.parquet", "--metric", "hit@2", "--rank-column", "place", "--json", "-"]
    done = command("evaluate", files / "als.parquet", files / "truth.csv", *given)
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert list(result["systems"]) == ["als", "bpr"]
    assert [part["metric"] for part in result["differences"]] == ["hit@2"] * 2
    means = [result["systems"][name]["metrics"]["hit@2"]["mean"] for name in ("als", "bpr")]
    assert result["differences"][0]["mean"]["value"] == pytest.approx(means[0] - means[1])


def test_the_same_file_twice_is_refused(command: Callable[..., Any], files: Path) -> None:
    lists = files / "als.parquet"
    done = command("evaluate", lists, files / "truth.csv", "--compare", lists, "--rank-column", "place")
    assert done.code == 2
    assert "needs its own file" in done.err
