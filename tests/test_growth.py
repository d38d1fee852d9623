"""Twice the events take twice the memory and time, not four times.

Memory is what NumPy and Arrow allocate, so it hardly depends on the machine. Time is CPU time, for four times the
events: quadratic work takes sixteen times as long, n log n less than five times. Other threads and processes can only
add to a measurement, so the least of several turns counts.
"""

from __future__ import annotations

import copy
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch

import fairstream as fs
from fairstream.data import History, Vocabulary
from fairstream.models import TASKS, ItemItemScorer
from fairstream.sampling import NegativeSampler
from fairstream.training import cut_batches, cut_windows
from support import make_recommender

Work = Callable[[], object]
Prepare = Callable[[int, Path], Work]
MAX_MEMORY = 2.2
"""Of twice the events, as a multiple of that of the events."""
MAX_TIME = 9.0
"""Of four times the events; linear work is at 4, quadratic work at 16."""
QUICK: dict[str, Any] = {
    "embedding_dim": 4,
    "pretrain_epochs": 1,
    "update_epochs": 1,
    "batch_size": 8192,
    "device": "cpu",
    "engine": "reference",
}
MAX_TURNS = 8


def peak_memory(work: Work) -> int:
    """The most bytes that NumPy and Arrow have held at once for it."""
    plain = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(plain)
    pa.set_memory_pool(counting)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] + counting.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(plain)


