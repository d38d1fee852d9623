"""Quality of other libraries: `python -m benchmarks.outside DATA [DATASET …]`; DATA is a folder with the data sets.

implicit (ALS, BPR) and LensKit (item nearest neighbours), all of the extra `bench-outside`, are trained again on
everything so far in each period, with the settings of a small grid that predict D_1 (`next`) best from D_0,
as in any run of ours, under `strict`: the same periods, masks, fallback for newcomers, and metrics. Without names both
`movielens-1m` and `modcloth` are run, which takes half an hour on two cores.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

import fairstream as fs
from fairstream.data import History
from fairstream.data.history import Positions
from fairstream.experiments import Run

DATASETS: dict[str, dict[str, str]] = {"movielens-1m": {"group": "gender", "advantaged": "M"}, "modcloth": {}}
METRIC = "ndcg@20"
TASKS = ("event", "next", "remain")


def matrix_of(history: History, n_users: int, n_items: int) -> csr_matrix:
    """Users × items, 1 where there was an event."""
    ones = np.ones(len(history), np.float32)
    return csr_matrix((ones, (history.users, history.items)), shape=(n_users, n_items))


class Outside(fs.ClosedFormScorer):
    """A model of another library: trained on the whole history whenever there are new events."""

    def __init__(self, n_users: int, n_items: int, **settings: Any) -> None:
        super().__init__()
        self.settings, self._n_items, self.trained = settings, n_items, None

    @property
    def n_items(self) -> int:
        return self._n_items

    def grow(self, n_users: int, n_items: int) -> None:
        self._n_items = n_items

    def learn(self, history: History, new: Positions, weights: Any = None) -> None:
        self.trained = self.train_on(history)

    def train_on(self, history: History) -> Any:
        """The other library's model of these events."""
        raise NotImplementedError

    def forward(self, users: Tensor, items: Tensor, context: fs.Context) -> Tensor:
        return self.score_range(users, 0, self._n_items, context).gather(1, items)


class Als(Outside):
    """implicit's ALS; the factors of a user are solved for from the history at the moment of the request."""

    history_length = 1000

    def train_on(self, history: History) -> Any:
        from implicit.als import AlternatingLeastSquares  # noqa: PLC0415 (an extra)

        model = AlternatingLeastSquares(random_state=0, iterations=15, **self.settings)
        model.fit(matrix_of(history, history.n_users, self._n_items), show_progress=False)
        return model

    def score_range(self, users: Tensor, start: int, stop: int, context: fs.Context) -> Tensor:
        assert context.history is not None
        user, place = torch.nonzero(context.history >= 0, as_tuple=True)
        items = context.history[user, place]
        known = items < len(self.trained.item_factors)  # of an item observed since, nothing is known
        ones = np.ones(int(known.sum()), np.float32)
        shape = (len(users), len(self.trained.item_factors))
        seen = csr_matrix((ones, (user[known].numpy(), items[known].numpy())), shape=shape)
        factors = self.trained.recalculate_user(np.arange(len(users)), seen)
        return torch.from_numpy(np.asarray(factors) @ np.asarray(self.trained.item_factors[start:stop]).T)


class Bpr(Outside):
    """implicit's BPR, for the users whom it has been trained on."""

    def train_on(self, history: History) -> Any:
        from implicit.bpr import BayesianPersonalizedRanking  # noqa: PLC0415 (an extra)

        model = BayesianPersonalizedRanking(random_state=0, **self.settings)
        model.fit(matrix_of(history, history.n_users, self._n_items), show_progress=False)
        return model

    def can_score(self, context: fs.Context) -> Tensor:
        assert context.is_trained is not None
        return context.is_trained

    def score_range(self, users: Tensor, start: int, stop: int, context: fs.Context) -> Tensor:
        factors = np.asarray(self.trained.user_factors)[users.numpy()]
        return torch.from_numpy(factors @ np.asarray(self.trained.item_factors)[start:stop].T)


