"""Experiments: arms, steps, decisions and rollbacks, with people whose clicks depend on what they were shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select
from streams import know
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import WorkspaceError
from fairstream.service import experiments, looks, registry, schema, updates
from fairstream.service.arms import Arms, encode, interleave
from fairstream.service.audit import entries, verify
from fairstream.service.database import now, writing
from fairstream.service.event_store import EventStore
from fairstream.service.experiments import Experiment, Options, start, stop
from fairstream.service.impressions import Shown, store
from fairstream.service.incoming import batch_from_json
from fairstream.service.looks import Served, look
from fairstream.service.records import UnknownIdError
from fairstream.service.settings import Every, Privacy
from fairstream.service.status import Status
from fairstream.service.tally import Tally
from fairstream.service.workspace import Workspace
from live_services import add_model

NewWorkspace = Callable[..., Workspace]
_ITEMS = [f"i{n}" for n in range(10)]


class Shop:
    """A workspace with two models, and people who see ten items a visit and click some."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self._tally, self._n, self._rng = workspace, Tally(workspace), 0, np.random.default_rng(7)
        self.b = add_model(workspace, seed=0)
        self.a = add_model(workspace, seed=1)

    def start(self, **options: Any) -> Experiment:
        return start(self.workspace, Options(**{"b": self.b, "steps": [0.5], "step_hours": 0, **options}), by="test")

    def visit(self, n_users: int, rates: tuple[float, float], odd: tuple[float, float] | None = None) -> None:
        """New people come; each clicks with the rate of the list's arm, and of an interleaved list's teams.

        `odd` are the rates of every second one, who belong to the group "odd".
        """
        experiment = experiments.get(self.workspace.engine)
        arms, moment = experiment.arms(self.workspace.secret), now()
        lists, events = [], []
        for _ in range(n_users):
            self._n += 1
            user, list_id = f"p{self._n}", None
            if experiment.mode == "interleave":
                drafted = interleave(_ITEMS, _ITEMS[::-1], 10, b_first=bool(self._rng.integers(2)))
                items, list_id = [item for item, _, _ in drafted], encode(experiment.id, drafted)
            else:
                items = _ITEMS
            shown = Shown(user, items, moment - 1000, list_id)._replace(**arms.stamp(user, items, list_id))
            lists.append(shown)
            teams = shown.arms if shown.arms.islower() else shown.arms * len(items)
            for item, team in zip(items, teams, strict=False):
                own = odd if odd is not None and self._n % 2 else rates
                if self._rng.random() < own["AB".index(team.upper())]:
                    events.append({"user_id": user, "item_id": item, "time": moment / 1e6, "kind": "click"})
        users = [shown.user_id for shown in lists]
        values = [["even", "odd"][int(user[1:]) % 2] for user in users]
        know(self.workspace, pa.table({"user_id": users, "value": values}))
        store(self.workspace, [lists])
        config = self.workspace.config
        if events:
            EventStore(self.workspace).append(batch_from_json(events, config.limits, config.events))
        self._tally.count()
        self._tally.count()
        look(self.workspace)

    def status(self) -> Experiment:
        return experiments.get(self.workspace.engine)


@pytest.fixture
def shop(new_workspace: NewWorkspace) -> Shop:
    return Shop(new_workspace())


# ── arms ─────────────────────────────────────────────────────────────────────────────────


def arms_of(share: float, mode: Any = "split", n: int = 4000) -> dict[str, str]:
    arms = Arms("x1", mode, "a", "b", share, b"secret")
    return {f"u{n}": arms.arm_of(f"u{n}") for n in range(n)}


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_as_many_users_are_compared_as_get_b(share: float) -> None:
    counts = Counter(arms_of(share).values())
    for arm in "AB":
        assert counts[arm] == pytest.approx(4000 * share, abs=4 * np.sqrt(4000 * share))


def test_nobody_changes_sides_when_the_share_grows() -> None:
    before = arms_of(0.01)
    for share in (0.1, 0.5):
        after = arms_of(share)
        assert all(after[user] == arm for user, arm in before.items() if arm)
        before = after
    assert set(before.values()) == {"A", "B"}


