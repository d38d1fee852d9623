"""Checks for parts of your own: each raises an `AssertionError` that says what is wrong and what to do.

Call them in the tests of your project. They take seconds, run on the CPU, and need no test framework.
Every part that comes with fairstream passes them.

>>> from fairstream.testing import check_loss, check_model
>>> check_loss(lambda scores: (scores[:, 1:] - scores[:, :1]).sigmoid().mean())
>>> check_model("popularity")
"""

from __future__ import annotations

import copy
import json
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fairstream.data import EventLog, History, Rows, read_events, synthetic_stream
from fairstream.errors import FairstreamError
from fairstream.evaluation import METRICS, ItemLists, Lists, Metric, Truth
from fairstream.models import (
    ClosedFormScorer,
    Context,
    ContextBuilder,
    ModelFactory,
    Scorer,
    WindowScorer,
    closed_forms,
    copy_model,
    make_model,
    model_factory,
)
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES, FairnessLoss, Loss
from fairstream.randomness import Randomness
from fairstream.recommender import FairRecommender, load
from fairstream.strategies import STRATEGIES, Period, Plan, Strategy

_N_USERS, _N_ITEMS, _DIM = 7, 11, 4
_OPTIONS: dict[str, Any] = {
    "embedding_dim": _DIM,
    "pretrain_epochs": 1,
    "update_epochs": 1,
    "batch_size": 64,
    "device": "cpu",
    "engine": "reference",
}

__all__ = ["check_fairness", "check_loss", "check_metric", "check_model", "check_strategy"]


# ── models ───────────────────────────────────────────────────────────────────────────────


def check_model(model: str | ModelFactory, *, loss: str | Loss = "bpr") -> None:
    """Check a model: construction, scores, growth, gradients, context, threads, checkpoints, forgetting.

    Parameters
    ----------
    model
        A `Scorer` class, a function (n_users, n_items) → `Scorer`, or a registered name.
    loss
        What it is trained with.

    Raises
    ------
    AssertionError
        If the model does not keep to the interface of `Scorer`.

    Warns
    -----
    UserWarning
        If the model cannot be pickled, which only matters for sending it to another process.

    Examples
    --------
    >>> check_model("mf", loss="sampled-softmax")

    """
    factory = model_factory(model, _DIM) if isinstance(model, str) else model
    for check in (_check_scores, _check_growth, _check_forget, _check_gradient, _check_windows, _check_context):
        check(factory)
    _check_recommender(model, loss)


def _check_scores(factory: ModelFactory) -> None:
    model, history = _model(factory), _history()
    before, modes = _tensors(model), _modes(model)
    users, items = torch.arange(_N_USERS), _all_items(_N_USERS)
    context = _contexts(model, history).at(users.numpy())
    inputs = [users, items, *(x for x in (context.history, context.n_events) if x is not None)]
    copies = [tensor.clone() for tensor in inputs]
    with _explained("scoring 7 users × 11 items"):
        scores = _no_grad(model, users, items, context)
    _require(
        isinstance(scores, Tensor) and scores.shape == items.shape,
        f"forward must return one score for each candidate, so users (7,) and items (7, 11) give the shape (7, 11), "
        f"got {tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__}",
    )
    _require(bool(scores.isfinite().all()), "forward returns NaN or infinite scores; such scores are never ranked")
    _require(
        all(map(torch.equal, inputs, copies)),
        "forward changes the tensors that it is given; use out-of-place operations (clamp instead of clamp_)",
    )
    _require(_same(before, _tensors(model)), "scoring changes the parameters or buffers of the model; it must not")
    _require(
        modes == _modes(model),
        "scoring switches between training and evaluation mode; other threads may be using the model, so leave "
        "train() and eval() to fairstream",
    )
    _require(
        _close(scores, _no_grad(model, users, items, context)),
        "the same call gives other scores the second time; in evaluation mode nothing may be random or remembered",
    )
    with _explained("scoring one user and one item"):
        alone = torch.cat([_no_grad(model, users[u : u + 1], items[:1, 3:4], _at(context, u)) for u in range(_N_USERS)])
    _require(
        _close(alone, scores[:, 3:4]),
        "a user gets other scores alone than in a batch; the score of a user and an item must not depend on what "
        "else is scored (no batch statistics)",
    )
    with _explained("score_range"):
        block = _no_grad(partial(model.score_range, start=2, stop=9), users, context=context)
    _require(
        block.shape == (_N_USERS, 7) and _close(block, scores[:, 2:9]),
        "score_range(users, 2, 9) must give the scores that forward gives the items 2 … 8; leave score_range out "
        "unless it is faster",
    )
    with _explained("block_scorer"):
        again = _no_grad(lambda: model.block_scorer(users, context)(2, 9))
    _require(_close(again, block), "block_scorer(users, context) must give the scores that score_range gives")


