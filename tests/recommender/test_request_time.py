"""The time of the request: what `at` means, what it changes, and that times survive all that happens to a state."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

import fairstream as fs
from support import make_recommender

N_USERS, N_ITEMS, LAST = 12, 30, 1_750_000_020  # the first second of a minute
USERS = [f"u{row}" for row in range(N_USERS)]


def events(n: int = 200, last: float = LAST, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(N_USERS * N_ITEMS)[:n]
    times = last - np.append(rng.exponential(5_000, n - 1).cumsum()[::-1], 0)
    columns = {"user_id": [f"u{pair // N_ITEMS}" for pair in pairs], "item_id": pairs % N_ITEMS}
    return pa.table({**columns, "timestamp": (times * 1e6).astype("datetime64[us]")})


def fitted(model: str = "sasrec", table: pa.Table | None = None) -> fs.FairRecommender:
    rec = make_recommender(model, device="cpu", pretrain_epochs=1, update_epochs=1, embedding_dim=8)
    rec.fit(events() if table is None else table)
    for name, parameter in rec.state.model.named_parameters():
        if name.endswith(("elapsed", "since")):  # what the tests look at is not what one epoch learns
            torch.nn.init.normal_(parameter.data[1:], std=3.0)
    return rec


def without_times(table: pa.Table) -> pa.Table:
    return table.set_column(2, "timestamp", pa.array(range(len(table))))


def seconds_of(rec: fs.FairRecommender) -> list[float]:
    history = rec.state.history
    times = history.times_at(range(len(history)))
    assert times is not None
    return times.tolist()


@pytest.mark.parametrize("model", ["sasrec", "blend"])
def test_a_list_depends_on_the_time_of_its_request(model: str, tmp_path: Path) -> None:
    rec = fitted(model)
    now, week = (rec.recommend(USERS, at=LAST + days * 86_400) for days in (0, 7))
    assert rec.recommend(USERS).equals(now)
    assert not week.equals(now)
    rec.recommend_to(tmp_path / "lists", USERS, at=LAST + 7 * 86_400)
    assert pq.read_table(tmp_path / "lists")["item_id"].equals(week["item_id"])


def test_one_moment_can_be_written_in_several_ways() -> None:
    rec, moment = fitted(), datetime(2025, 7, 1, 12, tzinfo=UTC)
    abroad = moment.astimezone(timezone(timedelta(hours=9)))
    ways = [moment.timestamp(), int(moment.timestamp()), np.float64(moment.timestamp()), abroad]
    ways += [moment.replace(tzinfo=None), np.datetime64("2025-07-01T12:00"), np.datetime64("2025-07-01T12", "h")]
    expected = rec.recommend(USERS, at=moment)
    assert all(rec.recommend(USERS, at=way).equals(expected) for way in ways)
    same_minute = rec.recommend(USERS, at=LAST)
    assert rec.recommend(USERS, at=LAST + 59).equals(same_minute)


NO_MOMENTS = [np.datetime64("NaT"), pd.NaT, np.timedelta64(LAST, "s"), timedelta(days=1), date(2025, 7, 1)]
NO_MOMENTS += [np.nan, np.inf, -1, 1.8e12, 10**400, True, np.True_, "2025-07-01", [LAST], datetime.max, datetime.min]


def written(table: pa.Table, way: str) -> pa.Table:
    """The same table with its times in whole seconds, written in another way."""
    seconds = pa.array(table["timestamp"].to_numpy().astype("datetime64[s]").astype(np.int64))
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    if way in per_second:
        column = pc.multiply(seconds, per_second[way])
    elif way == "float":
        column = seconds.cast(pa.float64())
    else:
        column = seconds.cast(pa.timestamp("s", "Asia/Kathmandu" if way == "zone" else None))  # UTC+05:45
        column = pc.strftime(column, "%Y-%m-%dT%H:%M:%S+00:00") if way == "text" else column
    return table.set_column(2, "timestamp", column)


def shifted(table: pa.Table, minutes: int) -> pa.Table:
    return table.set_column(2, "timestamp", pc.add(table["timestamp"], timedelta(minutes=minutes)))


def all_that_times_decide(tables: Any, at: int, model: str = "sasrec") -> list[Any]:
    """Lists and results of a recommender that learns the first of three tables, then the second."""
    torch.manual_seed(0)
    first, second, third = tables
    rec = fitted(model, first)
    found: list[Any] = [
        rec.evaluate(second, task=task, n_resamples=0).to_dict() for task in ("event", "moment", "next")
    ]
    rec.update(second).observe(third)
    return [*found, rec.recommend(USERS), rec.recommend(USERS, at=at), rec.recommend(USERS, task="event", at=at)]


LEARNED, NEW, OBSERVED = events(120), events(40, LAST + 10**6, seed=1), events(30, LAST + 2 * 10**6, seed=2)
IN_SECONDS = [written(table, "timestamps") for table in (LEARNED, NEW, OBSERVED)]
SOON = LAST + 3 * 10**6


@pytest.mark.few(2)
@pytest.mark.parametrize("way", ["s", "ms", "us", "ns", "float", "zone", "text"])
def test_however_times_are_written_they_are_the_same(way: str) -> None:
    expected = all_that_times_decide(IN_SECONDS, SOON)
    assert all_that_times_decide([written(table, way) for table in IN_SECONDS], SOON) == expected


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["sasrec", "blend"])
@pytest.mark.parametrize("minutes", [1, -20_000_000, 30_000_000])  # 1987, and 2082
def test_only_differences_of_times_count(model: str, minutes: int) -> None:
    expected = all_that_times_decide(IN_SECONDS, SOON, model)
    moved = [shifted(table, minutes) for table in IN_SECONDS]
    assert all_that_times_decide(moved, SOON + 60 * minutes, model) == expected
    later = [*moved[:2], shifted(moved[2], 1_000)]
    assert all_that_times_decide(later, SOON + 60 * minutes, model)[-1] != expected[-1]


@pytest.mark.parametrize("at", NO_MOMENTS)
def test_what_is_no_moment_is_refused(at: Any) -> None:
    with pytest.raises(fs.ConfigurationError, match="at must be a datetime, a NumPy datetime64 or seconds since 1970"):
        fitted().recommend(USERS, at=at)


def test_an_event_after_2099_hides_no_moment() -> None:
    """Such as 9999-12-31, which means that the time is unknown: it counts as that."""
    table = events()
    times = table["timestamp"].to_numpy().copy()
    times[-1] = np.datetime64("9999-12-31")
    rec = fitted(table=table.set_column(2, "timestamp", pa.array(times)))
    assert any("1 of 200 times are before 1970 or after 2099" in note for note in rec.notes)
    assert len(rec.recommend(USERS, at=LAST)) > 0
    assert rec.state.history.latest_time() < LAST


def test_a_request_is_not_before_what_is_known() -> None:
    rec = fitted()
    with pytest.raises(fs.ConfigurationError, match=r"before the latest known event, 2025-06-15 15:07:00 UTC, got"):
        rec.recommend(USERS, at=LAST - 1)
    rec.observe(events(20, LAST + 3_600, seed=1))
    with pytest.raises(fs.ConfigurationError, match="before the latest known event"):
        rec.recommend(USERS, at=LAST)


@pytest.mark.parametrize(("model", "table"), [("item-item", events()), ("sasrec", without_times(events()))])
def test_a_model_without_times_takes_no_moment(model: str, table: pa.Table) -> None:
    rec = fitted(model, table)
    assert not rec.state.model.reads_times
    with pytest.raises(fs.ConfigurationError, match="this model does not read times"):
        rec.recommend(USERS, at=LAST)


def test_items_of_histories_have_no_time() -> None:
    rec = fitted()
    lists = [rec.recommend(histories=[[1, 2, 3], []], at=at) for at in (None, LAST, LAST + 10**7)]
    assert all(each.equals(lists[0]) for each in lists)


def test_times_are_kept_with_the_events(tmp_path: Path) -> None:
    rec = fitted().update(events(60, LAST + 10**6, seed=1)).observe(events(30, LAST + 2 * 10**6, seed=2))
    known, users = seconds_of(rec), rec.state.history.users
    assert len(known) == len(rec.state.history)
    rec.save(tmp_path / "saved")
    for loaded in (fs.load(tmp_path / "saved"), fs.load(tmp_path / "saved", frozen=True)):
        assert seconds_of(loaded) == known
        assert loaded.recommend(USERS, at=LAST + 10**7).equals(rec.recommend(USERS, at=LAST + 10**7))
    row = rec.state.user_ids.row_of("u3")
    rec.forget("u3")
    assert seconds_of(rec) == [time for time, user in zip(known, users, strict=True) if user != row]
    rec.retain(events(60, LAST + 10**6, seed=1))
    assert len(seconds_of(rec)) == len(rec.state.history) < len(known)
    assert set(seconds_of(rec)) < set(known)


def test_a_model_keeps_the_kind_of_its_fit(tmp_path: Path) -> None:
    """Timestamps that come later do not change the module; events without one have an unknown time."""
    untimed, timed = fitted(table=without_times(events())), fitted()
    later = events(40, LAST + 10**6, seed=1)
    assert not untimed.update(
        later.set_column(2, "timestamp", pa.array([10**9 + at for at in range(40)]))
    ).model.reads_times
    untimed.save(tmp_path / "untimed")
    assert not fs.load(tmp_path / "untimed").model.reads_times
    backwards = timed.update(events(40, LAST - 10**7, seed=1))
    assert any("older than the latest known event" in note for note in backwards.notes)
    assert backwards.recommend(USERS).equals(backwards.recommend(USERS, at=LAST))


@pytest.mark.parametrize("damage", [lambda times: times[1:], lambda times: times.int(), lambda times: times[:, None]])
def test_other_times_than_those_of_the_events_are_a_damaged_checkpoint(damage: Any, tmp_path: Path) -> None:
    fitted().save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    path = tmp_path / manifest["tensors"]["file"]
    tensors = safetensors.torch.load_file(path)
    content = safetensors.torch.save({**tensors, "events/times": damage(tensors["events/times"]).contiguous()})
    path.write_bytes(content)
    manifest["tensors"]["sha256"] = hashlib.sha256(content).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(fs.CheckpointError, match="is damaged"):
        fs.load(tmp_path)