def test_another_experiment_or_secret_draws_other_users() -> None:
    one, *others = (
        [Arms(name, "split", "a", "b", 0.5, key).arm_of(f"u{n}") for n in range(1000)]
        for name, key in (("x1", b"k"), ("x2", b"k"), ("x1", b"l"))
    )
    for other in others:
        assert np.mean([mine == yours for mine, yours in zip(one, other, strict=True)]) == pytest.approx(0.5, abs=0.08)


def test_the_propensity_of_a_list_is_the_share_of_its_arm() -> None:
    arms = Arms("x1", "split", "a", "b", 0.1, b"k")
    for n in range(200):
        stamp, arm = arms.stamp(f"u{n}", ["i", "j"], None), arms.arm_of(f"u{n}")
        assert stamp["propensities"] == [0.1 if arm == "B" else 0.9] * 2
        assert stamp["model"] == ("b" if arm == "B" else "a")
        assert stamp.get("arms", "") == arm


@given(st.permutations(range(12)), st.permutations(range(12)), st.integers(1, 12))
def test_interleaving_is_fair_and_its_propensities_are_true(first: list[int], second: list[int], k: int) -> None:
    a, b = ([f"i{n}" for n in order] for order in (first, second))
    lists = [interleave(a, b, k, b_first=begins) for begins in (False, True)]
    for drafted, begins in zip(lists, "ab", strict=True):
        assert len({item for item, _, _ in drafted}) == len(drafted) == k
        assert drafted[0][1] == begins
        teams = Counter(team for _, team, _ in drafted)
        assert abs(teams["a"] - teams["b"]) <= 1
    shown = Counter(item for drafted in lists for item, _, _ in drafted)
    for drafted in lists:
        assert all(p == shown[item] / 2 for item, _, p in drafted)


def test_interleaving_short_lists_ends() -> None:
    assert [item for item, _, _ in interleave(["x"], ["x", "y"], 5, b_first=False)] == ["x", "y"]
    assert interleave([], [], 3, b_first=True) == []


def test_the_id_of_an_interleaved_list_tells_whose_items_were_shown() -> None:
    arms = Arms("x1", "interleave", "a", "b", 1.0, b"k")
    drafted = interleave(_ITEMS, _ITEMS[::-1], 10, b_first=True)
    name, some = encode("x1", drafted), drafted[2:7][::-1]  # only some of them were shown, in another order
    stamp = arms.stamp("ann", [item for item, _, _ in some], name)
    assert stamp["arms"] == "".join(team for _, team, _ in some)
    assert stamp["propensities"] == [p for _, _, p in some]
    for other in ("", "x1", "x1.ab.??", "x2" + name[2:], name[:-9]):
        assert "arms" not in arms.stamp("ann", [item for item, _, _ in drafted], other)


# ── decisions ────────────────────────────────────────────────────────────────────────────


def test_a_better_model_is_found_better_and_promoted(shop: Shop) -> None:
    started = shop.start()
    for _ in range(12):
        shop.visit(300, (0.05, 0.10))
        if shop.status().decision:
            break
    found = shop.status()
    assert (found.state, found.id) == ("running", started.id)
    assert found.decision is not None
    assert found.decision["outcome"] == "better"
    assert found.decision["sentence"].startswith("B is better: click through ")
    assert experiments.promote(shop.workspace, by="ann") == shop.b
    current = registry.in_service(shop.workspace.engine)
    assert current is not None
    assert current.model == shop.b
    after = shop.status()
    assert (after.state, after.share, after.decision) == ("ended", 0.0, found.decision)


@pytest.mark.parametrize("mode", ["split", "interleave"])
def test_a_worse_model_is_rolled_back_by_itself(shop: Shop, mode: str) -> None:
    shop.start(mode=mode)
    for _ in range(12):
        shop.visit(300, (0.10, 0.05))
        if shop.status().ended:
            break
    found = shop.status()
    assert (found.state, found.share) == ("ended", 0.0)
    assert found.decision is not None
    assert found.decision["outcome"] == "worse"
    with shop.workspace.engine.connect() as connection:
        assert connection.execute(select(schema.experiment_users)).all() == []


