"""Models, periods and lists of a workspace; upgrades, declared groups, ids from standard input, interrupted updates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streams import PERSON, SMALL, named_stream, take_in
from typer.testing import CliRunner, Result

import fairstream
from fairstream.cli import app
from fairstream.cli.console import Interrupted
from fairstream.service import registry, updater, updates
from fairstream.service.api.follower import Follower
from fairstream.service.event_store import EventStore, closed_periods
from fairstream.service.learning import Learning
from fairstream.service.lists import Ask
from fairstream.service.serving import Serving
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace


def cli(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def document(*arguments: object, stdin: str | None = None) -> Any:
    """The only thing on standard output: one JSON document."""
    result = cli(*arguments, "--json", "-", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_models_and_periods_are_listed_a_page_at_a_time(learned: Workspace) -> None:
    rows = registry.models(learned.engine)
    assert len(rows) > 1
    seen, before = [], ()
    for _ in rows:
        page = document("models", learned.folder, "--limit", 1, *before)
        (row,) = page["models"]
        seen.append(row["id"])
        before = ("--before", page["next"])
    assert seen == [row.id for row in rows]
    assert page["next"] is None
    everything = document("models", learned.folder)["models"]
    current = registry.in_service(learned.engine)
    assert current is not None
    assert [row["id"] for row in everything if row["in_service"]] == [current.model]
    printed = cli("models", learned.folder).stdout
    assert all(row.id in printed for row in rows)

    closed = closed_periods(learned.engine)
    first = document("periods", learned.folder, "--limit", 1)
    assert [row["t"] for row in first["periods"]] == [closed[-1].t]
    second = document("periods", learned.folder, "--limit", len(closed), "--before", first["next"])
    assert [row["t"] for row in second["periods"]] == [period.t for period in closed[:-1]]
    assert second["next"] is None
    assert "None yet." not in cli("periods", learned.folder).stdout


def test_lists_are_those_of_the_service(learned: Workspace, tmp_path: Path) -> None:
    serving = Serving()
    Follower(learned, EventStore(learned), serving).poll()
    users = [PERSON, "u1", "nobody ever heard of"]
    ids = tmp_path / "ids"
    ids.write_text(f"{users[1]}\r\n\n{users[2]}\n")
    answers = document("recommend", learned.folder, PERSON, "--ids", ids, "--k", 5)["answers"]
    assert [answer["user_id"] for answer in answers] == users
    for answer in answers:
        expected = serving.current.recommend(answer["user_id"], Ask(5))
        assert [item["item_id"] for item in answer["items"]] == expected.items
        assert (answer["source"], answer["model"]) == (expected.source, expected.model)
    best = answers[0]["items"][0]["item_id"]
    without = document("recommend", learned.folder, PERSON, "--exclude", best)["answers"][0]["items"]
    assert best not in {item["item_id"] for item in without}
    allowed = document("recommend", learned.folder, PERSON, "--only", best)["answers"][0]["items"]
    assert [item["item_id"] for item in allowed] == [best]
    assert f"{PERSON}, by model {expected.model}" in cli("recommend", learned.folder, PERSON).stdout
    assert "give ids of users" in str(cli("recommend", learned.folder).exception)
    assert "does not read times" in str(cli("recommend", learned.folder, PERSON, "--at", "2030-01-01").exception)


def test_a_list_can_be_requested_at_another_moment(new_workspace: Callable[..., Workspace]) -> None:
    learning = Learning(model="sasrec", method="Finetune", model_settings={"embedding_dim": 8}, pretrain_epochs=1)
    workspace = new_workspace(**{**SMALL, "learning": learning})
    take_in(workspace, named_stream()[0][0])
    assert updater.update(workspace).kind == "promoted"
    asked = ("recommend", workspace.folder, PERSON, "--at")
    expected = document(*asked, "2030-01-01T09:00+09:00")
    for same in ("2030-01-01", "20300101", 1_893_456_000):
        assert document(*asked, same) == expected
    for wrong, words in {
        **dict.fromkeys(("", "soon", "nan", "inf", "1e400", "-1", "9999-12-31"), "must be a datetime"),
        **dict.fromkeys(("0", "2020-01-01"), "must not be before the latest known event, 2023-11-"),
    }.items():
        result = cli(*asked, wrong)
        assert isinstance(result.exception, fairstream.ConfigurationError)
        assert words in str(result.exception)
        assert result.stdout == ""


@pytest.mark.slow
def test_ids_come_from_standard_input_where_arguments_would_be_seen(learned: Workspace) -> None:
    by_argument = document("export", learned.folder, PERSON)
    assert document("export", learned.folder, "--ids", "-", stdin=json.dumps([PERSON])) == by_argument
    assert document("export", learned.folder, "--ids", "-", stdin=f"{PERSON}\n") == by_argument
    for wrong in ('["a", 1]', "[a", "a\nb\n"):
        refused = cli("export", learned.folder, "--ids", "-", stdin=wrong)
        assert isinstance(refused.exception, fairstream.ConfigurationError)
    forgotten = document("forget", learned.folder, "--ids", "-", stdin=json.dumps([PERSON]))
    assert (forgotten["n_users"], forgotten["unknown"]) == (1, [])
    assert cli("export", learned.folder, PERSON).exit_code == 4


def test_groups_are_declared_when_a_workspace_is_made(tmp_path: Path) -> None:
    made = document("init", tmp_path / "w", "--group", "gender", "--groups", "F, M", "--advantaged", "M")
    assert (made["groups"], made["advantaged"]) == (["F", "M"], "M")
    assert made["key"].startswith("fs_")
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.config.groups == ["F", "M"]
    refused = cli("init", tmp_path / "v", "--groups", "F,M", "--advantaged", "X")
    assert "advantaged must be one of groups" in str(refused.exception)
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    ("options", "is_noted"), [((), True), (("--advantaged", "X"), False), (("--max-gap", "0.02"), True)]
)
def test_of_three_groups_without_an_advantaged_one_a_workspace_is_told_what_that_means(
    tmp_path: Path, options: tuple[str, ...], is_noted: bool
) -> None:
    said = cli("init", tmp_path / "w", "--group", "gender", "--groups", "F,M,X", *options).stdout
    assert ("3 groups of gender and no advantaged one named" in " ".join(said.split())) is is_noted
    with Workspace.open(tmp_path / "w") as workspace:
        config = workspace.config
    assert config.has_advantaged is ("--advantaged" in options)
    if not config.has_advantaged:
        with pytest.raises(fairstream.ConfigurationError, match="none of F, M, X was named"):
            LiveConfig(group="gender", groups=["F", "M", "X"], learning=Learning(group_weight=2.0))


def test_a_workspace_is_upgraded_by_its_own_command(tmp_path: Path) -> None:
    document("init", tmp_path / "w")
    assert document("upgrade", tmp_path / "w") == {"folder": str(tmp_path / "w"), "upgraded": False}
    assert "`fairstream upgrade" in str(cli("init", tmp_path / "w").exception)
    assert "is not a workspace" in str(cli("upgrade", tmp_path / "nothing").exception)


def test_an_interrupted_update_leaves_the_model_in_service_and_is_not_running(
    learned: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    before = registry.in_service(learned.engine)
    monkeypatch.setattr(updater, "update", interrupted)
    result = cli("update", learned.folder)
    assert isinstance(result.exception, Interrupted)
    assert "the model in service is the one before" in str(result.exception)
    assert registry.in_service(learned.engine) == before
    (last,) = updates.listed(learned.engine, limit=1)
    assert last.state == "interrupted"
