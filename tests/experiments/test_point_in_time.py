"""Nothing that happens after period t can change what was computed up to t.

The tests take a log, change everything after the end of D_t (another order, other events by other
users, other groups for those who only come later, no events at all), and compare the two runs bit
for bit: who and what is known, in which rows and groups; every batch and every negative; weights,
optimizer and fallback; the steps taken, and whom the loss took to be ahead; the candidates that
were ranked, and every result that was judged on events up to D_t, with its intervals, p-values and
slices. A result judged on later events has to change with them; the models that it judges must not.

Under `paper` the same change does alter the weights. That is the leak of the paper's protocol, and
the proof that these tests can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fairstream
from fairstream import EventLog, FairRecommender, Run
from fairstream.evaluation import Lists, PeriodTask, Truth
from fairstream.models import NO_CONTEXT, Context, MFScorer, blend
from fairstream.paper import protocol
from fairstream.training.optimizers import state_tensors
from support import Recorder, make_recommender, small_settings

N_EVENTS, N_USERS, N_ITEMS = 275, 40, 30
N_FIRST, N_EACH, K = 150, 25, 5
CUT = {"pretrain_ratio": 6 / 11, "n_periods": 4, "n_blocks": 5}  # D_0 has 150 events, each period 25, the tail 25
BY_DAY = {"pretrain_ratio": 0.3, "period": "1d"}  # the same periods, and the tail is one more
LEARNING = {
    "pretrain_epochs": 1,
    "update_epochs": 2,
    "model_settings": {"embedding_dim": 4},
    "batch_size": N_EACH,
    "n_negatives": 2,
    "n_fairness_negatives": 3,
    "device": "cpu",
}
JUDGING = {"k": K, "n_resamples": 20}
DIRECTIONS = ("north", "south", "east", "west")
Pairs = np.ndarray[Any, np.dtype[np.int64]]


# ── a world, and two ways to change its future ───────────────────────────────────────────


class World(NamedTuple):
    """(user, item) pairs in the order in which they happen, and the group of every user id.

    `times` are timestamps in seconds; None: the times only order the events.
    """

    pairs: Pairs
    groups: tuple[str | None, ...]
    times: Pairs | None = None

    def days(self) -> Pairs:
        """The day of each event: the first 150 on the first one, then 25 a day."""
        return np.maximum(np.arange(len(self.pairs)) - N_FIRST + N_EACH, 0) // N_EACH

    def tables(self, start: int = 0, end: int | None = None) -> tuple[pa.Table, pa.Table]:
        """The events from `start` to `end`, and the users that they tell of."""
        part, at = self.pairs[start:end], np.arange(len(self.pairs))[start:end]
        moments = self.days()[start:end] * 86_400 + at if self.times is None else self.times[start:end]
        here = np.unique(part[:, 0])
        events = pa.table({"user_id": part[:, 0], "item_id": part[:, 1], "time": moments})
        return events, pa.table({"user_id": here, "side": pa.array([self.groups[u] for u in here], pa.string())})

    def log(self, advantaged: str | None, start: int = 0, end: int | None = None) -> EventLog:
        events, users = self.tables(start, end)
        log = fairstream.read_events(events, users=users, group="side", advantaged=advantaged)
        assert len(log) == len(events)  # no repeated pairs: the cut depends on the count
        return log


def make_world(rng: np.random.Generator, n_groups: int) -> World:
    """Users and items that keep arriving, in every period some; one user in seven has no group."""
    pairs = random_pairs(rng, N_EVENTS, n_users=N_USERS, n_items=N_ITEMS)
    user_arrival, item_arrival = rng.uniform(-1, 1, N_USERS), rng.uniform(-2, 1, N_ITEMS)
    earliest = np.maximum(user_arrival[pairs[:, 0]], item_arrival[pairs[:, 1]])
    moments = np.maximum(0, earliest) + rng.uniform(0, 0.4, N_EVENTS)
    return World(pairs[np.argsort(moments)], permuted_groups(rng, DIRECTIONS[:n_groups], 2 * N_USERS))


def permuted_groups(rng: np.random.Generator, names: Sequence[str], n: int) -> tuple[str | None, ...]:
    return tuple(names[rng.integers(len(names))] if rng.random() > 1 / 7 else None for _ in range(n))


def random_pairs(rng: np.random.Generator, n: int, *, n_users: int, n_items: int, but: Pairs | None = None) -> Pairs:
    """n distinct (user, item) pairs in random order, none of them in `but`."""
    free = np.ones((n_users, n_items), dtype=np.bool_)
    if but is not None:
        free[but[:, 0], but[:, 1]] = False
    return rng.permutation(np.argwhere(free))[:n]


def reordered(world: World, end: int, rng: np.random.Generator) -> World:
    """The same later events in another order."""
    later = rng.permutation(world.pairs[end:])
    return regrouped(world._replace(pairs=np.concatenate([world.pairs[:end], later])), end, rng)


def replaced(world: World, end: int, rng: np.random.Generator) -> World:
    """Other later events, many of them by users and on items that nobody had heard of."""
    n_users, n_items = rng.integers(N_USERS, 2 * N_USERS), rng.integers(N_ITEMS, 2 * N_ITEMS)
    later = random_pairs(rng, len(world.pairs) - end, n_users=n_users, n_items=n_items, but=world.pairs[:end])
    return regrouped(world._replace(pairs=np.concatenate([world.pairs[:end], later])), end, rng)


def with_times(world: World, rng: np.random.Generator) -> World:
    """The same events with timestamps, from minutes to weeks apart."""
    return world._replace(times=1_700_000_000 + (10 ** rng.uniform(1.5, 6.5, len(world.pairs))).astype(int).cumsum())


def retimed(world: World, end: int, rng: np.random.Generator) -> World:
    """The same later events at other times."""
    assert world.times is not None
    times = world.times.copy()
    times[end:] = times[end - 1] + with_times(world, rng).times[: len(times) - end] - 1_700_000_000
    return regrouped(world._replace(times=times), end, rng)


def mistimed(world: World, end: int, rng: np.random.Generator) -> World:
    """The same later events with times in milliseconds."""
    assert world.times is not None
    return world._replace(times=np.append(world.times[:end], 1_000 * world.times[end:]))


def missing(world: World, end: int, rng: np.random.Generator) -> World:
    """No later events."""
    return world._replace(pairs=world.pairs[:end], times=None if world.times is None else world.times[:end])


def regrouped(world: World, end: int, rng: np.random.Generator) -> World:
    """Other groups, two of them unheard of, for those who only come after `end`."""
    past = set(world.pairs[:end, 0].tolist())
    # "above" sorts before every other name: where names decide a tie, it would be seen
    other = permuted_groups(rng, ("above", "zenith", *sorted(filter(None, set(world.groups)))), len(world.groups))
    return world._replace(groups=tuple(world.groups[u] if u in past else other[u] for u in range(len(world.groups))))


# ── what a run has computed up to the end of D_t ─────────────────────────────────────────


class Shared(list[tuple[Any, Any]]):
    """A list that copies of a model go on writing to."""

    def __deepcopy__(self, memo: Any) -> Shared:
        return self


class Witness(Recorder):
    """Writes down apart what it was asked while it learned and while it was judged."""

    def __init__(self, n_users: int, n_items: int, ranked: list[tuple[Any, Any]]) -> None:
        super().__init__(n_users, n_items)
        self.ranked = ranked

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        if self.training:
            return super().forward(users, items)
        self.ranked.append((users.tolist(), items.tolist()))
        return MFScorer.forward(self, users, items)


@dataclass
class Carried:
    """A finished run, and how its learner stood after each period."""

    run: Run
    ranked: list[tuple[Any, Any]]
    states: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def results(self) -> list[fairstream.PeriodResult]:
        assert self.run.pretrained is not None
        return [self.run.pretrained, *self.run.results]

    def remember(self, t: int) -> None:
        model = self.run.state.model
        self.states[t] = contents(self.run.state)
        if isinstance(model, Witness):
            self.states[t]["batches"] = [asked.tolist() for asked in model.told()]
            # What W_{t−1} was asked last: to rank candidates for the users of D_t.
            self.states[t]["candidates"] = self.ranked[-1:]
            self.ranked.clear()


def carried(log: EventLog, **options: Any) -> Carried:
    ranked = Shared()
    options = {**CUT, **LEARNING, **JUDGING, "model": lambda u, i: Witness(u, i, ranked), **options}
    if isinstance(options["model"], str):
        options["model_settings"] = small_settings(options["model"], 4)
    kept = Carried(fairstream.run(log, **options), ranked)
    finish = kept.run._finish

    def remember_and_finish(t: int) -> fairstream.PeriodResult:
        if kept.run._unjudged is not None and kept.run._unjudged.report is not None:
            kept.remember(t)
        return finish(t)

    kept.run._finish = remember_and_finish  # type: ignore[method-assign]
    list(kept.run)
    return kept


def contents(state: Any) -> dict[str, Any]:
    """All that a state is made of, as plain values that compare bit for bit."""
    moments = {} if state.optimizer is None else state_tensors(state.optimizer, state.model)
    tensors = {**state.model.state_dict(), **moments}
    known = state.history
    return {
        **{name: value.tolist() for name, value in tensors.items()},
        "known": (known.n_users, known.n_items, known.n_items_before, known.seen.keys.tolist()),
        "events": (known.users.tolist(), known.items.tolist(), known.minutes_of_events(np.arange(len(known))).tolist()),
        "fallback": known.recent_popularity.tolist(),
        "trained": state.trained.tolist(),
        "memory": dict(state.memory),
        "level": (state.level, None if state.tilt is None else state.tilt.tolist()),
        "replays": dict(state.replays),
    }


def past(carried: Carried, t: int, *, learned: int | None = None) -> dict[str, Any]:
    """Every output up to the end of D_t, of a run that has learned D_0 … D_t (or up to D_`learned`)."""
    run, log = carried.run, carried.run.log
    last = t if learned is None else learned
    end = run.periods.ends[t]
    n_users, n_items = log.n_users_after(end), log.n_items_after(end)
    updates = [result.update for result in carried.results[: last + 1]]
    return {
        "users": log.user_ids.ids[:n_users].to_pylist(),
        "items": log.item_ids.ids[:n_items].to_pylist(),
        "groups": (run.groups.names[: run.groups.n_groups_among(n_users)], run.groups.codes[:n_users].tolist()),
        "ends": run.periods.ends[: t + 1],
        "ahead": [result.advantaged for result in carried.results[: last + 1]],
        "models": {s: state for s, state in carried.states.items() if s <= last},
        "updates": [(update.t, update.step, update.report) for update in updates],
        "judged": [
            {task: evaluation.to_dict() for task, evaluation in result.tasks.items() if task != "remain"}
            for result in carried.results[:t]
        ],
    }


# ── strict ───────────────────────────────────────────────────────────────────────────────


BACKENDS = [
    {"method": "FADE"},
    {"method": "FADE-Abs", "optimizer": "dense"},
    {"method": "Adver"},
    {"method": "FADE", "model": "ncf"},
    {"method": "FADE", "restart": "on-degradation"},
    {"method": "FADE", "restart_every": 2},
    {"method": "Retrain-Fair"},
    {"method": "Finetune"},
    {"method": "Pretrain"},
    {"method": "Finetune", "model": "item-item"},
    {"method": "FADE", "model": "item-item", "max_gap": 0.001, "target_metric": "ndcg@5"},
]
WEIGHTED = {"method": "Finetune", "model": "item-item", "group_weight": 2.0}  # of four groups it asks which is ahead
worlds = {
    "options": st.sampled_from(BACKENDS),
    "seed": st.integers(0, 2**32),
    "n_groups": st.sampled_from([2, 4]),
    "advantaged": st.sampled_from(["south", None]),
}
futures = st.sampled_from([replaced, reordered])


@pytest.mark.slow
@given(**worlds, t=st.integers(0, 3), change=futures, min_group_size=st.sampled_from([1, 3]))
@example(options=BACKENDS[-1], seed=0, n_groups=4, advantaged=None, t=2, change=replaced, min_group_size=1)
@example(options=WEIGHTED, seed=0, n_groups=2, advantaged="south", t=2, change=reordered, min_group_size=1)
def test_the_future_changes_nothing_before_it(
    options: dict[str, Any],
    seed: int,
    n_groups: int,
    advantaged: str | None,
    t: int,
    change: Callable[..., World],
    min_group_size: int,
) -> None:
    rng = np.random.default_rng(seed)
    options = {**options, "min_group_size": min_group_size, "seed": seed}
    world = make_world(rng, n_groups)
    here = carried(world.log(advantaged), **options)
    there = carried(change(world, here.run.periods.ends[t], rng).log(advantaged), **options)
    assert there.run.periods == here.run.periods
    assert past(there, t) == past(here, t)
    if change is reordered:  # who is known already is judged on the same events, whatever their order
        ours, theirs = (
            [result.tasks["remain"].slices["warm_users"]["ndcg@5"].mean for result in run.results[: t + 1]]
            for run in (here, there)
        )
        assert theirs == ours


@pytest.mark.slow
@pytest.mark.parametrize("repairs", ["", "+cold-users+ndcg+optimizer", "+ranking"])
@settings(max_examples=4)
@given(**{**worlds, "options": st.sampled_from([{"method": "FADE"}, {"method": "Finetune"}])}, t=st.integers(1, 3))
def test_repairing_the_leak_alone_is_enough_to_keep_the_future_out(
    repairs: str, options: dict[str, Any], seed: int, n_groups: int, advantaged: str | None, t: int
) -> None:
    rng = np.random.default_rng(seed)
    options = {**options, "protocol": f"paper+leak{repairs}", "seed": seed}
    world = make_world(rng, n_groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "N_SAMPLED_CANDIDATES", 8)  # the paper's 100 would be all items that there are
        here = carried(world.log(advantaged), **options)
        there = carried(replaced(world, here.run.periods.ends[t], rng).log(advantaged), **options)
    ours, theirs = past(here, t), past(there, t)
    assert theirs == ours
    # sampled candidates are among what is compared
    assert [len(state["candidates"]) for state in ours["models"].values()] == [0] + [int(repairs != "+ranking")] * t


@pytest.mark.slow
@settings(max_examples=7)
@given(**worlds, t=st.integers(2, 5))
def test_with_periods_of_the_calendar_the_future_can_simply_be_missing(
    options: dict[str, Any], seed: int, n_groups: int, advantaged: str | None, t: int
) -> None:
    world = make_world(np.random.default_rng(seed), n_groups)
    cut = {**BY_DAY, "n_periods": None, "n_blocks": 10, "min_group_size": 1}
    whole = carried(world.log(advantaged), **{**options, **cut})
    end = whole.run.periods.ends[t]
    assert end == N_FIRST + t * N_EACH
    short = carried(world.log(advantaged, end=end), **{**options, **cut})
    assert short.run.periods.last == t  # which is only tested on
    assert past(short, t, learned=t - 1) == past(whole, t, learned=t - 1)


@pytest.mark.slow
@settings(max_examples=3)
@given(**worlds, t=st.integers(2, 4))
def test_with_periods_by_count_the_future_can_be_missing_too(
    options: dict[str, Any], seed: int, n_groups: int, advantaged: str | None, t: int
) -> None:
    world = make_world(np.random.default_rng(seed), n_groups)
    whole = carried(world.log(advantaged), min_group_size=1, **options)
    end = whole.run.periods.ends[t]
    # the same cut of a shorter log: D_0 … D_t and no event after them
    cut = {"pretrain_ratio": N_FIRST / end, "n_periods": t, "n_blocks": t}
    short = carried(world.log(advantaged, end=end), **{**options, **cut, "min_group_size": 1})
    assert short.run.periods.ends == whole.run.periods.ends[: t + 1]
    assert past(short, t, learned=t - 1) == past(whole, t, learned=t - 1)


def test_the_larger_group_is_that_of_the_pretraining_data() -> None:
    rng = np.random.default_rng(0)
    pairs = random_pairs(rng, N_EVENTS, n_users=N_USERS, n_items=N_ITEMS)
    pairs[N_FIRST:, 0] += N_USERS  # nobody comes back
    groups = ("north", "north", "south") * N_USERS
    world = World(pairs, groups[:N_USERS] + ("south",) * N_USERS)
    log = world.log(None)
    assert log.require_groups().names[0] == "south"  # of all the data
    run = fairstream.run(log, model="mf", **CUT, **LEARNING, **JUDGING)
    assert run.groups.names == ("north", "south")


@pytest.mark.slow
def test_where_the_pretraining_data_know_no_group_the_future_does_not_name_one() -> None:
    world = make_world(np.random.default_rng(1), 2)
    first = set(world.pairs[:N_FIRST, 0].tolist())
    groups = tuple(None if user in first else DIRECTIONS[user % 2] for user in range(2 * N_USERS))
    here = carried(World(world.pairs, groups).log(None), min_group_size=1)
    end = here.run.periods.ends[2]
    known = set(world.pairs[:end, 0].tolist())
    other = tuple(group if user in known else "above" for user, group in enumerate(groups))
    there = carried(World(world.pairs, other).log(None), min_group_size=1)
    assert past(there, 2) == past(here, 2)


@pytest.mark.slow
@settings(max_examples=9)
@given(**{**worlds, "options": st.sampled_from([each for each in BACKENDS if each["method"] != "Adver"])})
@example(options=WEIGHTED, seed=0, n_groups=2, advantaged="south")
def test_a_recommender_that_is_given_one_period_at_a_time_arrives_at_the_same_model(
    options: dict[str, Any], seed: int, n_groups: int, advantaged: str | None
) -> None:
    world = make_world(np.random.default_rng(seed), n_groups)
    # a recommender decides by the best 20 when to restart
    assume(len(np.unique(world.pairs[:N_FIRST, 1])) >= 20)
    run = carried(world.log(advantaged), **{"model": "mf", **options}, k=20, min_group_size=1)
    settings = small_settings(options.get("model", "mf"), 4)
    recommender = make_recommender(**{"model": "mf", **LEARNING, "model_settings": settings, **options})
    starts, ends = run.run.periods.starts, run.run.periods.ends
    recommender.fit(world.log(advantaged, end=ends[0]))
    for t in range(4):
        if t > 0:
            events, users = world.tables(starts[t], ends[t])
            assert recommender.update(events, users=users).last_update.step == run.results[t].update.step
        if t in run.states:
            assert contents(recommender._states.current) == run.states[t]
        events, users = world.tables(starts[t + 1], ends[t + 1])
        judged = recommender.evaluate(events, users=users, k=20, min_group_size=1, n_resamples=20)
        assert judged.to_dict() == run.results[t].tasks["next"].to_dict()


def test_a_users_table_that_knows_of_later_groups_changes_nothing() -> None:
    world = make_world(np.random.default_rng(0), 2)
    first = set(world.pairs[:N_FIRST, 0].tolist())
    later = [user for user in dict.fromkeys(world.pairs[:, 0].tolist()) if user not in first]
    groups = list(world.groups)
    for at, user in enumerate(later):
        groups[user] = "zenith" if at < len(later) / 2 else "above"  # they appear in this order
    world = World(world.pairs, tuple(groups))
    everyone = pa.table({"user_id": np.arange(2 * N_USERS), "side": pa.array(groups, pa.string())})
    run = carried(world.log("south"), model="mf", min_group_size=1)
    recommender = make_recommender("mf", **LEARNING)
    recommender.fit(
        fairstream.read_events(world.tables(0, N_FIRST)[0], users=everyone, group="side", advantaged="south")
    )
    for t in (1, 2, 3):
        recommender.update(world.tables(run.run.periods.starts[t], run.run.periods.ends[t])[0], users=everyone)
        assert contents(recommender._states.current) == run.states[t]


# ── models that read histories ───────────────────────────────────────────────────────────

READERS = pytest.mark.parametrize("model", ["gru", "sasrec", "item-item", "blend"])
CHANGES = pytest.mark.parametrize("change", [replaced, reordered, retimed, mistimed, missing])


@pytest.fixture
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blend learns weights from as few events as there are here."""
    monkeypatch.setattr(blend, "_MIN_REQUESTS", 6)


