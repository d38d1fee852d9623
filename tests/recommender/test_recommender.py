"""Fit, update, recommend, judge: what an application may rely on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fairstream
from fairstream import (
    ConfigurationError,
    Context,
    DataError,
    FairRecommender,
    ItemTable,
    ModelError,
    Scorer,
    UserTable,
)
from fairstream.training.engines.cpu_mf import CpuMF
from fairstream.training.optimizers import state_tensors
from support import make_recommender

FAST = {"pretrain_epochs": 2, "update_epochs": 2, "embedding_dim": 8, "batch_size": 64, "device": "cpu"}
STREAM = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
FIRST, SECOND, THIRD = STREAM.events.slice(0, 1200), STREAM.events.slice(1200, 400), STREAM.events.slice(1600)
USERS = STREAM.users
COLUMNS = ["user_id", "item_id", "rank", "score", "source"]


class PopularityScorer(Scorer):
    """A model of one's own: how popular an item is, plus a user's own number."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.user, self.item = UserTable(n_users, 1), ItemTable(n_items, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor, context: Context) -> torch.Tensor:
        return self.item(items).squeeze(-1) + self.user(users)


class Forgetful(Scorer):
    """Matrix factorisation with dropout: what it scores depends on whether it is training."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.user, self.item, self.dropout = UserTable(n_users, 8), ItemTable(n_items, 8), torch.nn.Dropout(0.5)

    def forward(self, users: torch.Tensor, items: torch.Tensor, context: Context) -> torch.Tensor:
        return (self.dropout(self.user(users)).unsqueeze(1) * self.item(items)).sum(-1)


def read(events: Any, users: Any = USERS) -> fairstream.EventLog:
    return fairstream.read_events(events, users=users, group="community", advantaged="majority")


def fitted(model: Any = "mf", *, on: Any = FIRST, **options: Any) -> FairRecommender:
    recommender = make_recommender(model, **{**FAST, **options})
    recommender.fit(read(on))
    return recommender


def ids(events: pa.Table, column: str) -> set[Any]:
    return set(events[column].to_pylist())


def newcomers(events: pa.Table, before: pa.Table, column: str) -> list[Any]:
    return sorted(ids(events, column) - ids(before, column))


def items_had(events: pa.Table) -> dict[Any, set[Any]]:
    had: dict[Any, set[Any]] = {}
    for user, item in zip(events["user_id"].to_pylist(), events["item_id"].to_pylist(), strict=True):
        had.setdefault(user, set()).add(item)
    return had


def everything(recommender: FairRecommender) -> dict[str, Any]:
    """All that a recommender is made of, as plain values that compare."""
    state = recommender._states.current  # `state` would mark it as shared, and updates would no longer happen in place
    tensors = {**state.model.state_dict(), **state_tensors(state.optimizer, state.model)}
    return {
        "tensors": {name: value.tolist() for name, value in tensors.items()},
        "t": state.t,
        "memory": dict(state.memory),
        "users": recommender.state.user_ids.ids.to_pylist(),
        "items": recommender.state.item_ids.ids.to_pylist(),
        "groups": (recommender.state.groups.names, recommender.state.groups.choice),
        "codes": recommender.state.groups.codes.tolist(),
        "seen": state.history.seen.keys.tolist(),
        "events": (state.history.users.tolist(), state.history.items.tolist()),
        "before": (state.trained.tolist(), state.history.n_items_before),
    }


def groups_of(recommender: FairRecommender, users: list[Any]) -> list[str | None]:
    names = (*recommender.state.groups.names, None)  # UNKNOWN is −1
    return [names[code] for code in recommender.state.groups.codes[recommender.state.user_ids.lookup(users)].tolist()]


@pytest.fixture(scope="module")
def served() -> FairRecommender:
    """A fitted recommender that no test changes."""
    return fitted()


# ── recommending ─────────────────────────────────────────────────────────────────────────


@given(data=st.data())
def test_each_user_gets_k_ranked_items_that_are_new_to_it(served: FairRecommender, data: st.DataObject) -> None:
    known_items, had = ids(FIRST, "item_id"), items_had(FIRST)
    users = data.draw(st.lists(st.sampled_from(sorted(had)), min_size=1, max_size=6, unique=True))
    k = data.draw(st.integers(1, len(known_items)))
    table = served.recommend(users, k=k)
    assert table.column_names == COLUMNS
    for user, source in zip(table["user_id"].to_pylist(), table["source"].to_pylist(), strict=True):
        # Who has had nearly everything leaves no negatives to train with.
        assert source == (
            "model" if len(known_items - had[user]) >= served.recipe.training.n_negatives else "popularity"
        )
    assert list(dict.fromkeys(table["user_id"].to_pylist())) == [u for u in users if had[u] != known_items]
    for user in users:
        rows = table.filter(pc.equal(table["user_id"], user))
        items, scores = rows["item_id"].to_pylist(), rows["score"].to_pylist()
        assert len(items) == min(k, len(known_items - had[user]))
        assert rows["rank"].to_pylist() == list(range(1, len(items) + 1))
        assert scores == sorted(scores, reverse=True)
        assert len(set(items)) == len(items)
        assert set(items) <= known_items - had[user]


def test_scores_are_the_models_and_nothing_better_is_left_out(served: FairRecommender) -> None:
    user = FIRST["user_id"][0].as_py()
    table = served.recommend([user], k=5)
    row = torch.from_numpy(served.state.user_ids.lookup([user]))
    with torch.no_grad():
        found = served.model.score_range(row, 0, len(served.state.item_ids), Context())[0].tolist()
    scores = dict(zip(served.state.item_ids.ids.to_pylist(), found, strict=True))
    assert table["score"].to_pylist() == [scores[item] for item in table["item_id"].to_pylist()]
    free = set(scores) - items_had(FIRST)[user] - set(table["item_id"].to_pylist())
    assert max(scores[item] for item in free) <= table["score"][-1].as_py()


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, pa.array, pd.Series, pl.Series, lambda users: pa.chunked_array([users])]
)
def test_users_can_be_asked_for_in_any_kind_of_list(
    served: FairRecommender, kind: Callable[[list[int]], object]
) -> None:
    users = FIRST["user_id"].to_pylist()[:3]
    assert served.recommend(kind(users), k=3) == served.recommend(users, k=3)


@pytest.mark.parametrize("k", [0, -1, 2.5, "5"])
def test_k_is_a_whole_number(served: FairRecommender, k: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"k must be a whole number from 1 on, got {k!r}"):
        served.recommend(FIRST["user_id"][:1], k=k)


def test_where_there_are_fewer_than_k_items_the_list_is_shorter(served: FairRecommender) -> None:
    n_items = len(ids(FIRST, "item_id"))
    lists = [served.recommend([-1], k=k) for k in (n_items, 10_000)]
    assert lists[0] == lists[1]
    assert lists[1].num_rows == n_items


def test_nobody_asked_for_nothing_recommended(served: FairRecommender) -> None:
    table = served.recommend([], k=5)
    assert (table.num_rows, table.column_names) == (0, COLUMNS)


def test_ids_are_only_names() -> None:
    def renamed(table: pa.Table) -> pa.Table:
        for column in {"user_id", "item_id"} & set(table.column_names):
            names = [f"{column[0]}-{number}-é漢🎬" for number in table[column].to_pylist()]
            table = table.set_column(table.column_names.index(column), column, [names])
        return table

    by_number, by_name = fitted(), make_recommender("mf", **FAST)
    by_name.fit(read(renamed(FIRST), renamed(USERS)))
    by_number.update(SECOND, users=USERS)
    by_name.update(renamed(SECOND), users=renamed(USERS))
    users = pa.table({"user_id": pc.unique(SECOND["user_id"])})
    expected = renamed(by_number.recommend(users["user_id"]))
    assert by_name.recommend(renamed(users)["user_id"]).to_pylist() == expected.to_pylist()


def test_recommending_and_judging_change_nothing() -> None:
    recommender = fitted()
    before = everything(recommender)
    recommender.recommend(FIRST["user_id"][:5])
    recommender.evaluate(SECOND, users=USERS)
    assert everything(recommender) == before


def test_a_model_with_dropout_recommends_the_same_twice() -> None:
    recommender = fitted(Forgetful)
    users = FIRST["user_id"][:5]
    assert recommender.recommend(users) == recommender.recommend(users)


# ── before fit, and what cannot be fitted ────────────────────────────────────────────────


@pytest.mark.parametrize(
    "use",
    [
        lambda recommender, _: recommender.recommend([1]),
        lambda recommender, _: recommender.update(FIRST),
        lambda recommender, _: recommender.evaluate(FIRST),
        lambda recommender, folder: recommender.save(folder),
        lambda recommender, _: recommender.model,
    ],
    ids=["recommend", "update", "disparity", "save", "model"],
)
def test_nothing_works_before_fit(use: Callable[[FairRecommender, Path], object], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"not been fitted yet; call fit\(events\) first"):
        use(make_recommender("mf", **FAST), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_a_frame_and_a_log_fit_alike(tmp_path: Path) -> None:
    pa.parquet.write_table(FIRST, tmp_path / "interactions.parquet")
    pa.parquet.write_table(USERS, tmp_path / "users.parquet")
    log = make_recommender("mf", **FAST)
    log.fit(fairstream.read_events(FIRST, users=USERS))
    expected = everything(log)
    for events, users in ((tmp_path, None), (FIRST.to_pandas(), USERS.to_pandas()), (pl.from_arrow(FIRST), USERS)):
        recommender = make_recommender("mf", **FAST)
        recommender.fit(events, users=users)
        assert everything(recommender) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "custom"}, "custom model; pass it again"),
        ({"model": "svd"}, "model must be one of"),
        ({"method": "fad"}, "method must be one of Pretrain, .*, got 'fad'"),
        ({"fairness_weight": -0.1}, "fairness_weight must be >= 0, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"method": "Retrain", "restart_every": 2}, "only fine-tuning methods restart"),
        ({"model": "svd"}, "model must be one of mf, ncf"),
        ({"loss": "mse"}, "loss must be one of bpr"),
        ({"strategy": "never"}, "strategy must be one of keep"),
        ({"method": "Rerank"}, "Rerank is a method of experiments"),
        ({"method": "adver"}, "Adver is a method of experiments"),
        ({"seed": -1}, "seed must be >= 0"),
        ({"device": "gpu"}, "device must be one of"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_at_once(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        make_recommender(**{"model": "mf", "device": "cpu", **options})


def test_more_negatives_than_items_is_refused() -> None:
    with pytest.raises(fairstream.FairstreamError, match="n_negatives"):
        fitted(n_negatives=1000)


# ── updating ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["mf", "ncf", PopularityScorer])
@pytest.mark.parametrize("method", ["FADE", "Retrain-Fair", "Pretrain"])
def test_users_and_items_simply_appear(model: Any, method: str) -> None:
    recommender = fitted(model, method=method)
    arrived, there = newcomers(SECOND, FIRST, "user_id"), ids(FIRST, "item_id") | ids(SECOND, "item_id")
    assert arrived
    assert newcomers(SECOND, FIRST, "item_id")
    assert set(recommender.recommend(arrived)["source"].to_pylist()) == {"popularity"}
    recommender.update(SECOND, users=USERS)
    table = recommender.recommend(arrived, k=len(there))
    # a model that is kept has not learned of them
    assert set(table["source"].to_pylist()) == {"popularity" if method == "Pretrain" else "model"}
    had = items_had(SECOND)
    for user in arrived:
        offered = table.filter(pc.equal(table["user_id"], user))["item_id"].to_pylist()
        assert set(offered) == there - had[user]


def test_updates_report_what_they_did() -> None:
    recommender = make_recommender("mf", **FAST)
    calls: list[tuple[int, int]] = []
    updates = [
        recommender.fit(read(FIRST), on_epoch=lambda *epoch: calls.append(epoch)).last_update,
        recommender.update(SECOND, users=USERS, on_epoch=lambda *epoch: calls.append(epoch)).last_update,
    ]
    assert calls == [(1, 2), (2, 2)] * 2
    assert [update.t for update in updates] == [0, 1]
    assert [update.step for update in updates] == ["retrain", "fine-tune"]
    assert [update.report.n_interactions for update in updates if update.report] == [1200, 400]


def test_a_kept_model_keeps_its_rows_and_has_no_report() -> None:
    recommender = fitted(method="Pretrain")
    before = {name: value.clone() for name, value in recommender.model.state_dict().items()}
    update = recommender.update(SECOND, users=USERS).last_update
    assert (update.step, update.report) == ("keep", None)
    after = recommender.model.state_dict()
    assert all(torch.equal(after[name][: len(value)], value) for name, value in before.items())


def test_events_known_already_are_left_out() -> None:
    once, overlapping = fitted(), fitted()
    once.update(SECOND, users=USERS)
    overlapping.update(pa.concat_tables([FIRST, SECOND]), users=USERS)
    # the same rows for the same newcomers: those of FIRST are known, those of SECOND come in order
    assert everything(once) == everything(overlapping)


def test_an_update_without_anything_new_is_refused(served: FairRecommender) -> None:
    with pytest.raises(DataError, match="nothing to learn"):
        served.update(FIRST.slice(100, 300), users=USERS)


@pytest.mark.parametrize("frame", [pa.Table.to_pandas, pl.from_arrow], ids=["pandas", "polars"])
def test_newcomers_of_a_plain_frame_have_no_group_and_known_users_keep_theirs(
    frame: Callable[[pa.Table], Any],
) -> None:
    recommender = fitted()
    known, arrived = sorted(ids(FIRST, "user_id")), newcomers(SECOND, FIRST, "user_id")
    before = groups_of(recommender, known)
    recommender.update(frame(SECOND.select(["user_id", "item_id", "time"])))
    assert groups_of(recommender, known) == before
    assert groups_of(recommender, arrived) == [None] * len(arrived)


@pytest.mark.parametrize("frame", [pa.Table.to_pandas, pl.from_arrow], ids=["pandas", "polars"])
def test_users_without_a_group_get_one_once_a_table_says_it(frame: Callable[[pa.Table], Any]) -> None:
    recommender = fitted()
    returned = sorted(set(newcomers(SECOND, FIRST, "user_id")) & ids(THIRD, "user_id"))
    assert returned
    recommender.update(SECOND)
    assert groups_of(recommender, returned) == [None] * len(returned)
    recommender.update(frame(THIRD), users=frame(USERS))
    assert groups_of(recommender, returned) == USERS["community"].take(returned).to_pylist()


def test_a_known_user_does_not_change_groups() -> None:
    recommender = fitted()
    known, arrived = sorted(ids(FIRST, "user_id")), newcomers(SECOND, FIRST, "user_id")
    before = groups_of(recommender, known)
    other = pc.if_else(pc.equal(USERS["community"], "majority"), "minority", "majority")
    recommender.update(SECOND, users=USERS.set_column(1, "community", other))
    assert groups_of(recommender, known) == before
    assert groups_of(recommender, arrived) == other.take(arrived).to_pylist()


def test_the_polarity_of_the_fit_holds_for_a_log_that_names_its_groups_the_other_way() -> None:
    same, other = fitted(), fitted()
    log = read(SECOND)
    assert log.groups is not None
    same.update(log)
    other.update(replace(log, groups=log.groups.with_advantaged("minority")))
    assert everything(same) == everything(other)


@pytest.mark.parametrize("community", ["majority", "minority"])
def test_an_update_may_hold_one_group_only(community: str) -> None:
    recommender = fitted()
    one = SECOND.filter(pc.equal(USERS["community"].take(SECOND["user_id"]), community))
    judged = recommender.evaluate(one, users=USERS, min_group_size=1)["ndcg@20"]
    assert (judged.performance_disparity, judged.disparity, judged.gaps) == (None, None, {})
    assert [name for name, value in judged.by_group.items() if value is not None] == [community]
    report = recommender.update(one, users=USERS).last_update.report
    assert report is not None
    assert report.n_one_group_batches == report.n_batches > 0


def test_a_column_among_the_events_gives_the_groups_too() -> None:
    recommender = fitted()
    arrived = newcomers(SECOND, FIRST, "user_id")
    recommender.update(SECOND.append_column("community", USERS["community"].take(SECOND["user_id"])))
    assert groups_of(recommender, arrived) == USERS["community"].take(arrived).to_pylist()


def test_the_groups_of_a_stream_that_can_be_read_once_are_read() -> None:
    recommender = fitted()
    arrived = newcomers(SECOND, FIRST, "user_id")
    events = SECOND.append_column("community", USERS["community"].take(SECOND["user_id"]))
    recommender.update(events.to_reader())
    assert groups_of(recommender, arrived) == USERS["community"].take(arrived).to_pylist()


def test_an_update_can_come_from_a_folder(tmp_path: Path) -> None:
    pa.parquet.write_table(SECOND, tmp_path / "interactions.parquet")
    pa.parquet.write_table(USERS, tmp_path / "users.parquet")
    from_folder, from_tables = fitted(), fitted()
    from_folder.update(tmp_path)
    from_tables.update(SECOND, users=USERS)
    assert everything(from_folder) == everything(from_tables)


# ── those of whom nothing is known ───────────────────────────────────────────────────────


def lately_popular(events: pa.Table) -> dict[Any, float]:
    """Σ 2^(−age / h) over each item's events, the half-life h a tenth of all events."""
    n, popularity = len(events), dict.fromkeys(events["item_id"].to_pylist(), 0.0)
    for at, item in enumerate(events["item_id"].to_pylist()):
        popularity[item] += 2.0 ** (-(n - 1 - at) / (0.1 * n))
    return popularity