def test_equal_models_are_not_told_apart(shop: Shop) -> None:
    shop.start(max_users=3000)
    for _ in range(9):
        shop.visit(300, (0.08, 0.08))
        assert shop.status().decision is None
    shop.visit(300, (0.08, 0.08))
    found = shop.status()
    assert found.state == "ended"
    assert found.decision is not None
    assert found.decision["outcome"] == "no difference"
    assert found.decision["sentence"].startswith("No difference was found within 3,")


def test_interleaving_finds_the_better_model(shop: Shop) -> None:
    shop.start(mode="interleave", steps=[1.0])
    for _ in range(12):
        shop.visit(100, (0.03, 0.09))
        if shop.status().decision:
            break
    decision = shop.status().decision
    assert decision is not None
    assert decision["outcome"] == "better"


def test_the_share_grows_in_steps_while_nothing_is_wrong(shop: Shop) -> None:
    shop.start(steps=[0.2, 0.5])
    shop.visit(300, (0.08, 0.08))  # about 60 users of B
    assert shop.status().share == 0.2
    shop.visit(600, (0.08, 0.08))
    assert shop.status().share == 0.5
    kinds = [entry.body for entry in entries(shop.workspace.engine) if entry.kind == "experiment"]
    assert len(kinds) == 2


def test_a_step_lasts_its_hours(shop: Shop) -> None:
    shop.start(steps=[0.4, 0.5], step_hours=1)
    shop.visit(900, (0.08, 0.08))
    assert shop.status().share == 0.4


SERVED = {"served": 2000, "micros": 2000 * 10_000, "micros²": 2000 * 11_000**2, "fallbacks": 10}
SLOW = {"micros": 2000 * 90_000, "micros²": 2000 * 90_000**2}


def serve(shop: Shop, experiment: Experiment, arm: str, counts: dict[str, int]) -> None:
    key = {"hour": 0, "experiment": experiment.id, "model": "", "arm": arm}
    with writing(shop.workspace.engine) as connection:
        rows = [key | {"what": what, "n": n} for what, n in counts.items()]
        connection.execute(insert(schema.impression_counts), rows)


@pytest.mark.parametrize(("counts", "name"), [(SLOW, "latency"), ({"fallbacks": 1000}, "fallback")])
def test_a_guard_that_breaks_rolls_b_back(shop: Shop, counts: dict[str, int], name: str) -> None:
    experiment = shop.start()
    serve(shop, experiment, "A", SERVED)
    serve(shop, experiment, "B", SERVED | counts)
    look(shop.workspace)
    found = shop.status()
    assert found.state == "ended"
    assert found.decision is not None
    assert found.decision["sentence"].startswith(f"B was rolled back for {name}: ")


def test_a_guard_that_breaks_after_the_decision_still_rolls_b_back(shop: Shop) -> None:
    experiment = shop.start()
    better = {"outcome": "better", "sentence": "B is better."}
    with writing(shop.workspace.engine) as connection:
        connection.execute(schema.experiments.update().values(decision=better))
    serve(shop, experiment, "A", SERVED)
    serve(shop, experiment, "B", SERVED | SLOW)
    look(shop.workspace)
    found = shop.status()
    assert found.state == "ended"
    assert found.decision is not None
    assert found.decision["outcome"] == "worse"


def test_each_user_is_measured_once_by_a_process(shop: Shop) -> None:
    experiment, served = shop.start(), Served()
    arms = experiment.arms(shop.workspace.secret)
    for seconds, by_model in ((0.02, False), (0.5, True)):
        for user in ("ann", "bob"):
            served.note(arms, "B", user, seconds, by_model=by_model)
        served.store(shop.workspace.engine)
    with shop.workspace.engine.connect() as connection:
        counts = dict(connection.execute(select(schema.impression_counts.c.what, schema.impression_counts.c.n)).all())
    assert counts == {"served": 2, "micros": 40_000, "micros²": 2 * 20_000**2, "fallbacks": 2}