@pytest.mark.slow
@READERS
@pytest.mark.usefixtures("few_requests")
def test_a_model_that_reads_histories_reads_none_of_the_future(model: str) -> None:
    """Whether that is other events, the same in another order or at other times, or nothing at all."""
    rng, t = np.random.default_rng(0), 2
    world = with_times(make_world(rng, 2), rng)
    options = {
        "method": "Finetune",
        "model": model,
        "tasks": ("event", "next"),
        "min_group_size": 1,
        "n_periods": t + 1,
    }
    here = carried(world.log("south"), **options)
    expected, end = past(here, t, learned=t - 1), here.run.periods.ends[t]
    assert len(expected["judged"]) == t
    if model == "blend":  # the weights are among what is compared
        assert any(map(any, expected["models"][t - 1]["n_periods"]))
    for change in (replaced, reordered, retimed, mistimed):
        assert past(carried(change(world, end, rng).log("south"), **options), t, learned=t - 1) == expected
    cut = {"pretrain_ratio": N_FIRST / end, "n_periods": t, "n_blocks": t}
    assert past(carried(world.log("south", end=end), **{**options, **cut}), t, learned=t - 1) == expected


def with_other_item(world: World, at: int) -> World:
    """The same user has an item at this event that is not among the user's others."""
    pairs = world.pairs.copy()
    had = pairs[pairs[:, 0] == pairs[at, 0], 1]
    pairs[at, 1] = np.setdiff1d(np.arange(N_ITEMS), had)[0]
    return world._replace(pairs=pairs)