def _check_growth(factory: ModelFactory) -> None:
    model = _model(factory)
    before, expected = _tensors(model), _tensors(_model(factory, _N_USERS + 2, _N_ITEMS + 3, learn=False))
    with _explained("grow(n_users + 2, n_items + 3)"):
        model.grow(_N_USERS + 2, _N_ITEMS + 3)
    for name, tensor in _tensors(model).items():
        _require(
            tensor.shape == expected[name].shape,
            f"{name} has the shape {tuple(tensor.shape)} after growth, a new model would have "
            f"{tuple(expected[name].shape)}; keep what belongs to users and items in UserTable and ItemTable, or "
            f"extend grow",
        )
        old = tensor[tuple(map(slice, before[name].shape))]
        _require(torch.equal(old, before[name]), f"growth changes rows of {name} that were there before")
    users, items = np.array([0, _N_USERS, _N_USERS + 1]), np.array([_N_ITEMS, 1, _N_ITEMS + 2])
    history = _history().after(users, items)
    for part in closed_forms(model).values():
        part.learn(history, range(len(history) - 3, len(history)))
    with _explained("scoring users and items that have been added by grow"):
        scores = _no_grad(
            model, torch.from_numpy(users), _all_items(3, _N_ITEMS + 3), _contexts(model, history).at(users)
        )
    _require(
        scores.shape == (3, _N_ITEMS + 3) and bool(scores.isfinite().all()),
        "users and items that have been added by grow do not get finite scores",
    )


def _check_forget(factory: ModelFactory) -> None:
    model = _model(factory)
    before, wider = _tensors(model), _tensors(_model(factory, _N_USERS + 1, _N_ITEMS, learn=False))
    of_users = [name for name, tensor in before.items() if tensor.shape != wider[name].shape]
    with _explained("forget"):
        model.forget(torch.tensor([2]))
    kept = [u for u in range(_N_USERS) if u != 2]
    for name in of_users:
        tensor = _tensors(model)[name]
        _require(
            torch.equal(tensor, before[name][kept]),
            f"forget must remove the rows of users from {name} and move the later ones up; keep it in a UserTable, or "
            f"extend forget",
        )


def _check_gradient(factory: ModelFactory) -> None:
    model = _model(factory).train()
    if isinstance(model, ClosedFormScorer):
        return
    users = torch.arange(_N_USERS)
    context = _contexts(model, _history()).at(users.numpy())
    with _explained("the backward pass"):
        if isinstance(model, WindowScorer):
            assert context.history is not None
            scores = model.score_states(model.states(context.history)[:, -1], None)
        else:
            scores = model(users, _all_items(_N_USERS), context)
        (scores * torch.linspace(-1, 1, scores.numel()).view_as(scores)).sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        _require(
            not parameter.requires_grad or (gradient is not None and bool(gradient.isfinite().all())),
            f"no finite gradient reaches {name}; do not detach it, and set requires_grad = False on what stays fixed",
        )
    with _explained("copying the model after a training step"):
        twin = copy_model(model, factory)
    _require(
        _same(_tensors(model), _tensors(twin)),
        "a copy of the model has other parameters; what a model keeps must be parameters, buffers, or follow from the "
        "constructor",
    )


