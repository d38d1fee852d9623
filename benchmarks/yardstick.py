"""Quality and published numbers: `python -m benchmarks.yardstick DATA [replay] [time-to-split]`, by default both.

DATA is a folder with `movielens-1m`; `time_to_split.py` reads `ratings.dat` or `ml-1m.zip` if it is anywhere in it.

RePlay (github.com/sb-ai-lab/RePlay, examples/02_models_comparison.ipynb) compares its models on MovieLens-1M, ratings
of 3 and more: the first 669,181 events are learned, the others tested, of users and items that are known by then; all
items are ranked but the user's own; NDCG@10 over the best possible list.
It takes a quarter of an hour on two cores, most of it for the blend.

Here a positive loses to any other item with the same score: "most popular" gives .2435, and .2436 or .2437, as
published, where equal items come in the order of their rows or in the opposite one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

import fairstream as fs
from benchmarks import time_to_split
from fairstream.data import History
from fairstream.data.history import Positions
from fairstream.models import ItemItemScorer, ModelFactory, PopularityScorer, UserWeights

N_LEARNED = 669_181
PUBLISHED = {"ItemKNN": 0.2576, "iALS": 0.2551, "most popular": 0.2437, "SLIM": 0.2377}
"""NDCG@10 as printed in the notebook."""
N_LATEST = 66_560
"""Two periods of the paper."""
_LEAST = 1e-6


class LatestPopularity(PopularityScorer):
    """s_ui = the number of events of item i among the last 66,560."""

    def learn(self, history: History, new: Positions, weights: UserWeights | None = None) -> None:
        latest = range(max(0, len(history) - N_LATEST), len(history))
        self.popularity = torch.zeros_like(self.popularity)
        super().learn(history, latest, weights)


class WithLatestPopularity(fs.ClosedFormScorer):
    """The logarithm of the item–item score + that of the number of latest events."""

    history_length = ItemItemScorer.history_length

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.items, self.latest = ItemItemScorer(n_users, n_items), LatestPopularity(n_users, n_items)

    @property
    def n_items(self) -> int:
        return self.items.n_items

    def grow(self, n_users: int, n_items: int) -> None:
        self.items.grow(n_users, n_items)
        self.latest.grow(n_users, n_items)

    def learn(self, history: History, new: Positions, weights: UserWeights | None = None) -> None:
        self.items.learn(history, new, weights)
        self.latest.learn(history, new, weights)

    def _sum(self, scores: Tensor, popularity: Tensor) -> Tensor:
        return scores.double().clamp(min=_LEAST).log() + popularity.log1p()

    def forward(self, users: Tensor, items: Tensor, context: fs.Context) -> Tensor:
        return self._sum(self.items(users, items, context), self.latest(users, items))

    def score_range(self, users: Tensor, start: int, stop: int, context: fs.Context) -> Tensor:
        scores = self.items.score_range(users, start, stop, context)
        return self._sum(scores, self.latest.score_range(users, start, stop))


OURS: dict[str, tuple[str | ModelFactory, str, float]] = {
    "most popular": ("popularity", "Finetune", 0.0),
    "recent popularity": ("recent-popularity", "Finetune", 0.0),
    "most popular of the last 66,560 events": (LatestPopularity, "Finetune", 0.0),
    "MF, 20 epochs": ("mf", "Finetune", 0.0),
    "FADE-MF λ 1, 20 epochs": ("mf", "FADE", 1.0),
    "item-item": ("item-item", "Finetune", 0.0),
    "item-item + the last 66,560 events (logs)": (WithLatestPopularity, "Finetune", 0.0),
}
"""Row → model, method, λ."""


def split(folder: Path) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The events to learn, those to test on, and the users."""
    events = pq.read_table(folder / "movielens-1m" / "interactions.parquet").sort_by("order")
    learned, later = events.slice(0, N_LEARNED), events.slice(N_LEARNED)
    for column in ("user_id", "item_id"):
        later = later.filter(pc.is_in(later[column], value_set=pc.unique(learned[column])))
    users = pq.read_table(folder / "movielens-1m" / "users.parquet")
    return learned, later, users


def rows(folder: Path) -> Iterator[str]:
    """The lines of the table."""
    learned, tested, users = split(folder)
    n_users = pc.count_distinct(tested["user_id"]).as_py()
    yield f"{len(tested):,} events of {n_users:,} users, NDCG@10 (published rows: RePlay)\n"
    yield "| | everyone | men | women | hit@10 |\n| --- | --- | --- | --- | --- |"
    for name, value in PUBLISHED.items():
        yield f"| published: {name} | {value:.4f} | | | |"
    for name, (model, _, lambda_) in OURS.items():
        fairness = fs.DisparityLoss(weight=lambda_) if lambda_ else None
        rec = fs.FairRecommender(model, fairness=fairness, training=fs.Training(pretrain_epochs=20), device="cpu")
        yield row(name, rec.fit(_log(learned, users)), tested)
    first, last = learned.slice(0, N_LEARNED - N_LATEST), learned.slice(N_LEARNED - N_LATEST)
    blend = fs.FairRecommender("blend", device="cpu").fit(_log(first, users))
    yield row("blend, its weights learned from the last 66,560 events", blend.update(last, users=users), tested)


def row(name: str, rec: fs.FairRecommender, tested: pa.Table) -> str:
    """A line of the table."""
    result = rec.evaluate(tested, k=10, metrics=("ndcg", "hit"), n_resamples=0)
    ndcg, hit = result["ndcg@10"], result["hit@10"]
    men, women = (ndcg.by_group[group] for group in ("M", "F"))
    return f"| {name} | {ndcg.mean:.4f} | {men:.4f} | {women:.4f} | {hit.mean:.3f} |"


def _log(events: pa.Table, users: pa.Table) -> fs.EventLog:
    return fs.read_events(events, users=users, group="gender", advantaged="M")


COMPARISONS = {"replay": rows, "time-to-split": time_to_split.rows}


if __name__ == "__main__":
    torch.manual_seed(0)
    if unknown := [name for name in sys.argv[2:] if name not in COMPARISONS]:
        sys.exit(f"the comparisons are {' and '.join(COMPARISONS)}, got {', '.join(unknown)}")
    for name in sys.argv[2:] or COMPARISONS:
        for line in COMPARISONS[name](Path(sys.argv[1])):
            print(line, flush=True)
        print()