def lists_at_events(
    recommender: FairRecommender, world: World, start: int, end: int, task: PeriodTask = "event"
) -> dict[int, Any]:
    """The lists made at each user's events from `start` to `end`, with their scores, in the order of the events."""
    asked = list[tuple[Lists, Truth]]()

    def remember(lists: Lists, truth: Truth) -> float:
        asked.append((lists, truth))
        return 0.0

    events, users = world.tables(start, end)
    recommender.evaluate(events, users=users, task=task, k=K, metrics={"remember": remember}, n_resamples=0)
    lists, truth = asked[0]  # of all events, slices of them follow
    ids = np.array(list(dict.fromkeys(world.pairs[:, 0].tolist())))  # rows are in the order of appearance
    return {
        int(ids[user]): list(zip(lists.items[truth.users == user], lists.scores[truth.users == user], strict=True))
        for user in np.unique(truth.users)
    }


def learned_up_to_the_second_period(model: str, world: World) -> FairRecommender:
    """A recommender whose biases of elapsed time, if it has any, are far from 0."""
    recommender = make_recommender(model, **{**LEARNING, "model_settings": small_settings(model, 4)})
    recommender.fit(world.log("south", end=N_FIRST))
    events, users = world.tables(N_FIRST, N_FIRST + N_EACH)
    recommender.update(events, users=users)
    for name, parameter in recommender.model.named_parameters():
        if name.endswith(("elapsed", "since")):
            nn.init.normal_(parameter.data[1:], std=3.0)
    return recommender


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["sasrec", "blend"])
@pytest.mark.usefixtures("few_requests")
def test_the_time_of_an_event_changes_the_list_at_it_and_later_lists_of_its_user_alone(model: str) -> None:
    rng = np.random.default_rng(1)
    world = with_times(make_world(rng, 2), rng)
    assert world.times is not None
    recommender, start = learned_up_to_the_second_period(model, world), N_FIRST + N_EACH
    here, changed = lists_at_events(recommender, world, start, N_EVENTS), set[int]()
    gaps = np.diff(world.times)[start:]
    for moment in (start + 1 + np.argsort(-gaps)[:8]).tolist():
        times = world.times.copy()
        times[moment] = times[moment - 1]  # still between the same events
        there = lists_at_events(recommender, world._replace(times=times), start, N_EVENTS)
        user = int(world.pairs[moment, 0])
        n_before = int((world.pairs[start:moment, 0] == user).sum())
        for other, lists in here.items():
            for n, (ours, theirs) in enumerate(zip(lists, there[other], strict=True)):
                if other != user or n < n_before:
                    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)
                elif n == n_before and not np.allclose(ours[1], theirs[1], rtol=1e-4, atol=0):
                    changed.add(moment)
    assert len(changed) >= 3
    lists = [  # a list for the period is requested before it
        recommender.evaluate(other.tables(start)[0], users=other.tables(start)[1], k=K, n_resamples=0).to_dict()
        for other in (world, retimed(world, start, rng)._replace(groups=world.groups))
    ]
    assert lists[0] == lists[1]


