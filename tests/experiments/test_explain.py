"""A run that explains: nothing else changes, and what changed alone in the stream has the largest part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fairstream import ConfigurationError, DataError, EventLog, Record, Run, RunConfig, read_events, run
from fairstream.experiments import Store, explain_run, make_run, run_id
from fairstream.experiments.identity import used_settings
from fairstream.tools.explain import Explanation
from stores import alone, complete, small, source_of, write_stream

N_KINDS, N_ITEMS_OF_A_KIND, N_TESTED = 8, 14, 300
STREAM: dict[str, Any] = {"min_group_size": 10, "n_resamples": 200, "k": 10, "tasks": ("next",)}

FAST: dict[str, Any] = {
    "pretrain_epochs": 2,
    "update_epochs": 1,
    "n_periods": 3,
    "device": "cpu",
    "k": 5,
    "min_group_size": 1,
    "n_resamples": 0,
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> EventLog:
    return source_of(write_stream(tmp_path_factory.mktemp("explain") / "stream")).read()


def document_of(log: EventLog, config: RunConfig) -> dict[str, Any]:
    job = make_run(log, config)
    list(job)
    return {name: part for name, part in job.document().items() if name not in ("config", "timing")}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {"method": "FADE", "fairness_weight": 2.0},
        {"method": "Finetune", "model": "item-item", "group_weight": 3.0},
        {"method": "Finetune", "model": "item-item", "max_gap": 0.001},
        {"method": "Rerank"},
        {"method": "Retrain-Fair", "tasks": ("event",)},
        {"method": "FADE", "engine": "reference", "model": "ncf"},
        {"method": "Pretrain-Fair", "protocol": "paper"},
        pytest.param({"method": "Adver"}, marks=pytest.mark.slow),
        pytest.param({"method": "FADE", "model": "blend"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_explaining_changes_nothing_else(log: EventLog, options: dict[str, Any]) -> None:
    plain, explained = (document_of(log, small(**options, explain=explain)) for explain in (False, True))
    for result in explained["periods"]:
        assert set(result.pop("explanation")) == set(result["tasks"]) - {"remain"}
    assert json.dumps(plain) == json.dumps(explained)


def test_runs_from_before_keep_their_ids(log: EventLog) -> None:
    plain, explained = small(), small(explain=True)
    assert run_id(log, plain) != run_id(log, explained)
    # What decides the results is the same: seeds and settings are pooled and compared as before.
    assert used_settings(plain.model_dump()) == used_settings(explained.model_dump())


@pytest.mark.slow
def test_a_store_keeps_the_explanations(log: EventLog, tmp_path: Path) -> None:
    job = Run(log, small(explain=True, n_resamples=20))
    list(job)
    store = Store(tmp_path / "store")
    store.create()
    store.write("a", Record.from_document(job.document()))
    found = explain_run(store.folder)
    assert found == explain_run(store.path("a"))
    assert list(found.periods) == [result.t for result in job.results]
    assert found.shown == job.results[-1].explanation["event"][found.metric]
    assert found.shown.everyone.after == pytest.approx(job.results[-1].tasks["event"][found.metric].mean)
    assert found.shown.everyone.before == pytest.approx(job.results[-2].tasks["event"][found.metric].mean)
    assert found.shown.gaps["majority"].after == pytest.approx(
        job.results[-1].tasks["event"][found.metric].performance_disparity
    )


def test_a_model_that_is_kept_has_learned_nothing(log: EventLog) -> None:
    for explanation in explanations(run(log, "pretrain", model="mf", explain=True, **FAST)):
        parts = explanation.everyone.parts
        assert parts["learning"].value == 0
        assert "lever" not in parts


def explanations(job: Run, task: str = "next") -> list[Explanation]:
    return [next(iter(result.explanation[task].values())) for result in job]


def test_the_lever_is_apart_from_what_is_learned(log: EventLog) -> None:
    """From one pre-trained model, FADE learns what Finetune learns; all that it does otherwise is the lever's."""
    plain = run(log, "finetune", model="mf", explain=True, **FAST)
    begun = plain.begin()
    fair = run(log, "fade", model="mf", fairness_weight=300.0, explain=True, **FAST)
    fair.begin_from(plain.learned(), begun.update)
    without, with_lever = next(plain), next(fair)
    (one, other) = (next(iter(result.explanation["next"].values())).everyone for result in (without, with_lever))
    for name, part in one.parts.items():
        assert other.parts[name].value == pytest.approx(part.value, abs=1e-12)
    assert other.parts["lever"].value == pytest.approx(other.after - one.after, abs=1e-12)
    assert abs(other.parts["lever"].value) > 0.001
    assert other.lever_worth is not None
    assert other.lever_worth.value == pytest.approx(other.parts["lever"].value)