@settings(max_examples=15)
@given(st.lists(st.integers(1000, 2**62), min_size=1, max_size=4, unique=True), st.integers(1, 40))
def test_strangers_get_what_has_been_popular_lately(served: FairRecommender, strangers: list[int], k: int) -> None:
    table, popularity = served.recommend(strangers, k=k), lately_popular(FIRST)
    best = sorted(popularity.values(), reverse=True)[:k]
    for stranger in strangers:
        rows = table.filter(pc.equal(table["user_id"], stranger))
        assert rows["rank"].to_pylist() == list(range(1, k + 1))
        assert set(rows["source"].to_pylist()) == {"popularity"}
        assert rows["score"].to_pylist() == pytest.approx(best)
        assert [popularity[item] for item in rows["item_id"].to_pylist()] == pytest.approx(best)


@settings(max_examples=10)
@given(st.permutations([*FIRST["user_id"].to_pylist()[:3], 1001, 1002]))
def test_strangers_and_others_are_answered_in_the_order_asked(served: FairRecommender, users: list[int]) -> None:
    users = list(dict.fromkeys(users))
    table = served.recommend(users, k=3)
    assert table["user_id"].to_pylist() == [user for user in users for _ in range(3)]
    assert table["source"].to_pylist() == ["popularity" if user > 1000 else "model" for user in users for _ in range(3)]
    for user in users:  # each gets what it gets alone
        alone, among = served.recommend([user], k=3), table.filter(pc.equal(table["user_id"], user))
        assert all(among[column].equals(alone[column]) for column in ("item_id", "rank", "source"))


