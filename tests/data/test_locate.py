"""Prepared data sets are found by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairstream import DataError
from fairstream.data.datasets import locate
from fairstream.data.datasets.sources import data_home


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that is empty."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("FAIRSTREAM_DATA", raising=False)
    return tmp_path / "home"


def put(folder: Path, name: str = "modcloth", suffix: str = "parquet") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / f"interactions.{suffix}").touch()
    return folder / name


def test_a_folder_that_is_given_is_meant_else_the_variable_and_without_it_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home = put(data_home())
    assert locate("modcloth") == at_home
    monkeypatch.setenv("FAIRSTREAM_DATA", str(tmp_path / "named"))
    assert data_home() == tmp_path / "named"
    with pytest.raises(DataError, match=r"modcloth is not in .*named"):
        locate("modcloth")
    named = put(tmp_path / "named")
    assert locate("modcloth") == named
    with pytest.raises(DataError, match="modcloth is not in"):  # other data would be worse than none
        locate("modcloth", tmp_path / "given")
    given = put(tmp_path / "given")
    assert locate("modcloth", tmp_path / "given") == given


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow"])
def test_whatever_can_be_read_is_found(tmp_path: Path, suffix: str) -> None:
    there = put(tmp_path, suffix=suffix)
    assert locate("modcloth", tmp_path) == there


def test_a_folder_without_events_is_not_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "modcloth").mkdir()
    with pytest.raises(DataError) as caught:
        locate("modcloth", tmp_path)
    assert all(word in str(caught.value) for word in (str(tmp_path), "fairstream data get modcloth"))
    assert "\n" not in str(caught.value)


def test_another_data_set_is_not_taken_for_it(tmp_path: Path) -> None:
    put(tmp_path, "movielens-1m")
    with pytest.raises(DataError, match="modcloth is not in"):
        locate("modcloth", tmp_path)
    with pytest.raises(DataError, match=r"are movielens-1m, .*, got '../modcloth'"):
        locate("../modcloth", tmp_path)


def test_the_home_is_where_the_system_says(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_home() == home / ".local" / "share" / "fairstream"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert data_home() == tmp_path / "data" / "fairstream"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # as the standard says
    assert data_home() == home / ".local" / "share" / "fairstream"
