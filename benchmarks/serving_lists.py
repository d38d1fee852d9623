"""Milliseconds to make one user's list anew, by model: `python -m benchmarks.serving_lists --items 20000`.

Weights are random: what a list costs does not depend on their values. Each list follows an event of its user.
"""

from __future__ import annotations

import argparse
import time
from statistics import median, quantiles

import numpy as np
import pyarrow as pa
import torch

from fairstream.data import UNKNOWN, Groups, History, Vocabulary
from fairstream.models import resolve_model
from fairstream.recommender import State
from fairstream.service.lists import Ask
from fairstream.service.serving_model import ServingModel


def serving_model(name: str, n_users: int, n_items: int, events_per_user: int) -> ServingModel:
    """A model of this size with random weights, whose users have had random items."""
    random = np.random.default_rng(0)
    users = np.repeat(np.arange(n_users), events_per_user)
    pairs = np.unique((users << 32) | random.integers(0, n_items, len(users)))
    random.shuffle(pairs)
    history = History.of(pairs >> 32, pairs & 0xFFFFFFFF, n_users=n_users, n_items=n_items)
    model = resolve_model(name).build(n_users, n_items).eval()
    for name_of, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not name_of.endswith("gram"):
            tensor.normal_(std=0.1)
    ids = (Vocabulary(pa.array([f"{kind}{row}" for row in range(n)])) for kind, n in (("u", n_users), ("i", n_items)))
    groups = Groups("group", (), np.full(n_users, UNKNOWN, np.int16))
    trained = (np.ones(n, np.bool_) for n in (n_users, n_items))
    return ServingModel(State(model, None, history, groups, *(each.indexed() for each in ids), *trained, 0, 0), name)


def main() -> None:
    """Measure each model and print a line of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--events-per-user", type=int, default=100)
    parser.add_argument("--lists", type=int, default=300)
    parser.add_argument("--models", nargs="+", default=["mf", "item-item", "gru", "sasrec", "blend"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.items} items, ms a list: {'median':>8} {'p99':>8} {'median of CPU time':>20}")
    for name in options.models:
        model = serving_model(name, options.users, options.items, options.events_per_user)
        model.make_lists(list(model.users())[:20], 20)
        random, milliseconds, of_cpu = np.random.default_rng(1), list[float](), list[float]()
        for _ in range(options.lists):
            user, item = f"u{random.integers(options.users)}", f"i{random.integers(options.items)}"
            model.add(pa.table({"user_id": [user], "item_id": [item], "time": [0]}))
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            model.json(user, Ask(20))
            milliseconds.append(1000 * (time.perf_counter() - begin))
            of_cpu.append(1000 * (time.thread_time() - begin_cpu))
        p99 = quantiles(milliseconds, n=100)[98]
        print(f"{name:>23} {median(milliseconds):10.2f} {p99:8.2f} {median(of_cpu):20.2f}", flush=True)


if __name__ == "__main__":
    main()