def test_what_everybody_takes_now_comes_first() -> None:
    recommender = fitted()
    before = recommender.recommend([1001], k=1)["item_id"][0].as_py()
    fashion = pa.table({"user_id": sorted(ids(FIRST, "user_id")), "item_id": [9999] * len(ids(FIRST, "user_id"))})
    recommender.update(fashion.append_column("time", [[5.0] * len(fashion)]))
    assert recommender.recommend([1001], k=1)["item_id"].to_pylist() == [9999] != [before]


def test_who_came_after_a_kept_model_gets_what_is_popular_less_what_it_had() -> None:
    recommender = fitted(method="Pretrain")
    recommender.update(SECOND, users=USERS)
    arrived, had = newcomers(SECOND, FIRST, "user_id"), items_had(SECOND)
    popularity = lately_popular(pa.concat_tables([FIRST, SECOND]))
    table = recommender.recommend(arrived, k=5)
    assert set(table["source"].to_pylist()) == {"popularity"}
    for user in arrived:
        offered = table.filter(pc.equal(table["user_id"], user))["item_id"].to_pylist()
        free = sorted((score for item, score in popularity.items() if item not in had[user]), reverse=True)
        assert [popularity[item] for item in offered] == pytest.approx(free[:5])


# ── groups ────────────────────────────────────────────────────────