def test_a_group_for_which_b_is_worse_rolls_it_back_although_everyone_is_served_as_well(
    new_workspace: NewWorkspace,
) -> None:
    shop = Shop(new_workspace(privacy=Privacy(epsilon_per_quarter="off")))
    shop.start()
    for _ in range(10):
        shop.visit(400, (0.06, 0.09), odd=(0.09, 0.05))
        if shop.status().ended:
            break
    decision = shop.status().decision
    assert decision is not None
    assert decision["sentence"].startswith("B was rolled back for group odd: click through of B minus that of A")


def test_the_intervals_of_groups_follow_alpha(new_workspace: NewWorkspace) -> None:
    shop, widths = Shop(new_workspace(privacy=Privacy(epsilon_per_quarter="off"))), []
    for alpha in (0.05, 0.001):
        shop.start(alpha=alpha)
        shop.visit(500, (0.06, 0.06))
        low, high = shop.status().looks["tests"]["group odd"]["interval"]
        widths.append(high - low)
        stop(shop.workspace, by="test")
    assert widths[1] > 1.2 * widths[0]


def test_numbers_of_groups_cost_privacy_and_are_withheld_where_that_is_too_dear(shop: Shop) -> None:
    shop.start()
    shop.visit(500, (0.06, 0.06))
    found = shop.status()
    assert not any(name.startswith("group") for name in found.looks["tests"])
    assert any(sentence.startswith("No numbers of groups: ") for sentence in found.sentences)
    with shop.workspace.engine.connect() as connection:
        assert connection.execute(select(schema.privacy_spent)).all() == []


def test_numbers_of_groups_are_paid_for(new_workspace: NewWorkspace) -> None:
    shop = Shop(new_workspace(privacy=Privacy(epsilon_per_quarter=200)))
    shop.start()
    shop.visit(1000, (0.06, 0.06))
    assert {"group even", "group odd"} < set(shop.status().looks["tests"])
    with shop.workspace.engine.connect() as connection:
        [spent] = connection.execute(select(schema.privacy_spent)).all()
    assert (spent.what, spent.cost > 0) == ("report", True)
    look(shop.workspace)  # no new users: nothing is bought again
    with shop.workspace.engine.connect() as connection:
        assert len(connection.execute(select(schema.privacy_spent)).all()) == 1