@pytest.mark.few(2)
@READERS
@CHANGES
@pytest.mark.usefixtures("few_requests")
def test_a_list_at_an_event_rests_on_the_events_before_it(model: str, change: Callable[..., World]) -> None:
    rng = np.random.default_rng(1)
    world = with_times(make_world(rng, 2), rng)
    recommender, start, end = learned_up_to_the_second_period(model, world), N_FIRST + N_EACH, N_EVENTS
    assert model != "blend" or recommender.model.n_periods.any()
    here = lists_at_events(recommender, world, start, end)
    assert sum(map(len, here.values())) == end - start
    for moment in (start + 10, start + 60):
        # the event at that moment is on another item, and all later ones are changed
        other = with_other_item(change(world, moment + 1, rng), moment)
        there = lists_at_events(recommender, other, start, end)
        for user, n in zip(*np.unique(world.pairs[start : moment + 1, 0], return_counts=True), strict=True):
            for ours, theirs in zip(here[int(user)][:n], there[int(user)][:n], strict=True):
                assert ours[0].tolist() == theirs[0].tolist()
                np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)


@pytest.mark.few(2)
@READERS
@CHANGES
@pytest.mark.usefixtures("few_requests")
def test_a_list_at_a_moment_rests_on_what_was_before_it(model: str, change: Callable[..., World]) -> None:
    """Neither on the simultaneous events, of the user or of others, nor on any later event or time."""
    rng, start, n_tied = np.random.default_rng(1), N_FIRST + N_EACH, 10
    world = with_times(make_world(rng, 2), rng)
    assert world.times is not None
    world.times[start:] = world.times[start::n_tied].repeat(n_tied)
    recommender = learned_up_to_the_second_period(model, world)
    here = lists_at_events(recommender, world, start, N_EVENTS, "moment")
    assert sum(map(len, here.values())) < N_EVENTS - start
    for first in (start + n_tied, start + 6 * n_tied):
        end = first + n_tied
        other = change(world, end, rng)
        for at in range(first, end):
            other = with_other_item(other, at)
        there = lists_at_events(recommender, other, start, N_EVENTS, "moment")
        moments = np.unique(np.stack([world.pairs[start:end, 0], world.times[start:end]]), axis=1)[0]
        for user, n in zip(*np.unique(moments, return_counts=True), strict=True):
            for ours, theirs in zip(here[int(user)][:n], there[int(user)][:n], strict=True):
                assert ours[0].tolist() == theirs[0].tolist()
                np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)