def test_a_new_value_in_an_update_is_a_new_group() -> None:
    recommender = fitted()
    known, arrived = sorted(ids(FIRST, "user_id")), newcomers(SECOND, FIRST, "user_id")
    before = groups_of(recommender, known)
    strangers = USERS.set_column(1, "community", [["visitors"] * 100])
    judged = recommender.evaluate(SECOND, users=strangers, min_group_size=1, n_resamples=10)
    assert list(judged["ndcg@20"].by_group) == ["majority", "minority", "visitors"]
    assert judged["ndcg@20"].by_group["visitors"] == judged.slices["cold_users"]["ndcg@20"].mean
    recommender.update(SECOND, users=strangers)
    assert groups_of(recommender, known) == before  # known users keep theirs
    assert groups_of(recommender, arrived) == ["visitors"] * len(arrived)
    judged = recommender.evaluate(THIRD, users=USERS, min_group_size=1, n_resamples=10)["ndcg@20"]
    assert set(judged.gaps) == {"majority", "minority", "visitors"}


def test_any_number_of_groups_is_fitted_and_judged() -> None:
    many = USERS.set_column(1, "community", [[f"g{user % 7}" for user in range(100)]])
    recommender = make_recommender("mf", **FAST)
    recommender.fit(fairstream.read_events(FIRST, users=many, group="community", advantaged="g3"))
    score = recommender.evaluate(SECOND, users=many, min_group_size=1, n_resamples=0)["ndcg@20"]
    assert next(iter(score.by_group)) == "g3"
    assert set(score.gaps) == {f"g{n}" for n in range(7)}
    assert score.disparity == score.gaps["g3"]


