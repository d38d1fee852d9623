"""Updates as rows: one at a time, due by the database alone, and none left open by a process that died."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy import update as sql_update
from streams import SMALL, at_random, know, named_stream, take_in
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.service import schema, updates
from fairstream.service.audit import verify
from fairstream.service.database import now, writing
from fairstream.service.event_store import closed_periods, split_of
from fairstream.service.records import Update
from fairstream.service.registry import in_service, models, n_unpromoted, promote, rollback
from fairstream.service.settings import Every, LiveConfig
from fairstream.service.status import Status
from fairstream.service.workspace import UpdatingError, Workspace
from live_services import wait_until

Maker = Callable[..., Workspace]
PERIODS, PEOPLE = named_stream()
MINUTE, DAY = 60_000_000, 86_400_000_000
DAILY = Every(86_400, "seconds")


def set_row(workspace: Workspace, update_id: str, **values: object) -> None:
    with writing(workspace.engine) as connection:
        connection.execute(sql_update(schema.updates).where(schema.updates.c.id == update_id).values(**values))


@contextmanager
def clock_at(at: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(updates, "now_of", lambda _: at)
        yield


def ended(workspace: Workspace, state: str, at: int, by: str = "test") -> Update:
    """An update that was requested and ended at a time of the test's choice."""
    with clock_at(at):
        found = updates.request(workspace, by)
    set_row(workspace, found.id, state=state, finished=at)
    return updates.get(workspace.engine, found.id)


def is_due(workspace: Workspace, every: Every, at: int) -> bool:
    """Whether one is queued; it is taken away again."""
    with clock_at(at):
        found = updates.request_if_due(workspace, every, "schedule")
    if found is not None:
        with writing(workspace.engine) as connection:
            connection.execute(schema.updates.delete().where(schema.updates.c.id == found.id))
    return found is not None


def test_an_update_ends_with_its_state_reason_period_and_model(learned: Workspace) -> None:
    take_in(learned, PERIODS[2])
    queued = updates.request(learned, "key shop")
    assert (queued.state, queued.requested_by, queued.started) == ("queued", "key shop", None)
    with pytest.raises(updates.UpdateRunning, match=queued.id) as refused:
        updates.request(learned, "another")
    assert refused.value.update_id == queued.id
    done = updates.run(learned, queued.id)
    assert (done.state, done.reason, done.t) == ("promoted", "all checks passed", 2)
    assert done.model == in_service(learned.engine).model
    assert done.requested <= done.started <= done.finished
    with pytest.raises(WorkspaceError, match="not queued any more"):
        updates.run(learned, queued.id)
    again = updates.run(learned)
    assert (again.state, again.t, again.model) == ("skipped", None, None)
    assert "stays open" in str(again.reason)
    assert [row.id for row in updates.listed(learned.engine)] == [again.id, done.id]


def test_of_many_that_look_at_once_exactly_one_gets_the_update(learned: Workspace) -> None:
    take_in(learned, PERIODS[2].slice(0, 10))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: updates.request_if_due(learned, Every(10, "events"), f"serve {n}"), range(16)))
    assert len([each for each in found if each is not None]) == 1
    assert len(updates.listed(learned.engine)) == 1


def test_a_row_left_running_by_a_dead_process_is_failed(learned: Workspace) -> None:
    dead = updates.request(learned, "test")
    set_row(learned, dead.id, state="running", started=now())
    with learned.updating(), pytest.raises(updates.UpdateRunning):
        updates.request(learned, "while its process lives")
    following = updates.request(learned, "after it has died")
    left = updates.get(learned.engine, dead.id)
    assert (left.state, left.reason) == ("failed", "the process ended before the update did")
    assert left.finished is not None
    with clock_at(now() + 2 * MINUTE):
        updates.fail_dead(learned)
    assert updates.get(learned.engine, following.id).reason == "no process started it within 60 seconds"


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_a_row_that_the_next_update_closes(learned: Workspace) -> None:
    take_in(learned, PERIODS[2])
    queued = updates.request(learned, "test")
    script = (
        "import os, signal, sys; from pathlib import Path; from fairstream.service import updates; "
        "from fairstream.service.workspace import Workspace; "
        "updates.run(Workspace.open(Path(sys.argv[1])), sys.argv[2], lambda said: os.kill(os.getpid(), signal.SIGKILL))"
    )
    command = [sys.executable, "-c", script, str(learned.folder), queued.id]
    assert subprocess.run(command, env=os.environ, check=False).returncode == -9
    assert updates.get(learned.engine, queued.id).state == "running"

    def is_closed() -> bool:  # PostgreSQL learns a moment later that the process is gone
        updates.fail_dead(learned)
        return updates.get(learned.engine, queued.id).state == "failed"

    wait_until(is_closed)
    assert updates.run(learned).state == "promoted"


