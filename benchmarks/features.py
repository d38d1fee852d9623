"""What features of items are worth, where the truth is known: `python -m benchmarks.features [WORLDS] [MODEL …]`.

In each world users have a taste, and are drawn to items like the one they chose last. How much they like an item
follows from its category (one of 16), its tags (three of 40) and something of its own. Thirty new items arrive at the
beginning of each of six periods, described but without events.

A model is fitted with the items' features, without any, or with a random permutation of them, which says nothing, then
updated period by period. The test is the period that follows, in `event` and `next`: all requests, those for items that
have just arrived, and those for items that arrived one period earlier. "Truth" ranks by the probabilities from which
the events were drawn. The seconds of an update are CPU time of one thread. Intervals are Student's, over worlds.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from scipy.stats import t as student

import fairstream as fs
from benchmarks.timing import table
from fairstream.evaluation import Evaluation
from fairstream.evaluation.lists import Lists
from fairstream.evaluation.metrics import true_ndcg
from fairstream.models.context import Task

N_USERS, N_FIRST, N_NEW, N_PERIODS = 800, 300, 30, 6
EVENTS_FIRST, EVENTS = 16_000, 1_600  # before the first period, and in each
N_CATEGORIES, N_TAGS, DIM, K = 16, 40, 6, 20
FEATURES = ("with", "without", "random")
REQUESTS = ("all", "just arrived", "one period old")
Cell = tuple[str, str]  # task, requests


class World(NamedTuple):
    """Events in their order, the items, and how well the truth predicts each event."""

    users: np.ndarray[Any, Any]
    items: np.ndarray[Any, Any]
    gains: np.ndarray[Any, Any]  # NDCG@20 of each event, in a list by the true probabilities
    described: pa.Table

    def events(self, t: int) -> slice:
        """The events of D_t."""
        return slice(0 if t == 0 else EVENTS_FIRST + (t - 1) * EVENTS, EVENTS_FIRST + t * EVENTS)

    def table(self, t: int) -> pa.Table:
        at = self.events(t)
        return pa.table({"user_id": self.users[at], "item_id": self.items[at], "time": np.arange(at.start, at.stop)})


def arrivals(t: int) -> range:
    """The items that arrive with D_t."""
    return range(N_FIRST) if t == 0 else range(N_FIRST + (t - 1) * N_NEW, N_FIRST + t * N_NEW)


def world(seed: int) -> World:
    """Draw a world."""
    rng = np.random.default_rng(seed)
    n_items, n_events = arrivals(N_PERIODS).stop, EVENTS_FIRST + N_PERIODS * EVENTS
    category = rng.integers(N_CATEGORIES, size=n_items)
    tags = np.argsort(rng.random((n_items, N_TAGS)), axis=1)[:, :3]
    parts = rng.normal(size=(N_CATEGORIES, DIM))[category], rng.normal(size=(N_TAGS, DIM))[tags].sum(axis=1)
    vectors = parts[0] + parts[1] / np.sqrt(3) + 0.5 * rng.normal(size=(n_items, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    tastes = rng.normal(size=(N_USERS, DIM))
    liked, appeal = tastes @ vectors.T, rng.normal(size=n_items) * 0.5
    is_taken = np.zeros((N_USERS, n_items), np.bool_)
    last, users, items, gains = np.full(N_USERS, -1), rng.integers(N_USERS, size=n_events), [], []
    periods = np.maximum(0, (np.arange(n_events) - EVENTS_FIRST) // EVENTS + 1)
    for user, t in zip(users, periods, strict=True):
        logits = 1.5 * liked[user] + appeal
        if last[user] >= 0:
            logits += 3.0 * vectors @ vectors[last[user]]
        logits[is_taken[user]] = -np.inf
        logits[arrivals(t).stop :] = -np.inf
        item = int(np.argmax(logits + rng.gumbel(size=n_items)))
        rank = 1 + int((logits > logits[item]).sum())
        is_taken[user, item], last[user] = True, item
        items.append(item)
        gains.append(1 / np.log2(rank + 1) if rank <= K else 0.0)
    names = [[f"t{tag}" for tag in row] for row in tags]
    described = pa.table({"item_id": np.arange(n_items), "category": [f"c{c}" for c in category], "tags": names})
    return World(users, np.array(items), np.array(gains), described)


def measure(drawn: World, model: str, features: str, seed: int) -> tuple[dict[Cell, float], float]:
    """Means over periods of NDCG@20, and the CPU seconds of an update."""
    described = drawn.described
    if features == "random":
        order = np.random.default_rng([seed, 1]).permutation(len(described))
        described = described.take(order).set_column(0, "item_id", described["item_id"])

    def of(t: int) -> pa.Table | None:
        return None if features == "without" else described.slice(arrivals(t).start, len(arrivals(t)))

    rec = fs.FairRecommender(model, training=fs.Training(threads=1), seed=seed, device="cpu")
    rec.fit(drawn.table(0), items=of(0))
    found: dict[Cell, list[float]] = {(task, part): [] for task in get_args(Task) for part in REQUESTS}
    seconds = []
    for t in range(N_PERIODS):
        if t:
            begin = time.process_time()
            rec.update(drawn.table(t))
            seconds.append(time.process_time() - begin)
        if features != "without":
            rec.observe(items=of(t + 1))
        for task in get_args(Task):
            tested = rec.evaluate(drawn.table(t + 1), task=task, n_resamples=0, keep_lists=True, at_levels=False)
            mean = tested[f"ndcg@{K}"].mean
            assert mean is not None
            found[task, "all"].append(mean)
            rows = {age: rec.state.item_ids.lookup(list(arrivals(t + 1 - age))) for age in (0, 1)}
            found[task, "just arrived"].append(among(tested, rows[0], len(rec.state.item_ids)))
            if t:
                found[task, "one period old"].append(among(tested, rows[1]))
    return {cell: float(np.mean(values)) for cell, values in found.items()}, float(np.mean(seconds))


def among(tested: Evaluation, rows: Any, n_known: int | None = None) -> float:
    """Mean NDCG@20 where a user wanted one of these items, which alone count; `n_known` adds unknown ones."""
    assert tested.lists is not None
    lists, truth = tested.lists.lists, tested.lists.truth

    def is_wanted(items: Any) -> Any:
        return np.isin(items, rows[rows >= 0]) | (False if n_known is None else items >= n_known)

    part = truth.only(is_wanted(truth.positives.items))
    has_any = part.n_positives > 0
    hits = lists.hits & is_wanted(lists.items)
    return float(true_ndcg(Lists(lists.items, lists.scores, hits).where(has_any), part.where(has_any)).mean())


def oracle(drawn: World) -> dict[Cell, float]:
    """The same of the truth, in `event`."""
    found: dict[str, list[float]] = {part: [] for part in REQUESTS}
    for t in range(1, N_PERIODS + 1):
        at = drawn.events(t)
        users, items, gains = drawn.users[at], drawn.items[at], drawn.gains[at]
        found["all"].append(float(np.mean([gains[users == user].mean() for user in np.unique(users)])))
        found["just arrived"].append(gains[np.isin(items, arrivals(t))].mean())
        if t > 1:
            found["one period old"].append(gains[np.isin(items, arrivals(t - 1))].mean())
    return {("event", part): float(np.mean(values)) for part, values in found.items()}


def interval(values: list[float], form: str = "+.4f") -> str:
    """The mean over worlds with its 95 % interval."""
    mean = np.mean(values)
    if len(values) < 2:
        return f"{mean:{form}}"
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{mean:{form}} ({mean - half:{form}} … {mean + half:{form}})"


def report(n_worlds: int, models: list[str]) -> str:
    """A table for each model."""
    parts = []
    drawn = [world(seed) for seed in range(n_worlds)]
    truth = [oracle(each) for each in drawn]
    for model in models:
        results: dict[str, list[tuple[dict[Cell, float], float]]] = {name: [] for name in FEATURES}
        for seed, each in enumerate(drawn):
            for name in FEATURES:
                results[name].append(measure(each, model, name, seed))
                print(f"{model}, world {seed}, {name}: {results[name][-1]}", file=sys.stderr, flush=True)
        rows = []
        for cell in ((task, part) for task in get_args(Task) for part in REQUESTS):
            values = {name: [result[cell] for result, _ in results[name]] for name in FEATURES}
            gains = ([a - b for a, b in zip(values[name], values["without"], strict=True)] for name in FEATURES[::2])
            best = f"{np.mean([one[cell] for one in truth]):.4f}" if cell in truth[0] else ""
            means = [f"{np.mean(values[name]):.4f}" for name in ("without", "with", "random")]
            rows.append([f"`{cell[0]}`, {cell[1]}", *means, best, *map(interval, gains)])
        seconds = {name: [taken for _, taken in results[name]] for name in FEATURES}
        means = [f"{np.mean(seconds[name]):.2f}" for name in ("without", "with", "random")]
        gains = ([a - b for a, b in zip(seconds[name], seconds["without"], strict=True)] for name in FEATURES[::2])
        rows.append(["update, s", *means, "", *(interval(gain, "+.2f") for gain in gains)])
        header = [model, "without", "with", "random", "truth", "with − without", "random − without"]
        parts.append(table(header, rows))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(report(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or ["sasrec", "blend"]))