# ── failing ──────────────────────────────────────────────────────────────────────────────

BAD_EVENTS: dict[str, tuple[Any, Any, str]] = {
    "nothing new": (FIRST, USERS, "known already|learned"),
    "no events": (SECOND.slice(0, 0), USERS, "no events"),
    "missing column": (SECOND.drop(["item_id"]), USERS, "item column"),
    "string users": (SECOND.set_column(0, "user_id", SECOND["user_id"].cast(pa.string())), None, "one kind"),
    "string items": (SECOND.set_column(1, "item_id", SECOND["item_id"].cast(pa.string())), USERS, "one kind"),
    "missing id": (SECOND.set_column(0, "user_id", pa.nulls(400, pa.int64())), USERS, "400 of 400 are missing"),
    "missing time": (SECOND.set_column(2, "time", pa.nulls(400, pa.float64())), USERS, "every event needs a time"),
    "another attribute": (
        fairstream.read_events(SECOND, users=USERS.rename_columns(["user_id", "tribe"])),
        None,
        "groups must stay the same",
    ),
    "no table": ([("ann", 1)], USERS, "must be a path or a table"),
    "no file": ("nowhere.csv", USERS, "no file"),
}


@pytest.mark.few(10)
@pytest.mark.parametrize(("events", "users", "sentence"), BAD_EVENTS.values(), ids=BAD_EVENTS)
@pytest.mark.parametrize("use", [FairRecommender.update, FairRecommender.evaluate], ids=["update", "disparity"])
def test_bad_events_are_refused_and_change_nothing(
    use: Callable[..., Any], events: Any, users: Any, sentence: str
) -> None:
    recommender = fitted(restart="on-degradation")
    asked = FIRST["user_id"][:10]
    before, recommended = everything(recommender), recommender.recommend(asked)
    with pytest.raises(DataError, match=sentence):
        use(recommender, events, users=users)
    assert everything(recommender) == before
    assert recommender.recommend(asked) == recommended


def test_a_failed_fit_leaves_the_earlier_one_in_service() -> None:
    recommender = fitted()
    before = everything(recommender)
    for events, users in ((SECOND.drop(["item_id"]), USERS), (SECOND.slice(0, 0), USERS)):
        with pytest.raises(DataError):
            recommender.fit(events, users=users)
    with pytest.raises(RuntimeError, match="stop"):
        recommender.fit(read(SECOND), on_epoch=_stop)
    assert everything(recommender) == before


@pytest.mark.few(1)
@pytest.mark.parametrize(("model", "optimizer"), [("mf", "row"), ("ncf", "dense")])
@pytest.mark.parametrize(
    "options", [{"restart_every": 2}, {"restart_every": 1}, {"restart": "on-degradation"}, {"method": "Retrain"}]
)
def test_an_interrupted_update_leaves_no_trace(model: str, optimizer: str, options: dict[str, Any]) -> None:
    recommender, undisturbed = (fitted(model, optimizer=optimizer, **options) for _ in range(2))
    before = everything(recommender)
    with pytest.raises(RuntimeError, match="stop"):
        recommender.update(SECOND, users=USERS, on_epoch=_stop)
    assert everything(recommender) == before
    for events in (SECOND, THIRD):  # and what follows is what would have followed
        recommender.update(events, users=USERS)
        undisturbed.update(events, users=USERS)
        assert everything(recommender) == everything(undisturbed)


