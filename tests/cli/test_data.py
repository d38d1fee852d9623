"""`fairstream data`, from its arguments to what it prints, writes and leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairstream import read_events
from fairstream.data.datasets.sources import PUBLISHED, SOURCES, Source
from raw_layouts import original, write_1m
from web import Web, address_without_server

Command = Callable[..., Any]


@pytest.fixture
def command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `fairstream data` with these arguments, in an empty folder and with an empty home."""
    monkeypatch.delenv("FAIRSTREAM_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *arguments: command("data", *arguments, folder=tmp_path / "here")


def need_one_sentence(outcome: Any, named: str) -> None:
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("fairstream: ")
    assert outcome.err.count("\n") == 1
    assert named in outcome.err


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", SOURCES)
def test_get_says_what_it_got_and_what_to_do_next(command: Command, web: Web, name: str, tmp_path: Path) -> None:
    content = original(name)
    got = command("get", name, "--url", web.serve("/x", content), "--sha256", sha256(content))
    folder = tmp_path / "home" / "fairstream" / name
    assert got.code == 0
    assert got.out.startswith(f"Prepared {folder}\n")
    assert sha256(content) in got.out
    assert SOURCES[name].terms in got.out
    assert f"fairstream run {name} --group {SOURCES[name].group}" in got.out
    assert "in the paper" not in got.out
    if name == "movielens-100k":
        assert got.err == ""
    else:
        assert got.err.startswith(f"fairstream: warning: the paper's {name} has ")
        assert got.err.count("\n") == 1

    again = command("get", name)
    assert again.code == 0
    assert again.out.startswith(f"Exists already: {folder}\n")
    assert again.out.splitlines()[1:] == got.out.splitlines()[1:]


def test_get_from_a_file_and_to_a_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "df.csv").write_bytes(original("modcloth"))
    got = command("get", "modcloth", "--from", tmp_path / "df.csv", "--data", tmp_path / "to", "--quiet")
    assert (got.code, got.out) == (0, "")
    assert (tmp_path / "to" / "modcloth" / "interactions.parquet").is_file()
    assert not (tmp_path / "home").exists()
    assert command("check", tmp_path / "to" / "modcloth").code == 0


def test_what_cannot_be_got_is_one_sentence_and_leaves_nothing(command: Command, web: Web, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    by_hand = "fairstream data get modcloth --from df_modcloth.csv"
    web.pages.clear()
    need_one_sentence(command("get", "modcloth", "--url", address_without_server() + "/x"), "Connection refused")
    need_one_sentence(command("get", "modcloth", "--url", address_without_server() + "/x"), by_hand)
    need_one_sentence(command("get", "modcloth", "--url", web.address + "/x"), "404")
    need_one_sentence(command("get", "modcloth", "--url", "file:///etc/hostname"), "http:// or https://")
    need_one_sentence(command("get", "movielens-1m", "--url", web.serve("/x", b"x")), "must have the md5")
    need_one_sentence(command("get", "modcloth", "--from", "nowhere.csv"), "there is no file nowhere.csv")
    need_one_sentence(command("get", "netflix"), "'netflix' is not one of 'movielens-1m', 'movielens-100k', 'modcloth'")
    assert sorted(tmp_path.rglob("*")) == before


def test_check_shows_and_writes_what_is_there(command: Command, tmp_path: Path) -> None:
    (tmp_path / "ml-1m").mkdir()
    checked = command("check", write_1m(tmp_path / "ml-1m"), "--json", "found.json")
    assert (checked.code, checked.err) == (0, "")
    for words in (
        "4 events, 3 users, 2 items\n",
        "from 2000-12-31 21:33:33 to 2000-12-31 22:35:09",
        "from 1 to 5, mean 3.17; 4 of 6 are above 2 and count",
        "Repeated pairs of user and item: 0",
    ):
        assert words in checked.out
    table = [line.split() for line in checked.out.splitlines()]
    assert ["gender", "M", "2", "2"] in table
    assert ["F", "1", "2"] in table
    found = json.loads(Path("found.json").read_text())
    assert (found["n_events"], found["paper_dataset"]) == (4, None)
    assert found["group_columns"][0]["values"]["M"] == {"n_users": 2, "n_events": 2}


def test_check_says_so_where_nothing_makes_groups(command: Command) -> None:
    Path("events.csv").write_text("user,item,time,zip\n1,1,1,a\n1,2,2,b\n")
    checked = command("check", "events.csv")
    assert checked.code == 0
    assert "zip (2 values, some users have several of them)" in checked.out
    assert "Groups: no column can make them" in checked.out


def test_what_cannot_be_checked_is_one_sentence(command: Command) -> None:
    need_one_sentence(command("check", "nowhere"), "there is no file or folder nowhere")
    need_one_sentence(command("check", "."), "must hold interactions.parquet")
    need_one_sentence(command("check", "synthetic", "--json", "no/found.json"), "could not be written to no/found.json")
    Path("interactions.csv").write_text("")
    need_one_sentence(command("check", "."), "interactions.csv cannot be read")


@pytest.mark.parametrize("known", PUBLISHED, ids=lambda known: known.name)
def test_the_papers_data_is_called_so(command: Command, known: Source, paper_data: Path) -> None:
    checked = command("check", paper_data / known.name)
    assert f"the counts of the paper's {known.name}" in checked.out


@pytest.mark.parametrize(
    ("name", "options"),
    [("get", ["--data", "--url", "--sha256", "--from", "--force", "--quiet"]), ("check", ["--json", "--quiet"])],
)
def test_help(command: Command, name: str, options: list[str]) -> None:
    told = command(name, "--help")
    assert (told.code, told.err) == (0, "")
    assert all(option in told.out for option in options)


def test_ingest_writes_the_log_that_is_read_from_the_files(command: Command, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "events").mkdir()
    for name, lines in {"a": "1,x,5\n2,y,3\n", "b": "1,x,9\n3,z,4\n"}.items():
        (here / "events" / f"{name}.csv").write_text(f"user,item,time\n{lines}")
    (here / "people.csv").write_text("user,sex\n1,F\n2,M\n3,M\n")
    done = command("ingest", "events", "log", "--users", "people.csv", "--advantaged", "M", "--json", "about.json")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("log: 3 events, 3 users, 3 items\n")
    expected = read_events(here / "events", users=here / "people.csv", advantaged="M")
    assert read_events(here / "log").fingerprint() == expected.fingerprint()
    about = json.loads((here / "about.json").read_text())
    assert (about["n_events"], about["notes"]) == (3, list(expected.notes))
    need_one_sentence(command("ingest", "events", "log"), "exists already")