# ── paper ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("optimizer", ["dense", "row"])
def test_the_papers_protocol_lets_the_future_into_the_weights(seed: int, optimizer: str) -> None:
    rng = np.random.default_rng(seed)
    everyone = np.stack([np.arange(N_USERS), np.arange(N_USERS) % N_ITEMS], axis=1)
    others = random_pairs(rng, N_EVENTS - N_USERS, n_users=N_USERS, n_items=N_ITEMS, but=everyone)
    # all users and items are there from the start
    world = World(np.concatenate([everyone, others]), permuted_groups(rng, DIRECTIONS[:2], 2 * N_USERS))
    # the same users later have other items that are known already
    other = random_pairs(rng, N_EVENTS - N_FIRST, n_users=N_USERS, n_items=N_ITEMS, but=world.pairs[:N_FIRST])
    other_future = World(np.concatenate([world.pairs[:N_FIRST], other]), world.groups)

    def pretrained(world: World, protocol: str) -> dict[str, Any]:
        options = {"protocol": protocol, "optimizer": optimizer, "n_periods": 2, "n_resamples": 0}
        state = carried(world.log("south"), **options).states[0]
        return {name: value for name, value in state.items() if name.endswith("weight") or name == "batches"}

    assert pretrained(world, "paper") != pretrained(other_future, "paper")
    for name in ("strict", "paper+leak"):
        assert pretrained(world, name) == pretrained(other_future, name)
    # It comes in through the negatives: what a user will have later is never drawn for it now.
    assert pretrained(world, "paper") != pretrained(world, "strict")