def test_even_an_update_that_is_interrupted_after_its_last_step_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recommender, undisturbed = fitted(), fitted()
    before = everything(recommender)
    finish = CpuMF.finish

    def interrupted(engine: CpuMF, *, in_place: bool) -> None:
        finish(engine, in_place=in_place)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CpuMF, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recommender.update(SECOND, users=USERS)
    assert everything(recommender) == before
    recommender.update(SECOND, users=USERS)
    undisturbed.update(SECOND, users=USERS)
    assert everything(recommender) == everything(undisturbed)


def _stop(done: int, total: int) -> None:
    raise RuntimeError("stop")


def test_a_training_that_diverges_says_so() -> None:
    with pytest.raises(ModelError, match=r"training diverged.*lower learning_rate"):
        fitted(learning_rate=1e30)


# ── judging ──────────────────────────────────────────────────────────────────────────────


@settings(max_examples=15)
@given(k=st.integers(1, 30), min_group_size=st.sampled_from([1, 20, 30, 90]))
def test_disparity_is_the_advantaged_groups_value_less_the_others(
    served: FairRecommender, k: int, min_group_size: int
) -> None:
    judged = served.evaluate(SECOND, users=USERS, k=k, min_group_size=min_group_size, n_resamples=0)
    assert list(judged.metrics) == [f"{name}@{k}" for name in ("ndcg", "recall", "precision", "f1", "hit", "mrr")]
    tested = ids(SECOND, "user_id")
    sizes = {name: groups_of_ids(tested).count(name) for name in ("majority", "minority")}
    assert dict(judged.excluded_groups) == {name: n for name, n in sizes.items() if n < min_group_size}
    for score in judged.metrics.values():
        advantaged, disadvantaged = score.by_group["majority"], score.by_group["minority"]
        assert {name for name, value in score.by_group.items() if value is None} == set(judged.excluded_groups)
        assert (score.disparity is None) == bool(judged.excluded_groups)
        if not judged.excluded_groups:
            assert score.performance_disparity == pytest.approx(advantaged - disadvantaged, abs=1e-12)
            assert min(advantaged, disadvantaged) <= score.mean <= max(advantaged, disadvantaged)
    assert judged.n_users == len(tested)
    assert judged.n_cold_users == len(newcomers(SECOND, FIRST, "user_id")) == judged.slices["cold_users"].n_users


@pytest.mark.parametrize("model", ["mf", "item-item"])
def test_an_evaluation_tests_the_lists_that_recommend_returns(model: str) -> None:
    """Also the lists of newcomers, whom the fallback serves, and where the events of a group count more."""
    rec = fitted(model, group_weight=4.0)
    evaluation = rec.evaluate(SECOND, users=USERS, k=8, n_resamples=0)
    users = evaluation.users.to_pylist()
    lists = rec.recommend(evaluation.users, k=8).to_pandas().groupby("user_id")["item_id"].agg(list)
    wanted = SECOND.to_pandas().groupby("user_id")["item_id"].agg(set)
    # A list can be short, or empty: of a user who has had all known items.
    expected = [[item in wanted[user] for item in lists.get(user, [])] for user in users]
    assert [
        hits[: len(short)] for hits, short in zip(evaluation.tested.hits.tolist(), expected, strict=True)
    ] == expected
    assert evaluation.tested.is_cold.sum() == evaluation.n_cold_users > 5
    assert evaluation.values["hit@8"].tolist() == [float(any(hits)) for hits in expected]


def test_options_of_an_evaluation_that_make_no_sense_are_refused(served: FairRecommender) -> None:
    with pytest.raises(ConfigurationError, match="n_resamples >= 0, got 20 and -1"):
        served.evaluate(SECOND, users=USERS, n_resamples=-1)
    with pytest.raises(ConfigurationError, match="metrics must name at least one"):
        served.evaluate(SECOND, users=USERS, metrics=[])


def test_longer_lists_than_there_are_items_end_with_the_items(served: FairRecommender) -> None:
    n_items = served.state.history.n_items
    longest, whole = (served.evaluate(SECOND, users=USERS, k=k, n_resamples=0) for k in (n_items + 100, n_items))
    assert longest.metrics == whole.metrics
    assert longest.notes == (
        f"k = {n_items + 100} exceeds the {n_items} known items: the lists and the metrics end there",
        *whole.notes,
    )


def groups_of_ids(users: set[int]) -> list[str]:
    return USERS["community"].take(sorted(users)).to_pylist()


