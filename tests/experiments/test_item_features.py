"""Features of items in runs: they describe what has appeared, and nothing of the future."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fairstream as fs
from fairstream import EventLog, Run
from fairstream.experiments import run_seeds
from fairstream.experiments.identity import run_id

N_USERS, N_ITEMS, N_EVENTS = 30, 24, 300
OPTIONS: dict[str, Any] = {
    "model": "sasrec",
    "model_settings": {"embedding_dim": 4},
    "pretrain_epochs": 1,
    "update_epochs": 1,
    "n_periods": 3,
    "pretrain_ratio": 0.5,
    "n_resamples": 0,
    "k": 5,
    "device": "cpu",
}


def events() -> tuple[pa.Table, pa.Table]:
    """Events in which new items keep appearing."""
    rng = np.random.default_rng(1)
    pairs = rng.permutation(np.argwhere(np.ones((N_USERS, N_ITEMS))))[:N_EVENTS]
    pairs = pairs[np.argsort(pairs[:, 1] + rng.uniform(0, 12, N_EVENTS))]
    table = pa.table({"user_id": pairs[:, 0], "item_id": pairs[:, 1], "time": np.arange(N_EVENTS)})
    return table, pa.table({"user_id": range(N_USERS), "side": ["l" if u % 3 else "r" for u in range(N_USERS)]})


def log_of(words: list[str] | None) -> EventLog:
    """The events with these words for their items, and for items that never appear."""
    table, users = events()
    items = None if words is None else pa.table({"item_id": range(len(words)), "words": words})
    return fs.read_events(table, users=users, group="side", items=items)


def past(run: Run, last: int) -> list[Any]:
    """All that is computed up to W_t, to the last bit, and what was judged before."""
    found: list[Any] = []
    for t in range(last + 1):
        result = run.begin() if t == 0 else next(run)
        found.append({name: value.tolist() for name, value in run.state.model.state_dict().items()})
        found += [result.tasks[task].to_dict() for task in ("event", "next") if t < last]
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("t", [0, 1])
@pytest.mark.parametrize("later", ["", "w3", "unheard of", " ".join(f"w{n}" for n in range(30))])
def test_features_of_what_has_not_appeared_yet_change_nothing(later: str, t: int) -> None:
    rng = np.random.default_rng(0)
    words = [" ".join(f"w{n}" for n in rng.permutation(30)[: 3 + item % 6]) for item in range(N_ITEMS)]
    one = log_of(words)
    run = fs.run(one, "finetune", **{"model": "mf", **OPTIONS})
    known = set(one.item_ids.ids.to_pylist()[: one.n_items_after(run.periods.ends[t])])
    assert len(known) < N_ITEMS
    changed = [word if item in known else later for item, word in enumerate(words)]
    other = log_of([*changed, later, "an item that never appears"])
    assert past(run, t) == past(fs.run(other, "finetune", **{"model": "mf", **OPTIONS}), t)


def test_features_change_what_a_run_learns_and_which_run_it_is() -> None:
    plain, other = log_of(None), log_of([f"w{item % 5}" for item in range(N_ITEMS)])
    runs = [fs.run(log, "finetune", **{"model": "mf", **OPTIONS}) for log in (plain, other)]
    assert past(runs[0], 1) != past(runs[1], 1)
    assert run_id(plain, runs[0].config) != run_id(other, runs[1].config)
    assert runs[0].state.model.n_items == runs[1].state.model.n_items  # only what has appeared is ranked


@pytest.mark.slow
@pytest.mark.parametrize("method", ["finetune", "retrain"])
def test_jobs_that_share_a_pre_training_or_come_in_parts_give_the_same_numbers(method: str, tmp_path: Any) -> None:
    log = log_of([f"w{item % 5} w{item % 3}" for item in range(N_ITEMS)])
    run = fs.run(log, method, **{"model": "mf", **OPTIONS})
    list(run)
    for config in (OPTIONS, {**OPTIONS, "update_epochs": 2}):
        (record,) = run_seeds(log, [0], store=tmp_path / "store", n_workers=1, method=method, **config)
        if config is OPTIONS:
            assert record.document["summary"] == run.document()["summary"]


def test_a_model_that_does_not_read_features_gives_the_numbers_that_it_gave(tmp_path: Any) -> None:
    options = {**OPTIONS, "model": "mf"}
    runs = [fs.run(log_of(words), "fade", **{"model": "mf", **options}) for words in (None, ["x"] * N_ITEMS)]
    assert past(runs[0], 1) == past(runs[1], 1)
    assert runs[1].notes == ("the model mf does not read features of items: they have no effect",)