def _check_windows(factory: ModelFactory) -> None:
    model = _model(factory)
    if not isinstance(model, WindowScorer):
        return
    _require(
        model.reads.history > 1,
        "a WindowScorer needs windows to read: set reads = Reads(history=L) with L > 1",
    )
    users, items = torch.arange(_N_USERS), _all_items(_N_USERS)
    context = _contexts(model, _history()).at(users.numpy())
    window = context.history
    assert window is not None
    with _explained("states"):
        states = _no_grad(model.states, window)
    _require(
        states.dim() == 3 and states.shape[:2] == window.shape,
        f"states must give one vector for each place, (B, L, d) for histories (B, L); it gave {tuple(states.shape)}",
    )
    last = states[:, -1]
    with _explained("score_states"):
        scores = _no_grad(model.score_states, last, items)
        alike = _no_grad(model.score_states, last, items[0]), _no_grad(model.score_states, last, None)
    _require(
        scores.shape == items.shape and all(_close(part, scores) for part in alike),
        "score_states must give the same scores (M, C) for items (M, C), for items (C,) and for all items (None)",
    )
    _require(
        _close(_no_grad(model, users, items, context), scores),
        "forward and the last state of a window differ; the model would be served otherwise than it is trained",
    )
    changed = window.clone()
    changed[:, -1] = (changed[:, -1] + 1) % _N_ITEMS
    _require(
        _close(_no_grad(model.states, changed)[:, :-1], states[:, :-1]),
        "the states of a window depend on later items; mask what comes after each place",
    )
    if model.ignores_padding:
        short = window[:, -1:]
        padded = torch.cat([torch.full_like(short, -1), short], dim=1)
        _require(
            _close(_no_grad(model.states, short)[:, -1], _no_grad(model.states, padded)[:, -1]),
            "ignores_padding is set, but the states depend on how much padding is in front",
        )


def _check_context(factory: ModelFactory) -> None:
    model = _model(factory)
    if not (model.reads.history or model.reads.graph):
        return
    whole, half, users = _history(), len(_history()) // 2, np.arange(_N_USERS)
    past = History.of(whole.users[:half], whole.items[:half], n_users=_N_USERS, n_items=_N_ITEMS)
    known = ContextBuilder(model.reads, past).at(users), ContextBuilder(model.reads, whole).at(users)
    rows, items = torch.from_numpy(users), _all_items(_N_USERS)
    first, second = copy.deepcopy(model), copy.deepcopy(model)
    with _explained("scoring with a short and with a long history"):
        early, late = (_no_grad(first, rows, items, context) for context in known)
        late_first, early_second = (_no_grad(second, rows, items, context) for context in reversed(known))
    _require(
        _close(early, early_second) and _close(late, late_first),
        "scores depend on the context of an earlier call; compute them from the context of this call alone (a cache "
        "would hold an old graph, or the future)",
    )
    if model.reads.history:
        others = History.of(
            np.concatenate([whole.users[:half], whole.users[half:][::-1]]),
            np.concatenate([whole.items[:half], (whole.items[half:] + 1) % _N_ITEMS]),
        )
        before = np.full(_N_USERS, half)
        contexts = [ContextBuilder(model.reads, history).at(users, before) for history in (whole, others)]
        if not model.reads.graph:
            _require(
                _close(*(_no_grad(model, rows, items, context) for context in contexts)),
                "scores as of a moment change with what happened after it; read nothing but the context",
            )


def _check_recommender(model: str | ModelFactory, loss: str | Loss) -> None:
    data = _data()
    parts: dict[str, Any] = {} if isinstance(model, str) else {"model": model}
    parts |= {} if isinstance(loss, str) else {"loss": loss}
    make = partial(FairRecommender, model, loss=loss, **_OPTIONS)
    with _explained("fit"):
        rec = make().fit(data.first)
    before, lists = _tensors(rec.model), data.lists(rec)
    _require(
        lists.equals(data.lists(make().fit(data.first))),
        "two fits with the same seed differ; draw random numbers with torch's global generator only (torch.randn, "
        "nn.init, dropout), and set random_forward = True if forward draws without nn.Dropout",
    )
    _require("model" in lists["source"].to_pylist(), "can_score is False for every user after fit; nobody is served")
    rec.evaluate(data.second, tasks=["next", "event"], n_resamples=0, k=5)
    _require(
        lists.equals(data.lists(rec)) and _same(before, _tensors(rec.model)),
        "recommending or evaluating changes the model or its lists; scoring must not change anything",
    )
    with ThreadPoolExecutor(4) as pool, _explained("recommending from several threads"):
        together = list(pool.map(lambda _: data.lists(rec), range(8)))
    _require(
        all(lists.equals(other) for other in together),
        "lists differ when several threads recommend at once; forward must not keep anything on the model",
    )
    _require(lists.equals(data.lists(copy.deepcopy(rec))), "a deep copy of the recommender gives other lists")
    _check_pickle(rec, lists, data)
    with tempfile.TemporaryDirectory() as folder, _explained("save and load"):
        rec.save(folder)
        loaded = load(folder, **parts)
    _require(
        lists.equals(data.lists(loaded)),
        "a loaded model gives other lists; a checkpoint holds parameters and persistent buffers, so keep there what "
        "the constructor cannot make again",
    )
    for recommender in (rec, loaded):
        with _explained("update with new users and new items"):
            recommender.update(data.second)
    lists = data.lists(rec)
    _require(
        lists.equals(data.lists(loaded)),
        "an update after load gives another model than without it; keep what training needs in parameters or "
        "persistent buffers",
    )
    _check_forgetting(rec, data)