def test_disparity_says_how_sure_it_is(served: FairRecommender) -> None:
    judged, again, unsure = (
        served.evaluate(SECOND, users=USERS, min_group_size=1, n_resamples=n) for n in (200, 200, 0)
    )
    assert judged == again
    for metric, score in judged.metrics.items():
        assert score.disparity is not None
        assert score.disparity.interval is not None
        low, high = score.disparity.interval
        assert low < score.disparity.value < high
        assert 0 < score.disparity.p_value <= 1
        assert score.disparity.null_mean > 0
        assert score.disparity.may_be_chance == (score.disparity.p_value >= 0.05)
        assert score.interval[0] < score.mean < score.interval[1]
        assert unsure[metric].disparity == fairstream.Estimate(score.disparity.value)
        assert unsure[metric].interval is None


def test_only_new_events_judge(served: FairRecommender) -> None:
    both = pa.concat_tables([FIRST, SECOND])
    assert served.evaluate(both, users=USERS) == served.evaluate(SECOND, users=USERS)
    with pytest.raises(DataError, match="evaluate it on new ones"):
        served.evaluate(FIRST, users=USERS)


def test_events_that_were_judged_on_cannot_judge_once_learned() -> None:
    recommender = fitted()
    recommender.evaluate(SECOND, users=USERS)
    recommender.update(SECOND, users=USERS)
    with pytest.raises(DataError, match="evaluate it on new ones"):
        recommender.evaluate(SECOND, users=USERS)


@pytest.mark.parametrize("k", [0, -1, 2.5])
def test_k_must_be_positive_for_an_evaluation_too(served: FairRecommender, k: int) -> None:
    with pytest.raises(ConfigurationError, match=f"k must be .*, got {k}"):
        served.evaluate(SECOND, users=USERS, k=k)


# ── restarting ───────────────────────────────────────────────────────────────────────────


def test_every_other_update_restarts() -> None:
    recommender = fitted(restart_every=2)
    parts = [SECOND.slice(start, 80) for start in range(0, 400, 80)]
    steps = [recommender.update(part, users=USERS).last_update.step for part in parts]
    assert steps == ["fine-tune", "retrain", "fine-tune", "retrain", "fine-tune"]


def test_restarting_every_time_is_retraining() -> None:
    restarting, retraining = fitted(method="FADE", restart_every=1), fitted(method="Retrain-Fair")
    for recommender in (restarting, retraining):
        assert recommender.update(SECOND, users=USERS).last_update.step == "retrain"
    ours, theirs = everything(restarting), everything(retraining)
    assert ours.pop("memory") != theirs.pop("memory")
    assert ours == theirs


def test_a_model_that_does_worse_restarts_and_says_why() -> None:
    recommender, steps, notes = fitted(restart="on-degradation"), [], []
    for t in range(4):
        # The first update is an ordinary one; after it users take what the model holds least of.
        events = SECOND if t == 0 else _least_recommended(recommender, t)
        update = recommender.update(events, users=USERS).last_update
        assert update.notes[0] in recommender.notes
        steps.append(update.step)
        notes.append(update.notes[0])
    assert steps == ["fine-tune", "fine-tune", "retrain", "fine-tune"]
    assert [note.split(":")[0] for note in notes] == ["no restart", "no restart", "restart", "no restart"]
    assert "NDCG relative to recent popularity changed by -" in notes[2]


def test_what_a_restart_is_decided_by_is_forgotten_with_the_user() -> None:
    recommender = fitted(restart="on-degradation").update(SECOND, users=USERS)
    remembered = recommender.state.memory["recent"][0]
    row = remembered["users"][3]
    recommender.forget(recommender.state.user_ids.ids[row].as_py())
    left = recommender.state.memory["recent"][0]
    assert len(left["users"]) == len(remembered["users"]) - 1
    assert left["total"] == remembered["total"][:3] + remembered["total"][4:]
    assert left["users"] == remembered["users"][:3] + [user - 1 for user in remembered["users"][4:]]


def _least_recommended(recommender: FairRecommender, t: int) -> pa.Table:
    users = sorted(ids(FIRST, "user_id"))
    ranked = recommender.recommend(users, k=len(recommender.state.item_ids))
    last = ranked.group_by("user_id").aggregate([("rank", "max")])
    at_the_end = ranked.join(last, "user_id").filter(pc.field("rank") == pc.field("rank_max"))
    ordered = at_the_end.filter(pc.field("rank") > 20).sort_by("user_id").select(["user_id", "item_id"])
    return ordered.append_column("time", [[float(10 + t)] * len(ordered)])


def test_restarting_on_degradation_works_with_a_small_catalogue() -> None:
    few = STREAM.events.filter(pc.less(STREAM.events["item_id"], 15))
    recommender = fitted(on=few.slice(0, 250), restart="on-degradation")
    assert recommender.update(few.slice(250), users=USERS).last_update.step == "fine-tune"


# ── repeating ────────────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["mf", "ncf", PopularityScorer, Forgetful])
@pytest.mark.parametrize("optimizer", ["row", "dense"])
def test_the_same_seed_and_events_give_the_same_recommender(model: Any, optimizer: str) -> None:
    def carried(seed: int, disturbance: int) -> dict[str, Any]:
        torch.manual_seed(disturbance)
        recommender = fitted(model, optimizer=optimizer, seed=seed)
        torch.manual_seed(disturbance + 1)
        recommender.update(SECOND, users=USERS)
        recommender.update(THIRD, users=USERS)
        return everything(recommender)

    assert carried(7, disturbance=1) == carried(7, disturbance=2)
    assert carried(7, disturbance=1)["tensors"] != carried(8, disturbance=1)["tensors"]


