"""Stores of the paper's runs with given results, for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fairstream.evaluation import Evaluation, Evaluator, UserResults
from fairstream.experiments.config import PAPER_TASKS as TASKS
from fairstream.experiments.record import Record
from fairstream.experiments.results import PeriodResult
from fairstream.experiments.store import Store
from fairstream.paper.catalogue import Catalogue, Entry, row_of
from fairstream.paper.settings import QUICK
from fairstream.randomness import Randomness
from fairstream.recommender import Update
from support import coded

K = 20
CODES = (0, 0, 0, 1, 1)
"""Three users are ahead, two are not."""
Found = Mapping[tuple[int, str], Sequence[int]]
"""(t, task) → how many of 20 things each user found, at the top of its list; −1: it was not tested.

F1@20 is then found / 20."""


class PaperStore:
    """A store that is filled by hand; its protocol has the true NDCG, since the paper's would always be 1."""

    def __init__(self, folder: Path, *, protocol: str = "paper+ndcg", quick: bool = True) -> None:
        self.store, self._protocol, self._quick = Store(folder), protocol, quick
        self._rows: dict[str, dict[str, Any]] = {}
        with self.store.writing():
            self.plan([])

    def plan(self, entries: Sequence[Entry], experiments: Sequence[str] = ()) -> None:
        """Runs that are to be there some day."""
        self._rows |= {name_of(entry): row_of(entry, name_of(entry)) for entry in entries}
        runs = list(self._rows.values())
        plan = {"protocol": self._protocol, "quick": self._quick, "experiments": list(experiments), "runs": runs}
        self.store.write_note("plan", plan)

    def add(self, entry: Entry, found: Found) -> None:
        """A finished run."""
        if name_of(entry) not in self._rows:
            self.plan([entry])
        dataset, model, setting, seed = entry
        config = QUICK.config(setting, dataset, model, seed=seed, protocol=self._protocol)
        periods = sorted({t for t, _ in found})
        results = [
            PeriodResult(
                t, Update(t, "keep", 0.0, None), ("g0",), {task: _judged(tuple(found[t, task])) for task in TASKS}
            )
            for t in periods
        ]
        data = {"name": dataset, "sha256": dataset, "n_events": 9, "n_users": 5, "n_items": 30, "group": "g"}
        about = {
            "config": config.model_dump(),
            "data": {**data, "groups": ["g0", "g1"]},
            "versions": {"fairstream": "0"},
        }
        documents = [result.to_dict() for result in results]
        pretrained = next((document for document in documents if document["t"] == 0), None)
        periods = [document for document in documents if document["t"] > 0]
        tests = {(result.t, task): tested.tested for result in results for task, tested in result.tasks.items()}
        document = {**about, "pretrained": pretrained, "periods": periods}
        self.store.write(name_of(entry), Record(document, lambda: tests))

    @property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.store)


def name_of(entry: Entry) -> str:
    dataset, model, setting, seed = entry
    return f"{dataset} {model} {setting.label} {seed}"


def always(found: Sequence[int], periods: Sequence[int] = range(3)) -> dict[tuple[int, str], Sequence[int]]:
    """The same in every period and task."""
    return {(t, task): found for t in periods for task in TASKS}


@lru_cache(maxsize=256)  # `always` asks for the same in every period and task
def _judged(found: tuple[int, ...]) -> Evaluation:
    counts = np.array(found)
    users = np.flatnonzero(counts >= 0)
    groups = coded(CODES)
    hits, positives = np.arange(K) < counts[users, None], np.full(len(users), K)
    tested = UserResults(users, groups.codes[users], np.zeros(len(users), np.bool_), hits, positives)
    judge = Evaluator(K, groups, Randomness(0))
    scores, _ = judge.scores([tested], 2, Randomness(0).numpy("none"))
    return Evaluation(
        metrics=scores,
        n_users=len(users),
        group=None,
        n_users_by_group={},
        excluded_groups={},
        tested=tested,
        n_cold_users=0,
    )