@pytest.mark.slow
def test_a_weight_that_stays_is_worth_something_and_changes_little(log: EventLog) -> None:
    """In closed form the weight acts on all events at once: its worth is a level, its part how much that moved."""
    options = {**FAST, "model": "popularity", "explain": True}
    found = explanations(run(log, "finetune", group_weight=50.0, **options))
    plain = explanations(run(log, "finetune", **options))
    for one, other in zip(found, plain, strict=True):
        assert one.everyone.lever_worth is not None
        worth = one.everyone.after - other.everyone.after
        assert one.everyone.lever_worth.value == pytest.approx(worth, abs=1e-12)
        assert one.everyone.parts["learning"].value == pytest.approx(other.everyone.parts["learning"].value, abs=1e-12)


# ── streams in which one thing changes ───────────────────────────────────────────────────


def stream(newcomers: Sequence[float], new_items: Sequence[float], seed: int = 0) -> tuple[EventLog, list[int]]:
    """Users of several kinds, each with items of its own; of each period the shares of newcomers and new items.

    Returns the log and how many events each part of it has.
    """
    rng = np.random.default_rng(seed)
    had: dict[int, set[int]] = {}
    users, items, sizes = [], [], []

    def act(user: int, item: int | None = None) -> None:
        mine = had.setdefault(user, set())
        if item is None:
            kind = user % N_KINDS
            left = set(range(kind * N_ITEMS_OF_A_KIND, (kind + 1) * N_ITEMS_OF_A_KIND)) - mine
            item = int(rng.choice(sorted(left)))
        mine.add(item)
        users.append(user)
        items.append(item)

    n_users = 600
    for user in range(n_users):
        for _ in range(6):
            act(user)
    sizes.append(len(users))
    fresh = 10_000
    for share_new, share_items in zip(newcomers, new_items, strict=True):
        begin, n_new = len(users), round(N_TESTED * share_new)
        people = [*rng.choice(n_users, N_TESTED - n_new, replace=False).tolist(), *range(fresh, fresh + n_new)]
        for user in people:
            fresh += 1
            act(user, fresh if rng.random() < share_items else None)
        sizes.append(len(users) - begin)
    everyone = sorted(had)
    events = pa.table({"user_id": users, "item_id": items, "time": np.arange(len(users))})
    # Groups by another digit than kinds, so that they are served alike.
    groups = ["a" if user // N_KINDS % 2 else "b" for user in everyone]
    table = pa.table({"user_id": everyone, "group": groups})
    return read_events(events, users=table, group="group", advantaged="a"), sizes


def change_of(newcomers: Sequence[float], new_items: Sequence[float], at: int = -1, **options: Any) -> Any:
    """The change for everyone, of the last period unless told otherwise."""
    log, sizes = stream(newcomers, new_items)
    given = {"model": "item-item", "pretrain_events": sizes[0], "period": str(N_TESTED), **STREAM, **options}
    return explanations(run(log, "finetune", explain=True, device="cpu", **given))[at].everyone


def check_only(change: Any, part: str) -> None:
    """One part is told from chance and is most of the change; the others are small beside it."""
    moved = change.parts[part]
    assert moved.interval[0] * moved.interval[1] > 0
    others = [abs(other.value) for name, other in change.parts.items() if name != part]
    assert max(others) < abs(moved.value) / 5


@pytest.mark.few(1)
@pytest.mark.parametrize(("shares", "sign"), [((0.1, 0.1, 0.7), -1), ((0.7, 0.7, 0.1), 1)])
def test_only_the_newcomers_change(shares: tuple[float, ...], sign: int) -> None:
    change = change_of(shares, (0.0, 0.0, 0.0))
    check_only(change, "new_people")
    assert np.sign(change.parts["new_people"].value) == sign


@pytest.mark.few(1)
@pytest.mark.parametrize(("shares", "sign"), [((0.0, 0.0, 0.5), -1), ((0.5, 0.5, 0.0), 1)])
def test_only_the_items_change(shares: tuple[float, ...], sign: int) -> None:
    change = change_of((0.1, 0.1, 0.1), shares)
    check_only(change, "new_items")
    assert np.sign(change.parts["new_items"].value) == sign


def test_only_the_model_changes() -> None:
    """An update that breaks the model: a learning rate at which nothing is left of what was learned."""
    options: dict[str, Any] = {"pretrain_epochs": 30, "model_settings": {"embedding_dim": 16}, "learning_rate": 0.01}
    options |= {"model": "mf", "update_learning_rate": 5.0, "update_epochs": 3}
    change = change_of((0.05,) * 3, (0.0,) * 3, at=0, **options)
    assert change.parts["learning"].value < 0
    check_only(change, "learning")


# ── what cannot be explained ─────────────────────────────────────────────────────────────


def test_a_run_without_the_numbers_says_how_to_make_them(log: EventLog, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create()
    job = Run(log, small())
    list(job)
    store.write("a", Record.from_document(job.document()))
    with pytest.raises(DataError, match=r"make the run again with `fairstream run … --explain`"):
        explain_run(tmp_path)
    store.write("b", Record.from_document(job.document()))
    with pytest.raises(DataError, match=r"has 2 runs; give the file of one of them: .*a\.parquet \(FADE, seed 0\)"):
        explain_run(tmp_path)


def test_what_is_not_there_is_named(log: EventLog, tmp_path: Path) -> None:
    job = Run(log, small(explain=True))
    list(job)
    store = Store(tmp_path)
    store.create()
    store.write("a", Record.from_document(job.document()))
    with pytest.raises(ConfigurationError, match="task must be one of event, next, got 'remain'"):
        explain_run(tmp_path, task="remain")
    with pytest.raises(ConfigurationError, match=r"metric must be one of ndcg@5, .*got 'ndcg@7'"):
        explain_run(tmp_path, metric="ndcg@7")
    with pytest.raises(ConfigurationError, match="period must be one of 1, 2, got 9"):
        explain_run(tmp_path, t=9)
    with pytest.raises(DataError, match="is not a store of runs"):
        explain_run(tmp_path / "runs")
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(DataError, match="is not a finished run"):
        explain_run(tmp_path / "no.json")


def test_only_tasks_about_one_period_can_be_explained() -> None:
    with pytest.raises(ConfigurationError, match="explain is about the tasks event, moment and next"):
        RunConfig(tasks="remain", explain=True)
    assert RunConfig(explain=True, method="Rerank").explained_tasks == ("next",)


@pytest.mark.slow
def test_a_retraining_run_is_not_computed_in_parts(tmp_path: Path) -> None:
    """Each period is compared with the one before it."""
    source = source_of(write_stream(tmp_path / "stream"))
    config = small("Retrain", explain=True, n_resamples=10)
    with pytest.raises(ConfigurationError, match="only a method that retrains every period"):
        Run(source.read(), config).retrain_at(1)
    store = Store(tmp_path / "store")
    store.create()
    complete(store, source, [config])
    assert store.path(run_id(source.read(), config)).read_bytes() == alone(source, config)