def test_nobody_elses_random_draws_are_disturbed() -> None:
    torch.manual_seed(5)
    undisturbed = torch.rand(3).tolist()
    torch.manual_seed(5)
    recommender = fitted()
    recommender.update(SECOND, users=USERS)
    recommender.recommend(FIRST["user_id"][:3])
    assert torch.rand(3).tolist() == undisturbed


def test_fairness_weighs_in() -> None:
    assert everything(fitted(fairness_weight=0.0))["tensors"] == everything(fitted(method="Finetune"))["tensors"]
    assert everything(fitted(fairness_weight=4.0))["tensors"] != everything(fitted(method="Finetune"))["tensors"]


# ── reading as before ────────────────────────────────────────────────────────────────────


def test_an_update_is_read_as_the_fit_was() -> None:
    def rated(table: pa.Table) -> pa.Table:
        liked = [5 if at % 2 else 3 for at in range(len(table))]
        return table.rename_columns(["who", "what", "when"]).append_column("rating", [liked])

    recommender = make_recommender("mf", **FAST)
    people = USERS.rename_columns(["who", "community"])
    named = {"user_column": "who", "item_column": "what", "time_column": "when", "rating_above": 4.0}
    recommender.fit(fairstream.read_events(rated(FIRST), users=people, group="community", **named))
    report = recommender.update(rated(SECOND), users=people).last_update.report
    assert report is not None
    assert report.n_interactions == len(SECOND) // 2


@pytest.mark.parametrize("use", ["fit", "update", "evaluate"])
def test_users_beside_a_log_are_refused(use: str) -> None:
    with pytest.raises(ConfigurationError, match="give users to read_events"):
        getattr(fitted(), use)(read(SECOND), users=USERS)


def test_one_id_is_a_list_of_one(served: FairRecommender) -> None:
    user = FIRST["user_id"][0].as_py()
    assert served.recommend(user) == served.recommend([user])
    with pytest.raises(DataError, match="ids must not be missing, but 1 of 1 are"):
        served.recommend([None])


# ── one way to learn ─────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["FADE", "Retrain-Fair", "Pretrain"])
def test_a_recommender_learns_what_a_run_learns(method: str) -> None:
    options = {"method": method, "pretrain_epochs": 2, "update_epochs": 2, "embedding_dim": 8, "device": "cpu"}
    shared = {name: value for name, value in options.items() if name != "embedding_dim"}
    lean = {**shared, "n_periods": 3, "n_resamples": 0, "tasks": ("next",)}
    run = fairstream.run(read(STREAM.events), model=fairstream.models.MF(embedding_dim=8), **lean)
    recommender = make_recommender(**{"model": "mf", **options})
    recommender.fit(read(STREAM.events.slice(0, run.periods.ends[0])))
    for result in run:
        span = run.periods.span(result.t)
        recommender.update(STREAM.events.slice(span.start, span.stop - span.start), users=USERS)
        ours, theirs = recommender.model.state_dict(), run.state.model.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert set(ours) == set(theirs)


def test_files_of_lists_hold_what_recommend_returns(tmp_path: Path) -> None:
    rec = fitted("item-item")
    known = rec.state.user_ids.ids
    rec.recommend_to(tmp_path / "all", k=4, users_per_file=30, exclude=[5])
    files = sorted((tmp_path / "all").iterdir())
    assert [file.name for file in files] == [f"part-{n:05}.parquet" for n in range(-(-len(known) // 30))]
    tables = [pyarrow.parquet.read_table(file) for file in files]
    for n, table in enumerate(tables):
        assert table == rec.recommend(known.slice(30 * n, 30), k=4, exclude=[5])
    rec.recommend_to(tmp_path / "some", [known[1].as_py(), -7], k=4)
    (file,) = (tmp_path / "some").iterdir()
    assert pyarrow.parquet.read_table(file) == rec.recommend([known[1].as_py(), -7], k=4)
    rec.recommend_to(tmp_path / "nobody", [])
    (file,) = (tmp_path / "nobody").iterdir()
    assert pyarrow.parquet.read_table(file).column_names == COLUMNS


def test_files_of_lists_never_replace_anything(tmp_path: Path) -> None:
    rec = fitted("popularity")
    (tmp_path / "mine").write_text("mine")
    for wrong in (tmp_path, tmp_path / "mine", tmp_path / "mine" / "inside"):
        with pytest.raises(ConfigurationError, match=r"exists already|could not be written"):
            rec.recommend_to(wrong)
    with pytest.raises(ConfigurationError, match="users_per_file"):
        rec.recommend_to(tmp_path / "new", users_per_file=0)
    with pytest.raises(ConfigurationError, match="task must be"):
        rec.recommend_to(tmp_path / "new", task="remain")  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