def _check_pickle(rec: FairRecommender, lists: pa.Table, data: _Data) -> None:
    try:
        content = pickle.dumps(rec)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        warnings.warn(
            f"the model cannot be sent to another process ({error}); define it at the top level of a module",
            stacklevel=4,
        )
        return
    _require(
        lists.equals(data.lists(pickle.loads(content))),  # noqa: S301 (our own bytes)
        "an unpickled recommender gives other lists; what a model keeps must survive pickling",
    )


def _check_forgetting(rec: FairRecommender, data: _Data) -> None:
    gone, others = data.users[3], [user for user in data.users if user != data.users[3]]
    before = _by_model(rec, others)
    with _explained("forget"):
        rec.forget([gone])
    whole = rec.model.reads.graph or len(closed_forms(rec.model)) > 0  # depends on everybody's events
    _require(
        whole or before.equals(_by_model(rec, others)),
        "the lists of other users change when a user is forgotten; extend forget so that later rows move up",
    )
    stranger = rec.recommend([1 << 40], k=5).drop_columns("user_id")
    _require(
        rec.recommend([gone], k=5).drop_columns("user_id").equals(stranger),
        "a forgotten user gets another list than somebody unknown; extend forget to remove what the model keeps",
    )
    with _explained("an update after forget"):
        rec.update(data.third)


def _by_model(rec: FairRecommender, users: list[Any]) -> pa.Table:
    """The lists of the users whom the model scores; the popularity fallback depends on everybody's events."""
    lists = rec.recommend(users, k=5)
    return lists.filter(pc.equal(lists["source"], "model"))


# ── losses ───────────────────────────────────────────────────────────────────────────────


def check_loss(loss: str | Loss) -> None:
    """Check a recommendation loss: a finite, differentiable number that falls when the positive rises.

    Parameters
    ----------
    loss
        A function of scores (B, 1 + n) with the positive in column 0, or a registered name.

    Raises
    ------
    AssertionError
        If it cannot be trained with.

    Warns
    -----
    UserWarning
        If the order of the negatives matters, which is seldom meant.

    Examples
    --------
    >>> check_loss("bpr")

    """
    given = LOSSES[loss] if isinstance(loss, str) else loss
    loss = _positive_first(given) if getattr(given, "candidates", "sampled") == "all" else given
    _check_scalar(loss, "the loss")
    scores = _random(16, 5)
    higher = scores + torch.tensor([1.0, 0, 0, 0, 0])
    _require(
        float(loss(higher)) < float(loss(scores)),
        "the loss does not fall when the positive (column 0) scores higher; is the sign or the column wrong?",
    )
    if not _close(loss(scores), loss(scores[:, [0, 4, 2, 1, 3]])):
        warnings.warn("the loss depends on the order of the negatives, which are drawn at random", stacklevel=2)
    if loss is not given:
        scores[:, 3] = -torch.inf
        _require(
            bool(loss(scores).isfinite()),
            "a loss over all items finds −∞ for an item that must not count; it must stay finite",
        )
        weights = torch.zeros(16).index_fill(0, torch.arange(8), 2.0)
        _require(
            _close(given(scores, torch.zeros(16, dtype=torch.long), weights), loss(scores[:8])),
            "an interaction of weight 0 has a part in the loss; multiply by the weights before averaging",
        )


def _positive_first(loss: Loss) -> Loss:
    """A loss over all items as a function of scores with the positive in column 0."""

    def of_scores(scores: Tensor) -> Tensor:
        return loss(scores, torch.zeros(len(scores), dtype=torch.long), torch.ones(len(scores), dtype=scores.dtype))

    return of_scores