def test_a_schedule_of_time_counts_from_any_update_whoever_ran_it(new_workspace: Maker) -> None:
    workspace, start = new_workspace(), now()
    assert not is_due(workspace, DAILY, start + 2 * DAY)  # no event waits
    take_in(workspace, PERIODS[0].slice(0, 5))
    assert not is_due(workspace, DAILY, start + DAY // 2)
    assert is_due(workspace, DAILY, start + DAY + MINUTE)
    ended(workspace, "skipped", start + DAY, by="an admin")
    assert not is_due(workspace, DAILY, start + 2 * DAY - MINUTE)
    assert is_due(workspace, DAILY, start + 2 * DAY)


def test_a_schedule_of_events_is_not_repeated_at_once_after_a_skip(new_workspace: Maker) -> None:
    workspace, every = new_workspace(), Every(20, "events")
    take_in(workspace, PERIODS[0].slice(0, 19))
    assert not is_due(workspace, every, now())
    take_in(workspace, PERIODS[0].slice(19, 1))
    assert is_due(workspace, every, now())
    ended(workspace, "skipped", now())
    take_in(workspace, PERIODS[0].slice(20, 19))
    assert not is_due(workspace, every, now())
    take_in(workspace, PERIODS[0].slice(39, 1))
    assert is_due(workspace, every, now())


@pytest.mark.parametrize("every", [DAILY, Every(1, "events")])
def test_after_a_failure_it_is_tried_again_after_a_minute_then_two(new_workspace: Maker, every: Every) -> None:
    workspace, at = new_workspace(), now() + DAY
    take_in(workspace, PERIODS[0].slice(0, 5))
    for minutes in (1, 2, 4):
        ended(workspace, "failed", at)
        assert not is_due(workspace, every, at + minutes * MINUTE - 1)
        at += minutes * MINUTE
        assert is_due(workspace, every, at)


def test_a_short_schedule_retries_no_later_than_it_would_anyway(new_workspace: Maker) -> None:
    workspace, at = new_workspace(), now()
    take_in(workspace, PERIODS[0].slice(0, 5))
    ended(workspace, "failed", at)
    assert is_due(workspace, Every(5, "seconds"), at + 5_000_000)


def test_a_time_of_day_is_due_once_a_day(new_workspace: Maker) -> None:
    workspace, every = new_workspace(), Every.parse("1d at 03:00")
    three = (now() // DAY + 2) * DAY + 180 * MINUTE
    take_in(workspace, PERIODS[0].slice(0, 5))
    ended(workspace, "skipped", three - DAY + 5 * MINUTE)
    assert not is_due(workspace, every, three - MINUTE)
    assert is_due(workspace, every, three)
    ended(workspace, "skipped", three + MINUTE)
    assert not is_due(workspace, every, three + DAY - MINUTE)
    assert is_due(workspace, every, three + DAY)


def test_one_wrong_clock_does_not_stop_the_schedule(new_workspace: Maker) -> None:
    workspace, at = new_workspace(), now()
    take_in(workspace, PERIODS[0].slice(0, 5))
    ended(workspace, "skipped", at + 30 * DAY)
    assert is_due(workspace, DAILY, at)
    ended(workspace, "skipped", at)
    assert not is_due(workspace, DAILY, at + DAY // 2)  # the newest row is the last requested, not the latest dated
    assert is_due(workspace, DAILY, at + DAY)
    with clock_at(at + 30 * DAY):
        ahead = updates.request(workspace, "a machine with a wrong clock")
    with clock_at(at + DAY):
        updates.fail_dead(workspace)
    assert updates.get(workspace.engine, ahead.id).reason == "no process started it within 60 seconds"


def test_an_update_that_was_interrupted_is_due_again_and_counts_towards_no_alert(new_workspace: Maker) -> None:
    workspace, at = new_workspace(), now()
    take_in(workspace, PERIODS[0].slice(0, 5))
    ended(workspace, "interrupted", at + DAY)
    assert is_due(workspace, DAILY, at + DAY + MINUTE)
    assert n_unpromoted(workspace.engine) == 0


def test_a_schedule_that_cannot_be_read_is_refused_with_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match='every must be like "1d"'):
        LiveConfig(every="banana")
    (tmp_path / "fairstream.toml").write_text('every = "0s"\n')
    with pytest.raises(ConfigurationError, match="every must be"):
        LiveConfig.read(tmp_path)


def test_pages_of_updates_models_and_periods_cover_all_of_them_once(learned: Workspace) -> None:
    made = [ended(learned, "skipped", 10**15 + n // 2).id for n in range(5)]  # two at the same time
    for limit in (1, 2, 3):
        seen: list[str] = []
        while page := updates.listed(learned.engine, before=seen[-1] if seen else None, limit=limit):
            assert len(page) <= limit
            seen += [row.id for row in page]
        assert sorted(seen) == sorted(made)
    with pytest.raises(WorkspaceError, match="none of the updates has this id"):
        updates.listed(learned.engine, before="nonesuch")
    newest, oldest = models(learned.engine)
    assert models(learned.engine, limit=1) == [newest]
    assert models(learned.engine, before=newest.id, limit=5) == [oldest]
    first, second = closed_periods(learned.engine)
    assert closed_periods(learned.engine, limit=1) == [second]
    assert closed_periods(learned.engine, before=1, limit=5) == [first]
    assert closed_periods(learned.engine, after=-1, limit=1) == [first]


@pytest.mark.sqlite_only  # on PostgreSQL a damaged folder is fetched again
def test_exit_codes_tell_how_an_update_ended(learned: Workspace) -> None:
    def run(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["update", str(learned.folder), *options])
        return done.exit_code, done.output

    code, said = run()
    assert code == 4
    assert "skipped: the period stays open" in said
    take_in(learned, PERIODS[2])
    assert run("--quiet") == (0, "")
    take_in(learned, at_random(PERIODS[3]))
    queued = updates.request(learned, "test").id
    code, said = run("--id", queued, "--quiet")
    assert code == 3
    assert f"Update {queued} rejected: on this period's events the model in service does" in said
    take_in(learned, PERIODS[4])
    for name in learned.models.names():
        (learned.models.path(name) / "manifest.json").write_text("{")
    code, said = run("--quiet")
    assert code == 5
    assert "damaged" in said or "cannot" in said
    assert [row.state for row in updates.listed(learned.engine)] == ["failed", "rejected", "promoted", "skipped"]


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["rollback", "promote"])
def test_a_decision_by_hand_waits_for_no_update_and_no_update_undoes_it(learned: Workspace, how: str) -> None:
    second, first = models(learned.engine)
    files = learned.models.names()
    take_in(learned, PERIODS[2])
    decided: list[str] = []

    def decide(_: str) -> None:  # while the update trains
        if not decided:
            rollback(learned, by="test") if how == "rollback" else promote(learned, first.id, by="test")
            decided.append(how)

    done = updates.run(learned, say=decide)
    assert (done.state, done.t, done.model) == ("skipped", None, None)
    assert f"model {first.id} was put into service instead of {second.id} while the update ran" in str(done.reason)
    assert in_service(learned.engine).model == first.id
    assert (models(learned.engine), learned.models.names()) == ([second, first], files)
    assert len(closed_periods(learned.engine)) == 2
    following = updates.run(learned)
    assert (following.state, following.t) == ("promoted", 2)
    assert models(learned.engine)[0].parent == first.id
    assert closed_periods(learned.engine)[2].n_events == len(PERIODS[2])
    assert verify(learned.engine) > 0


def test_an_update_waits_for_a_forgetting_to_end(learned: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "_LOCK_SECONDS", 0.0)
    queued = updates.request(learned, "test")
    with learned.updating():
        done = updates.run(learned, queued.id)
        with pytest.raises(UpdatingError, match="another process"):
            updates.run(learned)
    assert done.state == "failed"
    assert "another process" in str(done.reason)
    assert updates.run(learned).state == "skipped"
    assert len(updates.listed(learned.engine)) == 2


def test_an_interrupt_while_an_update_waits_ends_its_row(learned: Workspace) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    queued = updates.request(learned, "test")
    with learned.updating(), pytest.MonkeyPatch.context() as patched:
        patched.setattr("fairstream.service.workspace.time.sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            updates.run(learned, queued.id)
    (left,) = updates.listed(learned.engine)
    assert left.state == "interrupted"


class Killed(BaseException):
    """Nothing handles it, as nothing handles SIGKILL; the locks end."""


def test_an_update_that_is_killed_before_any_of_its_transactions_does_not_keep_the_next_one_waiting(
    learned: Workspace,
) -> None:
    for n in itertools.count():
        connections = itertools.count()

        def kill(*_: object, n: int = n, connections: Iterator[int] = connections) -> None:
            if next(connections) == n:
                raise Killed

        event.listen(learned.engine, "engine_connect", kill)
        try:
            updates.run(learned)
        except Killed:
            pass
        else:
            break
        finally:
            event.remove(learned.engine, "engine_connect", kill)
        assert updates.run(learned).state == "skipped"
    assert n > 5
    assert {row.state for row in updates.listed(learned.engine)} == {"skipped", "failed"}


def spoil(workspace: Workspace, model_id: str) -> None:
    """Make a checkpoint one of an older format."""
    manifest = workspace.folder / "models" / model_id / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 3}))


@pytest.mark.sqlite_only  # on PostgreSQL a damaged folder is fetched again
def test_without_the_model_in_service_an_update_starts_from_its_parent_and_learns_again(learned: Workspace) -> None:
    second, first = models(learned.engine)
    spoil(learned, second.id)
    take_in(learned, PERIODS[2])
    done = updates.run(learned)
    assert done.state == "promoted", done
    assert f"model {second.id} cannot be updated: " in str(done.reason)
    assert f"the candidate descends from model {first.id} instead" in str(done.reason)
    newest = models(learned.engine)[0]
    assert newest.parent == first.id
    parts = [split_of(learned, period) for period in closed_periods(learned.engine)]
    n_learned = len(parts[0].held_out) + len(parts[1].counted) + len(parts[2].learned)
    assert newest.about["n_learned"] == n_learned


@pytest.mark.sqlite_only
def test_without_any_model_a_first_one_is_made_of_all_stored_events(learned: Workspace) -> None:
    for row in models(learned.engine):
        spoil(learned, row.id)
    take_in(learned, PERIODS[2])
    done = updates.run(learned)
    assert done.state == "failed"
    assert "has checkpoint format 3, this version reads 6, and no earlier one can; make a first model" in done.reason
    assert done.reason.endswith("`fairstream update DIR --afresh`")
    said = CliRunner().invoke(app, ["update", str(learned.folder), "--afresh"])
    assert said.exit_code == 0, said.output
    newest = models(learned.engine)[0]
    assert (newest.parent, newest.state, newest.id) == (None, "promoted", in_service(learned.engine).model)
    parts = [split_of(learned, period) for period in closed_periods(learned.engine)]
    assert newest.about["n_learned"] == len(PERIODS[0]) + len(PERIODS[1]) + len(parts[2].learned)
    take_in(learned, PERIODS[3])
    assert updates.run(learned).state == "promoted"


def test_a_shop_without_events_is_skipped(new_workspace: Maker) -> None:
    workspace = new_workspace(**SMALL)
    know(workspace, PEOPLE)
    assert updates.run(workspace).state == "skipped"


def test_status_says_what_answers_how_the_last_update_ended_and_what_waits(learned: Workspace) -> None:
    def status(*options: str) -> str:
        done = CliRunner().invoke(app, ["status", str(learned.folder), *options], catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    take_in(learned, PERIODS[2].slice(0, 7))
    done = updates.run(learned)
    said = status()
    assert f"Model {in_service(learned.engine).model} has been in service since" in said
    assert f"Last update {done.id}" in said
    assert "skipped: the period stays open" in said
    assert "7 events wait for the next update (on request)." in said
    assert "in a row" not in said
    found = json.loads(status("--json", "-"))
    assert (found["n_waiting"], found["unpromoted_in_a_row"], found["n_periods"]) == (7, 1, 2)
    assert found["last_update"]["state"] == "skipped"
    assert found["ndcg"] > 0


def test_status_of_a_new_workspace(new_workspace: Maker) -> None:
    said = " ".join(Status.of(new_workspace()).sentences())
    assert said == (
        "No model is in service yet: recommendations are by popularity. 0 events wait for the next update (on request)."
    )
