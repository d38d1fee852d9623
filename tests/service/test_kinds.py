"""Events have kinds: what each counts, how a file names them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import ConfigurationError, DataError
from fairstream.service.event_store import EventStore
from fairstream.service.incoming import batch_from_json
from fairstream.service.settings import FILE, EventKinds, LiveConfig
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
EVENT = {"user_id": "u", "item_id": "i", "time": 0}
SHOP = EventKinds(kinds={"look": 0.5, "buy": 2, "seen": 0, "return": -1}, default="look")


def kinds_of(events: list[dict[str, Any]], kinds: EventKinds) -> list[str]:
    batch = batch_from_json(events, LiveConfig().limits, kinds)
    return list(batch["kind"].to_pylist())


def test_an_event_has_the_kind_that_it_names_or_the_default() -> None:
    assert kinds_of([EVENT, {**EVENT, "kind": None}, {**EVENT, "kind": "buy"}], SHOP) == ["look", "look", "buy"]


@pytest.mark.parametrize("kind", ["purchase", "", "Buy"])
def test_an_unknown_kind_is_refused_with_the_kinds_that_there_are(kind: str) -> None:
    with pytest.raises(DataError, match="event 2: kind must be one of look, buy, seen, return"):
        kinds_of([EVENT, {**EVENT, "kind": kind}], SHOP)


def test_a_view_and_a_purchase_of_one_moment_are_two_events(new_workspace: Maker) -> None:
    workspace = new_workspace()
    events = [{**EVENT, "kind": kind} for kind in ("view", "purchase", "view")]
    store = EventStore(workspace)
    receipt = store.append(batch_from_json(events, workspace.config.limits))
    assert (receipt.accepted, receipt.repeated) == (2, 1)
    assert store.read(0)["kind"].to_pylist() == ["view", "purchase"]


@pytest.mark.sqlite_only
@pytest.mark.parametrize(("column", "given"), [("kind", []), ("Event_Type", []), ("what", ["--kind-column", "what"])])
def test_a_file_names_the_kind_in_a_column(new_workspace: Maker, tmp_path: Path, column: str, given: list[str]) -> None:
    workspace = new_workspace()
    file = tmp_path / "events.csv"
    file.write_text(f"user_id,item_id,time,{column}\na,x,1,view\na,x,1,purchase\nb,y,2,\n")
    result = CliRunner().invoke(app, ["ingest", str(workspace.folder), str(file), *given])
    assert result.exit_code == 0, result.output
    assert EventStore(workspace).read(0)["kind"].to_pylist() == ["view", "purchase", "event"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kinds": {"view": "much"}}, "the weight of 'view' in kinds must be a number, got 'much'"),
        ({"kinds": {"view": True}}, "the weight of 'view' in kinds must be a number, got True"),
        ({"kinds": {"view": float("nan")}}, "must be a number, got nan"),
        ({"kinds": {"a\nb": 1.0}}, "a kind is 1 to 64 letters"),
        ({"kinds": {"view": 0.0, "dislike": -1.0}}, "at least one kind with a weight above 0"),
        ({"kinds": {"view": 1.0}}, "default must name one of the kinds view, got 'event'"),
        ({"repeats": ["food"]}, "repeats must name one of the kinds"),
        ({"judge_by": ["sale"]}, "judge_by must name one of the kinds"),
        ({"judge_by": ["dislike"]}, "judge_by must name kinds with a weight above 0"),
    ],
)
def test_kinds_that_cannot_be_honoured_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        EventKinds(**options)


def test_kinds_of_the_file_are_read_as_they_were_written(new_workspace: Maker) -> None:
    kinds = EventKinds(kinds={"look": 1, "in the cart": 2.5}, default="look", judge_by=("in the cart",))
    workspace = new_workspace(events=kinds)
    assert "[events]" in (workspace.folder / FILE).read_text()
    with Workspace.open(workspace.folder) as again:
        assert again.config.events == kinds
