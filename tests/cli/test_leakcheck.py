"""`fairstream leakcheck`: the sentence, the tables and the JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from fairstream import leakcheck

EVENTS = pa.table({"who": ["a", "a", "b", "b"], "item": [1, 2, 2, 3], "time": [1, 2, 3, 4]})


def test_the_command_says_what_the_function_says(command: Callable[..., Any], tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    pa.csv.write_csv(EVENTS.take([0, 2]), train)
    pa.csv.write_csv(EVENTS.take([1, 3]), test)
    expected = leakcheck(train, test, user_column="who")
    done = command("leakcheck", train, test, "--user-column", "who", "--json", "leaks.json")
    assert (done.code, done.err) == (0, "")
    assert done.out.strip() == str(expected)
    assert json.loads((done.folder / "leaks.json").read_text()) == expected.to_dict()
    printed = command("leakcheck", tmp_path, "--user-column", "who", "--json", "-")
    assert json.loads(printed.out) == expected.to_dict()


def test_a_missing_file_is_one_sentence_and_code_2(command: Callable[..., Any]) -> None:
    done = command("leakcheck", "nowhere.csv", "elsewhere.csv")
    assert (done.code, done.out) == (2, "")
    assert "there is no file nowhere.csv" in done.err