def check_fairness(fairness: str | FairnessLoss) -> None:
    """Check a fairness loss: a finite, differentiable number that is higher when one group is served better.

    Parameters
    ----------
    fairness
        A function of scores (B, 1 + μ), groups (B,) and signs (G,), or a registered name.

    Raises
    ------
    AssertionError
        If it cannot be trained with.

    Examples
    --------
    >>> check_fairness("absolute")

    """
    if isinstance(fairness, str):
        fairness = FAIRNESS_LOSSES[fairness](temperature=3.0, surrogate="hit")
    groups, signs = torch.tensor([0, 1, 0, 1, -1, 0, 1, -1]), torch.tensor([1.0, -1.0])
    _check_scalar(lambda scores: fairness(scores, groups[torch.arange(len(scores)) % 8], signs), "the fairness loss")
    even = _random(8, 5).zero_()
    better = even.clone()
    better[groups == 0, 0], better[groups == 1, 0] = 5.0, -5.0
    _require(
        float(fairness(better, groups, signs)) > float(fairness(even, groups, signs)),
        "the fairness loss does not rise when the group with sign +1 is served better than the group with sign −1",
    )
    scores = _random(8, 5).requires_grad_()
    fairness(scores, groups, signs).backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    _require(
        not getattr(fairness, "needs_groups", True) or not bool(scores.grad[groups < 0].any()),
        "users whose group is not known (code −1) have a part in the fairness loss; leave them out",
    )
    with _explained("a batch in which one of three groups does not occur"):
        value = fairness(scores, groups, torch.tensor([1.0, -1.0, -1.0]))
    _require(bool(value.isfinite()), "the fairness loss is not finite where a group does not occur in the batch")


def _check_scalar(loss: Loss, what: str) -> None:
    """One finite number with finite gradients, whatever the scores."""
    extreme = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0], [1e-30, -1e-30, 1e4]])
    cases = {"random": _random(16, 5), "extreme": extreme, "equal": torch.zeros(4, 2), "double": _random(9, 3).double()}
    for name, scores in cases.items():
        original = scores.clone()
        with _explained(f"{what} of {name} scores {tuple(scores.shape)}"):
            scores.requires_grad_()
            value = loss(scores)
        _require(
            isinstance(value, Tensor) and value.dim() == 0,
            f"{what} must return one number (a tensor without dimensions), got "
            f"{tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}; average over the batch",
        )
        _require(
            bool(value.isfinite()), f"{what} of {name} scores is {value.item()}; use logsigmoid, softplus, logsumexp"
        )
        _require(
            value.requires_grad,
            f"{what} is not differentiable: no gradient leads back to the scores; do not detach or round them",
        )
        with _explained(f"the gradient of {what}"):
            value.backward()  # type: ignore[no-untyped-call]
        _require(
            scores.grad is not None and bool(scores.grad.isfinite().all()),
            f"the gradient of {what} is not finite for {name} scores; use logsigmoid, softplus, logsumexp",
        )
        _require(torch.equal(scores.detach(), original), f"{what} changes the scores that it is given; work on a copy")
        _require(torch.equal(loss(scores), value), f"{what} gives another value the second time; nothing may be random")


# ── metrics ──────────────────────────────────────────────────────────────────────────────


def check_metric(metric: str | Metric) -> None:
    """Check a metric: one finite value a user or one number, whatever the order of the users.

    Parameters
    ----------
    metric
        A function of (`Lists`, `Truth`), or a registered name.

    Raises
    ------
    AssertionError
        If its values cannot be compared between groups and runs.

    Examples
    --------
    >>> check_metric("recall")

    """
    metric = METRICS[metric] if isinstance(metric, str) else metric
    lists, truth = _tested_lists(range(_N_USERS))
    arrays = [lists.items, lists.scores, lists.hits, truth.users, truth.positives.items, truth.popularity]
    copies = [array.copy() for array in arrays]
    value = _measured(metric, lists, truth)
    _require(
        all(map(np.array_equal, arrays, copies)),
        "the metric changes the arrays that it is given; work on copies",
    )
    _require(
        np.array_equal(value, _measured(metric, lists, truth)),
        "the metric gives another value the second time; nothing may be random or remembered",
    )
    order = np.arange(_N_USERS)[::-1]
    reversed_value = _measured(metric, *_tested_lists(order))
    _require(
        np.allclose(reversed_value, value[order] if value.ndim else value),
        "the metric depends on the order of the users",
    )
    alone = [_measured(metric, *_tested_lists([user])) for user in range(_N_USERS)]
    _require(
        value.ndim == 0 or np.allclose(np.concatenate(alone), value),
        "the value of a user depends on the other users; return one number if the metric is of all lists together",
    )
    _measured(metric, lists.cut(1), truth)
    data = _data()
    with _explained("evaluate with this metric"):
        rec = FairRecommender("popularity", metrics={"own@5": metric}, **_OPTIONS).fit(data.first)
        rec.evaluate(data.second, tasks=["next", "event"], k=5, n_resamples=0)


