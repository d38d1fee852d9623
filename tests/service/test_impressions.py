"""Lists that people saw: stored once, counted once, and what of them was in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from running import signed_in
from sqlalchemy import select
from streams import named_stream, take_in, values_of

from fairstream.service import schema
from fairstream.service.budget import PrivacyStatus
from fairstream.service.database import now
from fairstream.service.event_store import EventStore
from fairstream.service.forgetting import request_forget
from fairstream.service.gaps import share_of
from fairstream.service.impressions import Report, Shown, ShownInVain, prune, shown_after, store
from fairstream.service.incoming import batch_from_json
from fairstream.service.settings import EventKinds, Impressions, Privacy, Retention
from fairstream.service.tally import Tally
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

NewWorkspace = Callable[..., Workspace]
_HOUR = 3_600_000_000


def do(workspace: Workspace, *events: tuple[str, str, float, str]) -> None:
    """Store events of user, item, time in seconds and kind."""
    rows = [dict(zip(("user_id", "item_id", "time", "kind"), event, strict=True)) for event in events]
    config = workspace.config
    EventStore(workspace).append(batch_from_json(rows, config.limits, config.events))


def count(workspace: Workspace, tally: Tally | None = None) -> Tally:
    """Count twice: events are counted at the call after the one that first saw them."""
    tally = tally or Tally(workspace)
    tally.count()
    tally.count()
    return tally


def outcomes(workspace: Workspace) -> list[str]:
    with workspace.engine.connect() as connection:
        return list(connection.scalars(select(schema.impressions.c.outcomes).order_by(schema.impressions.c.seq)))


def seen(user: str, items: Iterable[str], seconds: float, **more: Any) -> Shown:
    return Shown(user, list(items), round(seconds * 1e6), **more)


@pytest.fixture
def workspace(new_workspace: NewWorkspace) -> Workspace:
    return new_workspace()


def test_a_list_that_is_sent_again_is_stored_once(workspace: Workspace) -> None:
    [first] = store(workspace, [[seen("ann", "ab", 10, list_id="x"), seen("ann", "ab", 10)]])
    again = [seen("ann", "ab", 20, list_id="x"), seen("ann", "ab", 10)]  # the time may be that of each request
    [second] = store(workspace, [[*again, seen("ann", "ab", 20), seen("ann", "cd", 20, list_id="x")]])
    assert (first.accepted, second.accepted, second.repeated) == (2, 2, 2)


def test_an_event_counts_for_the_latest_list_that_showed_its_item(workspace: Workspace) -> None:
    t = now() // 1_000_000
    lists = [
        seen("ann", "abc", t - 90),
        seen("ann", "cba", t - 60),
        seen("ann", "a", t - 10),
        seen("bob", "ab", t - 90),
    ]
    store(workspace, [lists])
    do(workspace, ("ann", "b", t - 50, "click"), ("ann", "c", t - 70, "purchase"), ("bob", "z", t - 1, "click"))
    count(workspace)
    assert outcomes(workspace) == ["002", "010", "0", "00"]
    report = Report.of(workspace.engine, 2)
    assert (report.everyone.lists, report.everyone.shown) == (4, 9)
    assert (report.everyone.clicked, report.everyone.converted) == (2, 1)
    assert report.everyone.click_through == pytest.approx(2 / 9)


def test_an_event_outside_of_the_window_or_without_a_positive_kind_is_no_click(new_workspace: NewWorkspace) -> None:
    workspace, t = new_workspace(impressions=Impressions(window_hours=1)), now() // 1_000_000
    store(workspace, [[seen("ann", "abc", t - 7200)]])
    do(workspace, ("ann", "a", t - 7201, "click"), ("ann", "b", t - 3500, "click"), ("ann", "c", t - 7000, "dislike"))
    count(workspace)
    assert outcomes(workspace) == ["000"]


def test_a_conversion_is_what_the_configuration_judges_by(new_workspace: NewWorkspace) -> None:
    workspace, t = new_workspace(events=EventKinds(judge_by=["cart"])), now() // 1_000_000
    store(workspace, [[seen("ann", "ab", t - 5)]])
    do(workspace, ("ann", "a", t - 4, "purchase"), ("ann", "b", t - 3, "cart"))
    count(workspace)
    assert outcomes(workspace) == ["12"]


def test_several_events_with_an_item_count_as_one_click(workspace: Workspace) -> None:
    t, tally = now() // 1_000_000, Tally(workspace)
    store(workspace, [[seen("ann", "ab", t - 9)]])
    for second, kind in ((8, "view"), (7, "click"), (6, "purchase"), (5, "click")):
        do(workspace, ("ann", "a", t - second, kind))
        count(workspace, tally)
    everyone = Report.of(workspace.engine, 2).everyone
    assert (outcomes(workspace), everyone.clicked, everyone.converted) == (["20"], 1, 1)


def test_a_list_may_come_a_little_later_than_its_click(workspace: Workspace) -> None:
    t, tally = now() // 1_000_000, Tally(workspace)
    store(workspace, [[seen("bob", "x", t - 9)]])
    do(workspace, ("ann", "a", t - 1, "click"))
    tally.count()
    store(workspace, [[seen("ann", "ab", t - 2)]])
    tally.count()
    assert outcomes(workspace) == ["0", "10"]


def test_any_number_of_processes_count_each_row_once(workspace: Workspace) -> None:
    """Their calls are mixed at random, with new lists and events between them; the oracle counts everything at once."""
    rng, t = np.random.default_rng(3), now() // 1_000_000 - 5000
    tallies = [Tally(workspace) for _ in range(3)]
    n_lists = n_clicks = 0
    for step in range(30):
        users = [f"u{n}" for n in rng.integers(0, 5, 4)]
        lists = [seen(user, ["a", "b"], t + 10 * step + at, experiment="e", arms="A") for at, user in enumerate(users)]
        store(workspace, [lists])
        n_lists += len(lists)
        do(workspace, *{(user, "a", t + 10 * step + 5, "click") for user in users})
        n_clicks += len(set(users))
        tallies[rng.integers(0, 3)].count()
    for tally in tallies:
        count(workspace, tally)
    everyone = Report.of(workspace.engine, 48).everyone
    assert (everyone.lists, everyone.shown, everyone.clicked) == (n_lists, 2 * n_lists, n_clicks)


def test_each_user_of_an_experiment_has_the_sums_over_own_lists(workspace: Workspace) -> None:
    rng, t, tally = np.random.default_rng(4), now() // 1_000_000 - 5000, Tally(workspace)
    row = {"id": "e", "state": "running", "mode": "split", "a": "x", "b": "y", "options": {}, "share": 0.5}
    row |= {"started": 0, "step_since": 0, "looks": {}}
    with workspace.engine.begin() as connection:
        connection.execute(schema.experiments.insert(), row)
    shown, bought = Counter[str](), Counter[str]()
    for step in range(10):
        users = [f"u{n}" for n in rng.permutation(20)[:8]]
        shown.update(dict.fromkeys(users, 3))
        stamp = {"experiment": "e", "propensities": [0.5] * 3}
        lists = [seen(user, "abc", t + 100 * step, arms="AB"[int(user[1:]) % 2], **stamp) for user in users]
        store(workspace, [lists, [seen("bob", "abc", t, experiment="ended", arms="A")]])
        items = rng.choice(list("abcz"), 5)
        do(workspace, *((user, item, t + 100 * step + 9, "purchase") for user, item in zip(users, items, strict=False)))
        bought.update(user for user, item in zip(users, items, strict=False) if item != "z")
        count(workspace, tally)
    with workspace.engine.connect() as connection:
        rows = connection.execute(select(schema.experiment_users)).all()
    assert {row.user_id: row.shown for row in rows} == shown
    assert +Counter({row.user_id: row.clicked for row in rows}) == bought
    assert +Counter({row.user_id: row.converted for row in rows}) == bought
    assert all(row.arm == "AB"[int(row.user_id[1:]) % 2] for row in rows)


def test_nothing_of_a_forgotten_person_is_left_or_comes_back(workspace: Workspace) -> None:
    t, tally = now() // 1_000_000, Tally(workspace)
    store(workspace, [[seen("ann", "ab", t - 9, experiment="e", arms="A"), seen("bob", "ab", t - 9)]])
    do(workspace, ("ann", "a", t - 5, "click"))
    tally.count()
    request_forget(workspace, ["ann"], by="test")
    [receipt] = store(workspace, [[seen("ann", "ab", t - 8), seen("bob", "cd", t - 8)]])
    count(workspace, tally)
    assert (receipt.accepted, receipt.forgotten) == (1, 1)
    with workspace.engine.connect() as connection:
        for table in (schema.impressions, schema.experiment_users):
            assert "ann" not in connection.scalars(select(table.c.user_id)).all()


def test_old_lists_are_deleted_and_their_counts_stay(new_workspace: NewWorkspace) -> None:
    workspace, t = new_workspace(retention=Retention(impressions_days=1)), now() // 1_000_000
    store(workspace, [[seen("ann", "ab", t - 30 * 3600), seen("ann", "ab", t - 20 * 3600)]])
    count(workspace)
    assert len(outcomes(workspace)) == 1
    assert prune(workspace) == 0
    assert Report.of(workspace.engine, 48).everyone.lists == 2


def test_an_item_is_avoided_after_it_was_shown_in_vain_and_returns() -> None:
    shown, day = ShownInVain(Impressions(avoid_after=2, avoid_days=1)), 24 * _HOUR
    shown.add("ann", ["a", "b"], 0)
    assert shown.avoided_by("ann", _HOUR) == []
    shown.add("ann", ["a"], _HOUR)
    assert shown.avoided_by("ann", 2 * _HOUR) == ["a"]
    assert shown.avoided_by("bob", 2 * _HOUR) == []
    shown.reacted(["ann"], ["a"])
    assert shown.avoided_by("ann", 2 * _HOUR) == []
    shown.add("ann", ["b"], _HOUR)
    assert shown.avoided_by("ann", _HOUR + day - 1) == ["b"]
    assert shown.avoided_by("ann", _HOUR + day + 1) == []
    shown.add("ann", ["b"], 3 * day)  # begins again
    assert shown.avoided_by("ann", 3 * day) == []
    shown.forget(["ann"])
    assert shown.users() == []


def test_what_was_shown_in_vain_is_read_in_parts_without_what_was_clicked(workspace: Workspace) -> None:
    t = now() // 1_000_000
    store(workspace, [[seen("ann", "ab", t - 60), seen("bob", "ab", t - 20 * 86_400), seen("ann", "c", t - 30)]])
    do(workspace, ("ann", "b", t - 40, "click"))
    count(workspace)
    rows = [(user, items) for _, user, items, _ in shown_after(workspace.engine, 0, (t - 86_400) * 1_000_000)]
    assert rows == [("ann", ["a"]), ("bob", []), ("ann", ["c"])]


def _shown_to_all(workspace: Workspace) -> dict[str, tuple[float, float]]:
    """Show everyone a list; of each group another share of the people clicks and converts. Return the shares."""
    group_of = dict(zip(*(column.to_pylist() for column in values_of(workspace).columns), strict=True))
    t, rng, shares = now() / 1e6, np.random.default_rng(0), dict[str, tuple[float, float]]()
    store(workspace, [[seen(user, "ab", t), seen(user, "ca", t + 0.001)] for user in group_of])
    for group, chance in (("majority", 0.7), ("minority", 0.4)):
        users = [user for user, own in group_of.items() if own == group]
        clicked = rng.random(len(users)) < chance
        converted = clicked & (rng.random(len(users)) < 0.5)
        shares[group] = float(clicked.mean()), float(converted.mean())
        did = [(user, "click", c) for user, c in zip(users, clicked, strict=True) if c]
        did += [(user, "purchase", c) for user, c in zip(users, converted, strict=True) if c]
        do(workspace, *((user, "a", t + 0.002, kind) for user, kind, _ in did))
    count(workspace)
    return shares


def test_an_update_publishes_how_many_people_of_each_group_clicked(learned: Workspace) -> None:
    shares = _shown_to_all(learned)
    periods, _ = named_stream()
    take_in(learned, periods[2])
    update(learned)
    published = Report.of(learned.engine, 24).by_group
    assert published["clicks"]["period"] == published["conversions"]["period"] == 2
    for group, (clicked, converted) in shares.items():
        assert published["clicks"]["by_group"][group][0] == pytest.approx(clicked, abs=0.001)
        assert published["conversions"]["by_group"][group][0] == pytest.approx(converted, abs=0.001)
    everyone, (low, high) = published["clicks"]["everyone"]
    assert low < everyone < high
    assert share_of(published["clicks"], "by_group", "minority") in signed_in(learned).get("/").text
    store(learned, [[seen("u1", "ab", now() / 1e6)]])
    take_in(learned, periods[3])
    update(learned)  # since then one person was shown something: too few for a share
    assert Report.of(learned.engine, 24).by_group == published


def test_shares_of_groups_cost_privacy_or_wait(learned: Workspace) -> None:
    shares, config = _shown_to_all(learned), learned.config.with_options(privacy=Privacy(epsilon_per_quarter=40.0))
    private = replace(learned, config=config)
    periods, _ = named_stream()
    take_in(learned, periods[2])
    update(private)
    clicks = Report.of(learned.engine, 24).by_group["clicks"]
    value, (low, high) = clicks["by_group"]["minority"]
    assert low < shares["minority"][0] < high
    assert value != pytest.approx(shares["minority"][0], abs=1e-6)  # noise
    assert PrivacyStatus.of(learned.engine, config.privacy).spent_by["clicks"] > 0
    _shown_to_all(learned)
    take_in(learned, periods[3])
    update(replace(learned, config=learned.config.with_options(privacy=Privacy())))  # 4: the quarter's share is spent
    assert Report.of(learned.engine, 24).by_group["clicks"] == clicks
