"""Lists from a million items under filters, while a stock feed changes them.

    python -m benchmarks.filters [--items 1000000] [--requests 2000]

One process on one core: a thread asks for lists of 20 items one after another, another stores stock in a SQLite
workspace, 5,000 items at a time, and applies it as the service does. The factors are random: what a list costs does
not depend on what was learned.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from fairstream.models.mf import MFScorer
from fairstream.service.items import CatalogueReader, store
from fairstream.service.lists import Ask
from fairstream.service.ranking import popularity_of
from fairstream.service.serving import Serving
from fairstream.service.serving_model import ServingModel
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace

K, N_USERS, DIMENSIONS, FED_AT_ONCE = 20, 20_000, 64, 5_000
FILTERS = {
    "none": "",
    "0.1 %": "price < 1 and stock > 0",
    "1 %": "price < 10 and stock > 0",
    "10 %": "price < 100 and stock > 0",
    "50 %": "price < 500 and stock > 0",
    "90 %": "price < 900 and stock > 0",
    "own": "price < {} and stock > 0",  # another filter for each request
}


def model_of(n_items: int) -> ServingModel:
    """A factorisation of random numbers, whose users have had 20 items each."""
    random = np.random.default_rng(0)
    users, items = np.repeat(np.arange(N_USERS), 20), random.integers(0, n_items, 20 * N_USERS)
    users, items = np.append(np.zeros(n_items, np.int64), users), np.append(np.arange(n_items), items)
    events = pa.table({"user_id": [f"u{n}" for n in users], "item_id": [f"item-{n}" for n in items]})
    state = popularity_of(events)
    torch.manual_seed(0)
    model = MFScorer(len(state.user_ids), n_items, embedding_dim=DIMENSIONS).eval()
    return ServingModel(replace(state, model=model, trained=np.ones(len(state.user_ids), np.bool_)), "m")


def measure(model: ServingModel, users: list[str], where: str, n_requests: int) -> list[str]:
    """Return the milliseconds of a request: in the median, 99 % and all, and 99 % without waiting for others."""
    seconds, processor = [], []
    for at in range(n_requests):
        ask = Ask(K, where=where.format(100 + at))
        moment, spent = time.perf_counter(), time.thread_time()
        model.json(users[at % len(users)], ask)
        seconds.append(time.perf_counter() - moment)
        processor.append(time.thread_time() - spent)
    return [f"{1e3 * each:.2f}" for each in (*np.quantile(seconds, [0.5, 0.99, 1]), np.quantile(processor, 0.99))]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=2_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder, Workspace.create(Path(folder) / "w", LiveConfig()) as workspace:
        price = random.permutation(options.items) * (1000 / options.items)
        items = [
            {"item_id": f"item-{n}", "category": f"c{n % 100}", "price": float(price[n]), "stock": 1}
            for n in range(options.items)
        ]
        begin = time.perf_counter()
        for start in range(0, options.items, 100_000):
            store(workspace.engine, items[start : start + 100_000])
        stored = time.perf_counter()
        del items
        reader, serving = CatalogueReader(workspace.engine, workspace.config.items.properties), Serving()
        serving.set_shop(reader.catch_up())
        read = time.perf_counter()
        print(f"{options.items:,} items: stored in {stored - begin:.1f} s, read in {read - stored:.1f} s")
        begin = time.perf_counter()
        store(workspace.engine, [{"item_id": f"item-{n}", "stock": 2} for n in range(100_000)])
        serving.set_shop(reader.catch_up())
        print(f"a stock feed of 100,000 items: {time.perf_counter() - begin:.1f} s")
        serving.use(model_of(options.items), "model")
        stop, n_fed = threading.Event(), 0

        def feed() -> None:
            nonlocal n_fed
            while not stop.is_set():
                rows = random.integers(0, options.items, FED_AT_ONCE).tolist()
                stock = [{"item_id": f"item-{n}", "stock": int(n % 97 > 0) * 3} for n in {*rows}]
                store(workspace.engine, stock)
                serving.set_shop(reader.catch_up())
                n_fed += len(stock)
                stop.wait(0.5)

        current, users = serving.current, [f"u{n}" for n in range(200)]
        begin = time.perf_counter()
        current.make_lists(users, K)
        print(f"a first list, 64 together: {1e3 * (time.perf_counter() - begin) / len(users):.1f} ms each")
        for where in FILTERS.values():  # what the first request of a kind compiles
            current.recommend("u0", Ask(K, where=where.format(1)))
        gc.collect()
        gc.freeze()  # as the service does
        thread, begin = threading.Thread(target=feed), time.perf_counter()
        thread.start()
        print("\nfilter | p50 ms | p99 ms | longest | p99 of the processor, without waiting for others")
        for name, where in FILTERS.items():
            print(f"{name} | {' | '.join(measure(current, users, where, options.requests))}", flush=True)
        stop.set()
        thread.join()
        print(f"\nmeanwhile {n_fed / (time.perf_counter() - begin):,.0f} items a second were fed")


if __name__ == "__main__":
    main()
