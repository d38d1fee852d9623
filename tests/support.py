"""Helpers that several test modules use."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import Groups, History, Rows, SeenItems
from fairstream.distributed import connection
from fairstream.evaluation import ItemLists, Lists, UserResults
from fairstream.evaluation.requests import Requests
from fairstream.evaluation.top_k import top_k_of_all
from fairstream.experiments import RunConfig
from fairstream.methods import MethodConfig, Parts
from fairstream.models import (
    NO_CONTEXT,
    Context,
    ContextBuilder,
    ItemTable,
    Level,
    MFScorer,
    Scorer,
    UserTable,
    resolve_model,
)
from fairstream.recommender import FairRecommender
from fairstream.recommender.trainer import Trainer

EXTREME = st.sampled_from([1e4, -1e4, 9_999.0, 1e-30, -1e-6, 0.0]) | st.floats(-1e4, 1e4, width=32)
FAST: dict[str, Any] = {
    "pretrain_epochs": 2,
    "update_epochs": 2,
    "model_settings": {"embedding_dim": 8},
    "batch_size": 64,
    "n_periods": 4,
    "min_group_size": 1,
    "n_resamples": 0,
    "device": "cpu",
}
"""A run of a second."""
_RUNTIME = ("seed", "device", "engine")


def small_settings(model: Any, dim: int = 8) -> dict[str, int]:
    """The settings that make a model this wide; none for a model without embeddings."""
    names = resolve_model(model).settings
    return {path: dim for path in ("embedding_dim", "sequence.embedding_dim") if path.split(".")[0] in names}


def make_recommender(model: Any = "blend", *, metrics: Any = None, **options: Any) -> FairRecommender:
    """A recommender of flat options, as `fairstream.toml` holds them; `embedding_dim` where the model has one."""
    dim = options.pop("embedding_dim", None)
    if dim is not None:
        options["model_settings"] = small_settings(model, dim)
        if not isinstance(model, str):
            model = resolve_model(model, options.pop("model_settings"))
    runtime = {name: options.pop(name) for name in _RUNTIME if name in options}
    given, parts = Parts.split(model=model, **options)
    return FairRecommender.from_config(MethodConfig(**given), parts, metrics=metrics, **runtime)


def at_level(rec: FairRecommender, level: Level) -> FairRecommender:
    """Put a level into force, as a target would."""
    rec._states.replace(Trainer.with_tilt(replace(rec.state, level=level)))
    return rec


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


Pairs = set[tuple[int, int]]


def rows(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def pairs_of(pairs: Pairs) -> SeenItems:
    """(user, item) pairs as the library holds them."""
    columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return SeenItems.from_pairs(columns[:, 0], columns[:, 1])


def items_of(pairs: Pairs, user: int) -> set[int]:
    return {item for other, item in pairs if other == user}


def coded(codes: Any) -> Groups:
    """Groups by their codes, −1 where not known."""
    array = np.array(codes, dtype=np.int16)
    return Groups("g", tuple(f"g{code}" for code in range(max(2, array.max(initial=-1) + 1))), array)


@st.composite
def ranked_lists(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Distinct scores up to ±1e4, and what is relevant."""
    scores = draw(st.lists(st.integers(-10_000, 10_000), min_size=1, max_size=8, unique=True))
    relevance = draw(st.lists(st.integers(0, 1), min_size=len(scores), max_size=len(scores)))
    return scores, relevance


class Recorder(MFScorer):
    """Matrix factorisation that records the users and items it scores."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)
        self.asked: list[tuple[Tensor, Tensor]] = []

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        self.asked.append((users.clone(), items.clone()))
        return super().forward(users, items, context)

    def told(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The users (N,) and candidates (N, 1 + n) asked for since the last time."""
        users, items = (torch.cat(column).numpy() for column in zip(*self.asked, strict=True))
        self.asked.clear()
        return users, items


class Given(Scorer):
    """Fixed scores (users × items); records the users and items it scores."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.user, self.item = UserTable(len(scores), 1), ItemTable(scores.shape[1], 1)
        self.scores = scores
        self.asked: list[tuple[list[int], list[list[int]]]] = []

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        self.asked.append((users.tolist(), items.tolist()))
        return self.scores[users[:, None], items]


NO_CONTEXTS = ContextBuilder(0, History.empty())
"""Of models that read nothing."""


def rank_all(
    model: Scorer,
    users: Rows,
    positives: SeenItems,
    seen: SeenItems,
    *,
    n_items: int,
    k: int,
    allowed: Rows | None = None,
) -> Lists:
    """Ranked lists of all items, or of those allowed, by a model that reads no context."""
    wanted = ItemLists(*positives.lists(users))
    requests = Requests(users, wanted, had(seen, n_items), NO_CONTEXTS)
    return top_k_of_all(model, requests, n_items=n_items, k=k, allowed=allowed)


def had(seen: SeenItems, n_items: int) -> History:
    """A history in which these pairs have been seen, and so many items are known."""
    return replace(History.of(seen.users, seen.items), n_items=n_items)


def made_run(
    found: Any, groups: Any, *, names: Any = ("a", "b"), is_cold: Any = False, k: int = 4, **options: Any
) -> dict[str, Any]:
    """The document of a run in which user u found the first `found[p][u]` of k things in period p.

    −1 there: the user was not tested. All metrics follow: precision@k, say, is found / k.
    """
    found, codes = np.array(found), np.array(groups, dtype=np.int16)
    cold = np.broadcast_to(is_cold, found.shape)
    config = RunConfig(
        k=k, **{"model": "mf", "min_group_size": 1, "n_periods": len(found) + 1, "n_blocks": 100, **options}
    )
    periods = []
    for p, row in enumerate(found):
        users = np.flatnonzero(row >= 0)
        hits = np.arange(k) < row[users, None]
        tested = UserResults(users, codes[users], cold[p, users], hits, np.full(len(users), k))
        periods.append({"t": p + 1, "tasks": {task: {"tested": tested.to_dict()} for task in ("remain", "next")}})
    return {
        "config": config.model_dump(),
        "data": {
            "sha256": "0" * 64,
            "group": "side",
            "groups": list(names),
            "advantaged": names[0],
            "advantaged_by": "declared",
            "period_ends": list(range(len(found) + 2)),
        },
        "pretrained": {**periods[0], "t": 0},
        "periods": periods,
        "summary": {"remain": {}, "next": {}},
        "slices": {},
        "timing": {},
    }


@contextmanager
def one_by_one() -> Iterator[OneByOne]:
    """In place of a cluster, run its tasks one after another in this process."""
    with pytest.MonkeyPatch.context() as patch:
        tasks = OneByOne()
        patch.setattr(connection, "_current", tasks)
        yield tasks


class OneByOne:
    """Runs the tasks of a cluster in this process, the last one first; each gets a copy of everything."""

    n_cpus = 2

    def __init__(self) -> None:
        self.n_tasks = 0

    def check_memory(self, n_bytes: int, what: str) -> None:
        assert n_bytes > 0, what

    def check_folder(self, folder: Path) -> None:
        assert folder.is_dir()

    def run(
        self,
        task: Callable[..., Any],
        arguments: Sequence[Any],
        *,
        shared: Any,
        memory: int,
        on_result: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        sent = pickle.dumps((task, shared))
        results = [None] * len(arguments)
        for number in reversed(range(len(arguments))):
            its_task, its_shared = pickle.loads(sent)
            self.n_tasks += 1
            results[number] = its_task(pickle.loads(pickle.dumps(arguments[number])), its_shared, None)
            if on_result is not None:
                on_result(number, results[number])
        return results