def cpu_seconds(work: Work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def check_memory(prepare: Prepare, n: int, folder: Path) -> None:
    works = prepare(n, folder), prepare(2 * n, folder)
    works[0](), works[1]()  # compiles and fills caches
    check_ratio(peak_memory, works, MAX_MEMORY, "bytes")


def check_time(prepare: Prepare, n: int, folder: Path, most: float = MAX_TIME) -> None:
    works = prepare(n, folder), prepare(4 * n, folder)
    works[0]()  # compiles
    check_ratio(cpu_seconds, works, most, "s")


def check_ratio(measure: Callable[[Work], float], works: tuple[Work, Work], most: float, unit: str) -> None:
    turns: list[list[float]] = []
    ratio = np.inf
    while ratio > most and len(turns) < MAX_TURNS:
        turns.append([measure(work) for work in works])
        before, after = np.min(turns, axis=0)
        ratio = after / before
    assert ratio <= most, f"{before:,.4f} {unit} became {after:,.4f} {unit}"


# ── what is measured ─────────────────────────────────────────────────────────────────────


def events_of(n: int, n_users: int = 500, n_items: int = 100, *, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, n_users, n), (n_items * rng.random(n) ** 2).astype(np.int64)
    return pa.table({"user_id": users, "item_id": items, "time": np.arange(n)})


def people(n_users: int = 500) -> pa.Table:
    return pa.table({"user_id": range(n_users), "group": [f"group {user % 2}" for user in range(n_users)]})


def log_of(n: int, **options: Any) -> fs.EventLog:
    return fs.read_events(events_of(n, **options), users=people(), repeats="all")


def history_of(n: int, n_users: int = 500) -> History:
    events = events_of(n, n_users)
    history = History.of(events["user_id"].to_numpy(), events["item_id"].to_numpy())
    history.index()
    return history


def first_events(n: int, folder: Path) -> Work:
    history = History.of(np.zeros(n, dtype=np.int64), np.arange(n) % 70)
    return lambda: history.first_interactions(range(n))


def fit_with_a_heavy_user(n: int, folder: Path) -> Work:
    table = pa.concat_tables([events_of(n), events_of(n, 1, seed=1)])
    log = fs.read_events(table, users=people(), repeats="all")
    return lambda: make_recommender("item-item").fit(log)


def written(n: int, folder: Path) -> Path:
    path = folder / f"{n}.csv"
    if not path.exists():
        pyarrow.csv.write_csv(events_of(n), path)
    return path


def read_csv(n: int, folder: Path) -> Work:
    path = written(n, folder)
    return lambda: fs.read_events(path)


def ingest(n: int, folder: Path) -> Work:
    path, done = written(n, folder), iter(range(1000))
    return lambda: fs.ingest(path, folder / f"log-{n}-{next(done)}")


def extend_vocabulary(n: int, folder: Path) -> Work:
    def extend() -> None:
        vocabulary = Vocabulary().indexed()
        for start in range(0, n, 50):  # as updates bring them
            vocabulary = vocabulary.copy()
            vocabulary.extend(np.arange(start, start + 50))

    return extend


def recommend_to_everybody(n: int, folder: Path) -> Work:
    rec = make_recommender("item-item").fit(events_of(4 * n, n_users=n))
    return lambda: rec.recommend(list(range(n)), k=10)


def evaluate(n: int, folder: Path) -> Work:
    rec = make_recommender("popularity").fit(log_of(n))
    later = events_of(n, n_items=300, seed=1)
    return lambda: [rec.evaluate(later, n_resamples=0, task=task) for task in TASKS]


def cut_into_batches(n: int, folder: Path) -> Work:
    history, codes = history_of(n), np.zeros(500, dtype=np.int16)

    def cut() -> None:
        sampler = NegativeSampler(history.seen, history.users, n_items=100, device=torch.device("cpu"))
        cut_batches(history, range(n), codes, sampler, n_drawn=4, size=256)
        cut_windows(history, range(n), codes, sampler, n_drawn=4, length=20, size=256)

    return cut


def popularity(n: int, folder: Path) -> Work:
    history = history_of(n)
    return history.decayed_counts


def forget(n: int, folder: Path) -> Work:
    fitted = make_recommender("item-item").fit(log_of(n))
    state, learning = fitted.state, fitted._trainer
    return lambda: learning.forget(state, np.array([3]))


def save_and_load(n: int, folder: Path) -> Work:
    rec = make_recommender("popularity").fit(log_of(n))

    def save_and_load() -> None:
        rec.save(folder / f"model-{n}")
        fs.load(folder / f"model-{n}")

    return save_and_load


def update(n: int, folder: Path) -> Work:
    """Of a closed form with as many new events as there were."""
    rec = make_recommender("item-item").fit(log_of(n))
    later = events_of(n, seed=1)
    return lambda: copy.deepcopy(rec).update(later)


CASES: dict[str, tuple[Prepare, int]] = {
    "first events of a heavy user": (first_events, 2_000),
    "fit with a heavy user": (fit_with_a_heavy_user, 2_000),
    "read_events": (read_csv, 40_000),
    "ingest": (ingest, 20_000),
    "Vocabulary.extend": (extend_vocabulary, 10_000),
    "recommend": (recommend_to_everybody, 1_000),
    "evaluate": (evaluate, 10_000),
    "cut_batches and cut_windows": (cut_into_batches, 20_000),
    "popularity": (popularity, 100_000),
    "forget": (forget, 30_000),
    "save and load": (save_and_load, 50_000),
    "update": (update, 20_000),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("case", CASES)
def test_twice_the_events_take_twice_the_memory(case: str, tmp_path: Path) -> None:
    prepare, n = CASES[case]
    check_memory(prepare, n, tmp_path)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES)
def test_four_times_the_events_do_not_take_nine_times_the_time(case: str, tmp_path: Path) -> None:
    prepare, n = CASES[case]
    check_time(prepare, n, tmp_path)


# ── in the number of items ───────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("model", ["popularity", "mf"])  # by histories, and by vectors
def test_twice_the_items_take_twice_the_memory_to_compare(model: str, tmp_path: Path) -> None:
    def compare(n: int, folder: Path) -> Work:
        table = pa.table({"user_id": np.arange(n) // 10, "item_id": np.arange(n), "time": np.arange(n)})
        rec = make_recommender(model, **QUICK).fit(table)
        return lambda: rec.similar_items(list(range(n)), k=5)

    check_memory(compare, 1_200, tmp_path)


def test_an_update_of_a_blend_does_not_copy_what_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs of items are most of a blend: twelve bytes for each."""
    rec = make_recommender("blend", **QUICK)
    before = rec.fit(log_of(2_000)).state.model.item_item
    begun: list[tuple[int, int]] = []
    learn = ItemItemScorer.learn

    def learn_and_note(model: ItemItemScorer, *learned: Any, **options: Any) -> None:
        begun.append((model.counts.data_ptr(), model.weight.data_ptr()))
        learn(model, *learned, **options)

    monkeypatch.setattr(ItemItemScorer, "learn", learn_and_note)
    gram, weight = before.counts.clone(), before.weight.clone()
    after = rec.update(events_of(500, seed=1)).state.model.item_item
    assert begun == [(before.counts.data_ptr(), before.weight.data_ptr())]
    assert torch.equal(before.counts, gram)
    assert torch.equal(before.weight, weight)
    assert not torch.equal(after.counts, gram)


# ── what should not grow at all ──────────────────────────────────────────────────────────


def test_a_newcomers_list_after_an_observed_event_does_not_depend_on_the_number_of_events(tmp_path: Path) -> None:
    def observe_and_recommend(n: int, folder: Path) -> Work:
        rec = make_recommender("mf", **QUICK).fit(fs.read_events(events_of(n, 5000, 400), repeats="all"))
        newcomer = iter(range(10**6))

        def observe_and_recommend() -> None:
            for user in (next(newcomer) for _ in range(5)):
                rec.observe({"user_id": [10_000 + user], "item_id": [user % 100], "time": [10**7]})
                rec.recommend(10_000 + user, k=10)

        return observe_and_recommend

    check_time(observe_and_recommend, 50_000, tmp_path, most=2.0)