class ItemNeighbours(Outside):
    """LensKit's item-item nearest neighbours for implicit feedback."""

    history_length = 1000

    def train_on(self, history: History) -> Any:
        import pandas as pd  # noqa: PLC0415 (an extra)
        from lenskit.data import from_interactions_df  # noqa: PLC0415 (an extra)
        from lenskit.knn import ItemKNNScorer  # noqa: PLC0415 (an extra)

        frame = pd.DataFrame({"user_id": history.users, "item_id": history.items})
        model = ItemKNNScorer(feedback="implicit", **self.settings)
        model.train(from_interactions_df(frame))
        return model

    def score_range(self, users: Tensor, start: int, stop: int, context: fs.Context) -> Tensor:
        from lenskit.data import ItemList  # noqa: PLC0415 (an extra)

        assert context.history is not None
        candidates = ItemList(item_ids=np.arange(start, stop))
        scores = np.empty((len(users), stop - start), np.float32)
        for row, history in enumerate(context.history.numpy()):
            scored = self.trained(ItemList(item_ids=history[history >= 0]), candidates)
            scores[row] = np.nan_to_num(scored.scores("numpy"))  # NaN: no neighbour
        return torch.from_numpy(scores)


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    """All combinations of the values."""
    settings: list[dict[str, Any]] = [{}]
    for name, choices in values.items():
        settings = [{**setting, name: choice} for setting in settings for choice in choices]
    return settings


OUTSIDE: dict[str, tuple[type[Outside], list[dict[str, Any]]]] = {
    "implicit ALS": (Als, grid(factors=[8, 32, 128], regularization=[0.1, 10.0, 100.0], alpha=[1.0, 10.0])),
    "implicit BPR": (Bpr, grid(factors=[32, 128], learning_rate=[0.01, 0.05], regularization=[0.01, 0.1])),
    "LensKit item neighbours": (ItemNeighbours, grid(max_nbrs=[20, 100, 500])),
}
OURS: dict[str, dict[str, Any]] = {
    "popularity": {"model": "popularity", "method": "Finetune"},
    "recent popularity": {"model": "recent-popularity", "method": "Finetune"},
    "Finetune-MF": {"method": "Finetune"},
    "FADE-MF λ 0.5": {"method": "FADE"},
    "item-item": {"model": "item-item", "method": "Finetune"},
}


def rows(log: fs.EventLog) -> Iterator[str]:
    """The lines of one data set's table."""
    names = log.require_groups().names
    head = ["", *(column for task in TASKS for column in (f"{task}: everyone", "known", "newcomers", *names))]
    yield "| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|"
    start = partial(fs.run, log, device="cpu", n_resamples=0, metrics=(METRIC,))
    for name, options in OURS.items():
        yield _row(name, start(**options), names)
    for name, (kind, settings) in OUTSIDE.items():
        best = max(settings, key=lambda setting: _on_first_period(start, partial(kind, **setting)))
        chosen = ", ".join(f"{option} {value:g}" for option, value in best.items())
        yield _row(f"{name} ({chosen})", start(model=partial(kind, **best), method="Finetune"), names)


def _on_first_period(start: Callable[..., Run], factory: Any) -> float:
    """How well D_1 is predicted from D_0."""
    return start(model=factory, method="Finetune").begin().tasks["next"][METRIC].mean


def _row(name: str, run: Run, names: tuple[str, ...]) -> str:
    results = list(run)

    def mean(task: str, part: str | None = None, group: str | None = None) -> str:
        scores = [
            (result.tasks[task] if part is None else result.tasks[task].slices[part].metrics)[METRIC]
            for result in results
        ]
        values = [score.mean if group is None else score.by_group[group] for score in scores]
        return f"{np.mean([value for value in values if value is not None]):.4f}"

    cells = [name]
    for task in TASKS:
        parts = ("warm_users", "cold_users")
        cells += [mean(task), *(mean(task, part) for part in parts), *(mean(task, group=group) for group in names)]
    return "| " + " | ".join(cells) + " |"


def main(folder: Path, names: list[str]) -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")  # of the other libraries, about threads
    logging.disable(logging.INFO)
    for name in names or list(DATASETS):
        print(f"\n{name}, NDCG@20, means over t = 1 … 6\n")
        for line in rows(fs.read_events(folder / name, **DATASETS[name])):
            print(line, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