def test_of_two_processes_that_look_at_once_one_publishes(
    new_workspace: NewWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two releases with one noise would show what changed between them."""
    shop, compute = Shop(new_workspace(privacy=Privacy(epsilon_per_quarter=200))), looks._groups

    def compute_while_another_process_looks(*arguments: Any) -> Any:
        result = compute(*arguments)
        monkeypatch.setattr(looks, "_groups", compute)
        look(shop.workspace)
        return result

    monkeypatch.setattr(looks, "_groups", compute_while_another_process_looks)
    shop.start()
    shop.visit(1000, (0.06, 0.06))
    assert {"group even", "group odd"} < set(shop.status().looks["tests"])
    with shop.workspace.engine.connect() as connection:
        assert len(connection.execute(select(schema.privacy_spent)).all()) == 1


def test_without_traffic_the_status_says_so(shop: Shop) -> None:
    shop.start()
    look(shop.workspace)
    found = shop.status()
    assert "No impressions yet." in found.sentences
    assert found.looks == {"users": {"A": 0, "B": 0}, "tests": {}, "groups": {}}
    assert "NaN" not in found.model_dump_json()


# ── what may not be ──────────────────────────────────────────────────────────────────────


def test_two_experiments_at_once_are_refused(shop: Shop) -> None:
    first = shop.start()
    with pytest.raises(WorkspaceError, match=rf"^experiment {first.id} is running; end it before another one starts$"):
        shop.start()
    assert stop(shop.workspace, by="ann").state == "ended"
    assert shop.start().id != first.id


def test_what_cannot_be_compared_is_refused(new_workspace: NewWorkspace) -> None:
    workspace = new_workspace()
    with pytest.raises(WorkspaceError, match="there is no model in service yet"):
        start(workspace, Options(b="m"), by="test")
    with pytest.raises(UnknownIdError, match="there is no experiment yet"):
        experiments.get(workspace.engine)
    with pytest.raises(WorkspaceError, match="no experiment is running"):
        stop(workspace, by="test")
    current = add_model(workspace)
    with pytest.raises(WorkspaceError, match=f"model {current} is in service already; name another one"):
        start(workspace, Options(b=current), by="test")
    with pytest.raises(UnknownIdError, match="there is no model 'm'"):
        start(workspace, Options(b="m"), by="test")


def test_no_update_starts_while_an_experiment_runs_and_none_while_an_update_is_open(shop: Shop) -> None:
    shop.start()
    with pytest.raises(WorkspaceError, match="is running, and an update may change an arm; end it first"):
        updates.request(shop.workspace, "test")
    EventStore(shop.workspace).append(
        batch_from_json([{"user_id": "u", "item_id": "i", "time": 1}], shop.workspace.config.limits)
    )
    assert updates.request_if_due(shop.workspace, Every.parse("1 event"), "test") is None
    stop(shop.workspace, by="test")
    update = updates.request(shop.workspace, "test")
    with pytest.raises(updates.UpdateRunning, match=update.id):
        shop.start()


@pytest.mark.parametrize("change", ["rollback", "promote"])
def test_changing_the_model_in_service_ends_the_experiment_at_once(shop: Shop, change: str) -> None:
    other = add_model(shop.workspace, seed=2, promote=False)
    with writing(shop.workspace.engine) as connection:
        connection.execute(schema.models.update().where(schema.models.c.id == shop.a).values(parent=shop.b))
    shop.start(b=other)
    if change == "rollback":
        assert registry.rollback(shop.workspace, by="ann") == shop.b
    else:
        registry.promote(shop.workspace, shop.b, by="ann")
    found = shop.status()
    assert found.state == "ended"
    assert found.decision == {"outcome": "replaced", "sentence": f"Model {shop.b} was put into service."}
    verify(shop.workspace.engine)


def test_the_files_of_both_arms_are_kept(shop: Shop) -> None:
    shop.start()
    for seed in range(2, 5):
        add_model(shop.workspace, seed=seed, promote=False)
    object.__setattr__(shop.workspace.config, "keep_models", 2)
    registry.tidy(shop.workspace)
    assert {shop.a, shop.b} <= set(shop.workspace.models.names())
    stop(shop.workspace, by="ann")
    registry.tidy(shop.workspace)
    assert shop.b not in shop.workspace.models.names()


def test_the_command_line_starts_shows_and_stops_an_experiment(shop: Shop, tmp_path: Path) -> None:
    def cli(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["experiment", *map(str, arguments)])

    folder, options = shop.workspace.folder, tmp_path / "options.json"
    options.write_text('{"max_users": 1000, "steps": [0.1, 0.5]}')
    done = cli("start", folder, shop.b, "--options", options, "--json", "-")
    started = json.loads(done.stdout)
    assert (started["share"], started["options"]["max_users"]) == (0.1, 1000)
    assert "No impressions yet." in cli("status", folder).stdout
    shown = CliRunner().invoke(app, ["status", str(folder)]).stdout
    assert f"Experiment {started['id']} (split)" in shown
    assert "has ended" in cli("stop", folder).stdout
    for arguments, sentence in (
        (("stop", folder), "no experiment is running"),
        (("promote", folder), "no experiment is running"),
        (("start", folder, "m"), "there is no model 'm'"),
    ):
        failed = cli(*arguments)
        assert failed.exit_code != 0
        assert sentence in f"{failed.exception} {failed.output}"
    cli("start", folder, shop.b)
    assert "is in service" in cli("promote", folder).stdout


def test_click_through_is_in_the_status(shop: Shop) -> None:
    assert Status.of(shop.workspace).click_through is None
    shop.start()
    shop.visit(50, (0.1, 0.1))
    status = Status.of(shop.workspace)
    assert status.n_shown == 500
    assert any(line.startswith("Click-through was ") for line in status.sentences())