def _measured(metric: Metric, lists: Lists, truth: Truth) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The value as an array, of which the shape and the numbers have been checked."""
    n_users = len(lists.items)
    with _explained(f"the metric of {n_users} users at k = {lists.k}"):
        value = np.asarray(metric(lists, truth), dtype=np.float64)
    _require(
        value.shape in ((), (n_users,)),
        f"a metric must return one value a user, ({n_users},), or one number for all users, got the shape "
        f"{value.shape}; average over the places of a list",
    )
    _require(
        bool(np.isfinite(value).all()),
        "the metric returns NaN or infinite values; lists can be shorter than k, with item −1 and score −∞ at the end",
    )
    return value


def _tested_lists(order: Sequence[int] | Rows) -> tuple[Lists, Truth]:
    """Lists of some users with none, some and all hits, one of them short; in this order."""
    history, users = _history(), np.array(order)
    rng = np.random.default_rng(2)
    items = np.stack([rng.permutation(_N_ITEMS)[:4] for _ in range(_N_USERS)])
    items[3, 2:] = -1
    hits = (rng.random(items.shape) < 0.4) & (items >= 0)
    hits[0], hits[1] = False, True
    scores = np.where(items >= 0, np.sort(rng.normal(size=items.shape))[:, ::-1], -np.inf)
    positives = [np.unique([*items[user][hits[user]], user]) for user in users]  # one of them may be in no list
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in positives])])
    truth = Truth.of(users, ItemLists(bounds, np.concatenate(positives)), history)
    return Lists(items[users], scores[users], hits[users]), truth


# ── strategies ───────────────────────────────────────────────────────────────────────────


def check_strategy(strategy: str | Strategy) -> None:
    """Check a strategy: valid plans, the same ones again, a memory that survives a checkpoint.

    Parameters
    ----------
    strategy
        A `Strategy`, or a registered name.

    Raises
    ------
    AssertionError
        If its plans are not valid, not reproducible, or lost by save and load.

    Examples
    --------
    >>> check_strategy("replay")

    """
    if isinstance(strategy, str):
        named = STRATEGIES[strategy]
        strategy = named() if isinstance(named, type) else named
    _require(isinstance(strategy, Strategy), f"a strategy must be a fairstream.Strategy, got {type(strategy).__name__}")
    untouched = copy.deepcopy(strategy)
    history, memory = _history(), dict[str, Any]()
    rng = np.random.default_rng(1)
    for t, quality in enumerate((0.5, None, 0.3, 0.2, 0.1, 0.4), start=1):
        n_before = len(history)
        history = history.after(rng.integers(0, _N_USERS, 6), rng.integers(0, _N_ITEMS, 6))
        period = Period(t, history, range(n_before, len(history)), quality, memory, Randomness(0))
        before = copy.deepcopy(memory)
        with _explained(f"plan for period {t}"):
            plan = strategy.plan(period)
        _check_plan(plan, len(history))
        _require(memory == before, "plan changes period.memory; put what is to be remembered in Plan(memory=…)")
        for again in (strategy.plan(period), copy.deepcopy(untouched).plan(period)):
            _require(
                _describe(again) == _describe(plan),
                "the same period gives another plan the second time; a strategy keeps nothing on itself (use "
                "Plan(memory=…)) and draws from period.randomness alone",
            )
        memory = _as_json(plan.memory)
    _check_strategy_in_use(strategy)


def _check_plan(plan: Any, n_events: int) -> None:
    _require(isinstance(plan, Plan), f"plan must return a fairstream.Plan, got {type(plan).__name__}")
    if plan.events is None:
        return
    events = np.asarray(plan.events)
    _require(len(events) > 0, "a plan without events learns nothing; return Plan.keep() instead of empty events")
    _require(
        events.ndim == 1 and np.issubdtype(events.dtype, np.integer),
        f"Plan.events must be integer positions in the history, got {events.dtype} of shape {events.shape}",
    )
    _require(
        bool(events.min() >= 0 and events.max() < n_events),
        f"Plan.events must be positions from 0 to {n_events - 1}, got {events.min()} to {events.max()}",
    )
    _require(bool((np.diff(events) > 0).all()), "Plan.events must be in ascending order, each once; use np.unique")


def _check_strategy_in_use(strategy: Strategy) -> None:
    data = _data()
    with _explained("fit and update with this strategy"):
        rec = FairRecommender("mf", strategy=strategy, **_OPTIONS).fit(data.first).update(data.second)
    with tempfile.TemporaryDirectory() as folder:
        rec.save(folder)
        loaded = load(folder, strategy=strategy)
    for recommender in (rec, loaded):
        recommender.update(data.third)
    assert rec.last_update is not None
    assert loaded.last_update is not None
    _require(
        rec.last_update.step == loaded.last_update.step and data.lists(rec).equals(data.lists(loaded)),
        "an update after load differs from one without it; what a strategy needs later belongs in Plan(memory=…)",
    )


def _as_json(memory: Mapping[str, Any]) -> dict[str, Any]:
    try:
        again: dict[str, Any] = json.loads(json.dumps(dict(memory), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"Plan.memory must hold JSON values (numbers, strings, lists, dicts): {error}") from None
    _require(again == dict(memory), "Plan.memory changes when it is written as JSON; use lists and string keys")
    return again


def _describe(plan: Plan) -> tuple[Any, ...]:
    events = None if plan.events is None else np.asarray(plan.events).tolist()
    return plan.start, events, plan.epochs, plan.shuffle, plan.extra_loss is None, dict(plan.memory), plan.step


# ── what the checks share ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _Data:
    first: EventLog
    second: pa.Table
    """With users and items that the first events do not have."""
    third: pa.Table
    users: list[Any]

    def lists(self, rec: FairRecommender) -> pa.Table:
        return rec.recommend(self.users, k=5)


@cache
def _data() -> _Data:
    stream = synthetic_stream(n_users=30, n_items=40, n_events=400, seed=0)
    events = stream.events
    first = read_events(events.slice(0, 240), users=stream.users, group="community", advantaged="majority")
    return _Data(first, events.slice(240, 80), events.slice(320), stream.users["user_id"].to_pylist())


@cache
def _history() -> History:
    rng = np.random.default_rng(0)
    pairs = rng.permutation(_N_USERS * _N_ITEMS)[:50]
    return History.of(pairs // _N_ITEMS, pairs % _N_ITEMS, n_users=_N_USERS, n_items=_N_ITEMS)


def _model(factory: ModelFactory, n_users: int = _N_USERS, n_items: int = _N_ITEMS, *, learn: bool = True) -> Scorer:
    with _explained("making a model with (n_users, n_items)"), Randomness(0).seeded("weights"):
        model = make_model(factory, n_users, n_items).eval()
    for part in closed_forms(model).values() if learn else ():
        part.learn(_history(), range(len(_history())))
    return model


def _contexts(model: Scorer, history: History) -> ContextBuilder:
    return ContextBuilder(model.reads, history, np.ones(history.n_users, np.bool_))


def _at(context: Context, user: int) -> Context:
    """The context of one of the users."""
    history, n_events = (
        None if column is None else column[user : user + 1] for column in (context.history, context.n_events)
    )
    return Context(history, n_events, context.graph)


def _all_items(n_users: int, n_items: int = _N_ITEMS) -> Tensor:
    return torch.arange(n_items).repeat(n_users, 1)


def _tensors(model: Scorer) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _modes(model: Scorer) -> list[bool]:
    return [module.training for module in model.modules()]


@torch.no_grad()
def _no_grad(function: Callable[..., Tensor], *inputs: Any, **named: Any) -> Tensor:
    return function(*inputs, **named)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _close(one: Tensor, other: Tensor) -> bool:
    """Equal up to the rounding of other block sizes."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say what was being done when something went wrong."""
    try:
        yield
    except AssertionError:
        raise
    except FairstreamError as error:
        raise AssertionError(f"{what} failed: {error}") from error
    except Exception as error:
        raise AssertionError(f"{what} failed with {type(error).__name__}: {error}") from error
