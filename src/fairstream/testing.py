"""Checks for custom parts: each raises an `AssertionError` that says what is wrong and what to do.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fairstream.data import EventLog, History, Rows, read_events, synthetic_stream
from fairstream.errors import FairstreamError
from fairstream.evaluation import METRICS, ItemLists, Lists, Metric, Truth
from fairstream.evaluation.lists import TrainingHistory
from fairstream.models import (
    MF,
    TASKS,
    ClosedFormScorer,
    Context,
    ContextBuilder,
    Model,
    ModelFactory,
    Scorer,
    WindowScorer,
    closed_forms,
    make_model,
    resolve_model,
)
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES, FairnessLoss, Loss
from fairstream.randomness import Randomness
from fairstream.recommender import FairRecommender, load
from fairstream.strategies import STRATEGIES, FineTune, Period, Plan, Strategy
from fairstream.training import Training

_N_USERS, _N_ITEMS, _DIM = 7, 11, 4
_USERS = torch.arange(_N_USERS)
_ITEMS = torch.arange(_N_ITEMS).repeat(_N_USERS, 1)
_TRAINING = Training(pretrain_epochs=1, batch_size=64)
_OPTIONS: dict[str, Any] = {"device": "cpu", "engine": "reference"}

__all__ = ["check_fairness", "check_loss", "check_metric", "check_model", "check_strategy"]


def check_model(model: str | Model | ModelFactory, *, loss: str | Loss = "bpr") -> None:
    """Check a model: construction, scores, growth, gradients, context, threads, checkpoints, forgetting.

    Parameters
    ----------
    model
        A `Scorer` class, a function (n_users, n_items) → `Scorer`, or a registered name.
    loss
        The loss to train it with.

    Warns
    -----
    UserWarning
        If the model cannot be pickled.

    Examples
    --------
    >>> check_model("mf", loss="sampled-softmax")
    """
    known = resolve_model(model)
    dims = [name for name in ("embedding_dim", "sequence.embedding_dim") if name.split(".")[0] in known.settings]
    small = resolve_model(known, dict.fromkeys(dims, _DIM))
    for check in (_check_scores, _check_growth, _check_forget, _check_gradient, _check_windows):
        check(small.build)
    _check_recommender(small, loss)


def _check_scores(factory: ModelFactory) -> None:
    model = _model(factory)
    context = _context(model, _history())
    twin, before, modes = copy.deepcopy(model), _tensors(model), [module.training for module in model.modules()]
    columns = {name: column for name, column in vars(context).items() if isinstance(column, Tensor)}
    inputs = [_USERS.clone(), _ITEMS.clone(), *columns.values()]
    copies = [tensor.clone() for tensor in inputs]

    def score(model: Scorer, context: Context) -> Tensor:
        return _call("scoring 7 users × 11 items", model, *inputs[:2], context)

    scores = score(model, context)
    _require_shape(scores, (_N_USERS, _N_ITEMS), "forward must return one score for each candidate")
    _require(_finite(scores), "forward returns NaN or infinite scores; such scores are never ranked")
    _require(
        all(map(torch.equal, inputs, copies)), "forward changes the tensors that it is given; use clamp, not clamp_"
    )
    after = _tensors(model)
    is_same = before.keys() == after.keys() and all(map(torch.equal, before.values(), after.values()))
    _require(is_same, "scoring changes the parameters or buffers of the model; it must not")
    is_same = modes == [module.training for module in model.modules()]
    _require(is_same, "scoring switches between training and evaluation mode; leave that to fairstream")
    again = score(model, context)
    _require(_close(scores, again), "the same call gives other scores the second time; eval() must turn randomness off")
    past = _context(model, _history(25))
    is_same = _close(score(model, past), score(twin, past))
    _require(is_same, "scores depend on the context of an earlier call; read the context of this call alone")
    for u in range(_N_USERS):
        own: Any = {name: column[u : u + 1] for name, column in columns.items()}
        user, item = _USERS[u : u + 1], _ITEMS[:1, 3:4]
        alone = _call("scoring one user and one item", model, user, item, replace(context, **own))
        is_same = _close(alone, scores[u : u + 1, 3:4])
        _require(is_same, "a user has other scores alone than in a batch; avoid batch statistics")
    for name, score_items in (
        ("score_range", lambda: model.score_range(_USERS, 2, 9, context)),
        ("block_scorer", lambda: model.block_scorer(_USERS, context)(2, 9)),
    ):
        is_same = _close(_call(name, score_items), scores[:, 2:9])
        _require(is_same, f"{name} must give the items 2 … 8 the scores that forward gives")


def _check_growth(factory: ModelFactory) -> None:
    model, n_users, n_items = _model(factory), _N_USERS + 2, _N_ITEMS + 3
    before, expected = _tensors(model), _tensors(_model(factory, n_users, n_items, learn=False))
    with _explained("grow(n_users + 2, n_items + 3)"):
        model.grow(n_users, n_items)
    for name, tensor in _tensors(model).items():
        advice = f"{name} has the wrong shape after growth; use UserTable and ItemTable, or extend grow"
        _require_shape(tensor, expected[name].shape, advice)
        old = tensor[tuple(map(slice, before[name].shape))]
        _require(torch.equal(old, before[name]), f"growth changes rows of {name} that were there before")
    users = np.array([0, _N_USERS, _N_USERS + 1])
    history = _history().after(users, np.array([_N_ITEMS, 1, _N_ITEMS + 2]))
    for part in closed_forms(model).values():
        part.learn(history, range(len(history) - 3, len(history)))
    inputs = torch.from_numpy(users), torch.arange(n_items).repeat(3, 1), _context(model, history, users)
    scores = _call("scoring the users and items that grow adds", model, *inputs)
    _require(_finite(scores), "the users and items that grow adds do not get finite scores")


def _check_forget(factory: ModelFactory) -> None:
    model = _model(factory)
    before, wider = _tensors(model), _tensors(_model(factory, _N_USERS + 1, _N_ITEMS, learn=False))
    with _explained("forget"):
        model.forget(torch.tensor([2]))
    for name, tensor in _tensors(model).items():
        _require(
            before[name].shape == wider[name].shape or torch.equal(tensor, before[name][_USERS != 2]),
            f"forget must remove the rows of users from {name} and move later rows up; use UserTable, or extend forget",
        )


def _check_gradient(factory: ModelFactory) -> None:
    model = _model(factory).train()
    if isinstance(model, ClosedFormScorer):
        return
    context = _context(model, _history())
    with _explained("the backward pass"):
        scores = torch.stack([model(_USERS, _ITEMS, replace(context, task=task)) for task in TASKS])
        (scores * torch.linspace(-1, 1, scores.numel()).view_as(scores)).sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        is_reached = not parameter.requires_grad or _finite(parameter.grad)
        _require(is_reached, f"no finite gradient reaches {name}; do not detach it, or set requires_grad = False")


def _check_windows(factory: ModelFactory) -> None:
    model = _model(factory)
    if not isinstance(model, WindowScorer):
        return
    context = _context(model, _history())
    window = _window(context)
    states = _call("states", model.states, window)
    sentence = "states must give one vector for each place, (B, L, d) for histories (B, L)"
    _require_shape(states, (*window.shape, states.shape[-1]), sentence)
    inputs = (_ITEMS, _ITEMS[0], None)
    scores, *same = (_call("score_states", model.score_states, states[:, -1], items) for items in inputs)
    is_same = all(_close(part, scores) for part in same)
    _require(
        is_same, "score_states must give the same scores for items (M, C), for items (C,) and for None (all items)"
    )
    is_same = _close(_call("forward", model, _USERS, _ITEMS, context), scores)
    _require(is_same, "forward and the last state of a window differ: serving and training must give the same scores")
    changed = window.clone()
    changed[:, -1] = (changed[:, -1] + 1) % _N_ITEMS
    is_same = _close(_call("states", model.states, changed)[:, :-1], states[:, :-1])
    _require(is_same, "the states of a window depend on later items; mask what comes after each place")
    short = window[:, -1:]
    padded = torch.cat([torch.full_like(short, -1), short], dim=1)
    is_same = _close(*(_call("states", model.states, part)[:, -1] for part in (short, padded)))
    _require(is_same or not model.ignores_padding, "ignores_padding is set, but the states depend on the padding")


def _check_recommender(model: Model, loss: str | Loss) -> None:
    data = _data()
    training = Training(loss=loss, **_TRAINING.given)
    make = partial(FairRecommender, model, strategy=FineTune(epochs=1), training=training, **_OPTIONS)
    with _explained("fit"):
        rec = make().fit(data.first)
    lists = data.lists(rec)
    _require(
        lists.equals(data.lists(make().fit(data.first))),
        "two fits with the same seed differ; draw from torch's global generator (torch.randn, nn.init, dropout), and "
        "set random_forward = True if forward draws without nn.Dropout",
    )
    _require("model" in lists["source"].to_pylist(), "can_score is False for every user after fit; nobody is served")
    with _explained("evaluate"):
        for task in TASKS:
            rec.evaluate(data.second, task=task, n_resamples=0, k=5)
    with ThreadPoolExecutor(4) as pool, _explained("recommending from several threads"):
        concurrent = list(pool.map(lambda _: data.lists(rec), range(8)))
    is_same = all(lists.equals(other) for other in concurrent)
    _require(is_same, "lists differ after an evaluation, or from several threads at once; keep nothing on the model")
    try:
        content = pickle.dumps(rec)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        warnings.warn(f"the model cannot be pickled ({error}); define it at the top level of a module", stacklevel=3)
    else:
        is_same = lists.equals(data.lists(pickle.loads(content)))  # noqa: S301 (our own bytes)
        _require(is_same, "an unpickled model gives other lists; its state must survive pickling")
    with tempfile.TemporaryDirectory() as folder, _explained("save and load"):
        rec.save(folder)
        parts: dict[str, Any] = {} if model.registered_name else {"model": model}
        loaded = load(folder, training=training, **parts)
    is_same = lists.equals(data.lists(loaded))
    _require(is_same, "a loaded model gives other lists; a checkpoint holds only parameters and persistent buffers")
    for recommender in (rec, loaded):
        with _explained("update with new users and new items"):
            recommender.update(data.second)
    is_same = data.lists(rec).equals(data.lists(loaded))
    _require(is_same, "an update after load gives another model; keep its state in parameters or persistent buffers")
    with _explained("forget"):
        rec.forget(data.users[3:4])
    forgotten, stranger = (rec.recommend([user], k=5).drop_columns("user_id") for user in (data.users[3], 1 << 40))
    _require(forgotten.equals(stranger), "a forgotten user gets another list than an unknown one; extend forget")
    with _explained("an update after forget"):
        rec.update(data.third)


def check_loss(loss: str | Loss) -> None:
    """Check a recommendation loss: a finite, differentiable number that falls when the positive rises.

    Parameters
    ----------
    loss
        A function of scores (B, 1 + n) with the positive in column 0, or a registered name.

    Warns
    -----
    UserWarning
        If the order of the negatives matters, which is rarely intended.

    Examples
    --------
    >>> check_loss("bpr")
    """
    given = LOSSES[loss] if isinstance(loss, str) else loss
    is_over_all = getattr(given, "candidates", "sampled") == "all"

    def value(scores: Tensor, weights: Tensor | None = None) -> Tensor:
        if not is_over_all:
            return given(scores)
        weights = torch.ones(len(scores), dtype=scores.dtype) if weights is None else weights
        return given(scores, torch.zeros(len(scores), dtype=torch.long), weights)

    _check_scalar(value, "the loss")
    scores = _random(16, 5)
    is_lower = bool(value(scores + torch.tensor([1.0, 0, 0, 0, 0])) < value(scores))
    _require(is_lower, "the loss does not fall when the positive (column 0) scores higher; is the sign wrong?")
    if not _close(value(scores), value(scores[:, [0, 4, 2, 1, 3]])):
        warnings.warn("the loss depends on the order of the negatives, which are drawn at random", stacklevel=2)
    if is_over_all:
        scores[:, 3] = -torch.inf
        _require(_finite(value(scores)), "a loss over all items must stay finite where an item has the score −∞")
        is_left_out = _close(value(scores, torch.tensor([2.0] * 8 + [0.0] * 8)), value(scores[:8]))
        _require(is_left_out, "an interaction of weight 0 has a part in the loss; multiply by the weights")


def check_fairness(fairness: str | FairnessLoss) -> None:
    """Check a fairness loss: a finite, differentiable number that is higher when one group is served better.

    Parameters
    ----------
    fairness
        A function of scores (B, 1 + μ), groups (B,) and signs (G,), or a registered name.

    Examples
    --------
    >>> check_fairness("absolute")
    """
    if isinstance(fairness, str):
        fairness = FAIRNESS_LOSSES[fairness]()
    groups, signs = torch.tensor([0, 1, 0, 1, -1, 0, 1, -1]), torch.tensor([1.0, -1.0])
    _check_scalar(lambda scores: fairness(scores, groups[torch.arange(len(scores)) % 8], signs), "the fairness loss")
    even = torch.zeros(8, 5)
    better = even.clone()
    better[groups == 0, 0], better[groups == 1, 0] = 5.0, -5.0
    is_higher = bool(fairness(better, groups, signs) > fairness(even, groups, signs))
    _require(is_higher, "the fairness loss does not rise when the group with sign +1 is served better than the other")
    scores = _random(8, 5).requires_grad_()
    fairness(scores, groups, signs).backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    is_left_out = not bool(scores.grad[groups < 0].any())
    _require(is_left_out, "users whose group is not known (code −1) have a part in the fairness loss; leave them out")
    with _explained("a batch in which one of three groups does not occur"):
        value = fairness(scores, groups, torch.tensor([1.0, -1.0, -1.0]))
    _require(_finite(value), "the fairness loss is not finite where a group does not occur in the batch")


def _check_scalar(loss: Loss, what: str) -> None:
    """Check for one finite number with finite gradients, whatever the scores."""
    extreme = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0], [1e-30, -1e-30, 1e4]])
    cases = {"random": _random(16, 5), "extreme": extreme, "equal": torch.zeros(4, 2), "double": _random(9, 3).double()}
    for name, original in cases.items():
        scores = original.clone().requires_grad_()
        with _explained(f"{what} of {name} scores {tuple(scores.shape)}"):
            value = loss(scores)
        _require_shape(
            value, (), f"{what} must return one number (a tensor without dimensions): average over the batch"
        )
        _require(_finite(value), f"{what} of {name} scores is {value.item()}; use logsigmoid, softplus, logsumexp")
        _require(value.requires_grad, f"{what} is not differentiable; do not detach or round the scores")
        with _explained(f"the gradient of {what}"):
            value.backward()  # type: ignore[no-untyped-call]
        _require(
            _finite(scores.grad), f"the gradient of {what} of {name} scores is not finite; use logsigmoid, softplus"
        )
        _require(torch.equal(scores.detach(), original), f"{what} changes the scores that it is given; work on a copy")
        _require(torch.equal(loss(scores), value), f"{what} gives another value the second time; it must not be random")


def check_metric(metric: str | Metric) -> None:
    """Check a metric: one finite value per user or one number, in any order of the users.

    Parameters
    ----------
    metric
        A function of (`Lists`, `Truth`), or a registered name.

    Examples
    --------
    >>> check_metric("recall")
    """
    metric = METRICS[metric] if isinstance(metric, str) else metric
    lists, truth = _tested_lists(range(_N_USERS))
    arrays = [lists.items, lists.scores, lists.hits, truth.users, truth.positives.items, truth.popularity]
    copies = [array.copy() for array in arrays]
    value = _measure(metric, lists, truth)
    _require(all(map(np.array_equal, arrays, copies)), "the metric changes the arrays it gets; work on copies")
    again = _measure(metric, lists, truth)
    _require(np.array_equal(value, again), "the metric gives another value the second time; it must not be random")
    backwards = _measure(metric, *_tested_lists(range(_N_USERS)[::-1]))
    _require(np.allclose(backwards, np.flip(value)), "the metric depends on the order of the users")
    alone = [_measure(metric, *_tested_lists([user])) for user in range(_N_USERS)]
    is_own = value.ndim == 0 or np.allclose(np.concatenate(alone), value)
    _require(is_own, "the value of a user depends on the other users; return one number for all lists instead")
    _measure(metric, lists.cut(1), truth)
    with _explained("evaluate with this metric"):
        rec = FairRecommender("popularity", metrics={"own@5": metric}, **_OPTIONS).fit(_data().first)
        for task in TASKS:
            rec.evaluate(_data().second, task=task, k=5, n_resamples=0)


def _measure(metric: Metric, lists: Lists, truth: Truth) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the value as an array, after a check of its shape and numbers."""
    n_users = len(lists.items)
    with _explained(f"the metric of {n_users} users at k = {lists.k}"):
        value = np.asarray(metric(lists, truth), dtype=np.float64)
    sentence = f"a metric must return one value a user, ({n_users},), or one number; average over the places of a list"
    _require_shape(value, (n_users,) if value.ndim else (), sentence)
    is_finite = bool(np.isfinite(value).all())
    _require(is_finite, "the metric returns NaN or infinite values; lists shorter than k end with item −1, score −∞")
    return value


def _tested_lists(order: Sequence[int]) -> tuple[Lists, Truth]:
    """Return the lists of these users, in this order: without hits, with some, with all, and a short one."""
    users, rng = np.array(order), np.random.default_rng(2)
    items = np.stack([rng.permutation(_N_ITEMS)[:4] for _ in range(_N_USERS)])
    items[3, 2:] = -1
    hits = (rng.random(items.shape) < 0.4) & (items >= 0)
    hits[0], hits[1] = False, True
    scores = np.where(items >= 0, np.sort(rng.normal(size=items.shape))[:, ::-1], -np.inf)
    positives = [np.unique([*items[user][hits[user]], user]) for user in users]  # one of them may be in no list
    bounds = np.cumsum([0, *map(len, positives)])
    history, lists = _history(), ItemLists(bounds, np.concatenate(positives))
    truth = Truth(users, lists, history.n_items, TrainingHistory(history, history))
    return Lists(items[users], scores[users], hits[users]), truth


def check_strategy(strategy: str | Strategy) -> None:
    """Check a strategy: valid plans, the same ones again, a memory that survives a checkpoint.

    Parameters
    ----------
    strategy
        A `Strategy`, or a registered name.

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
        _require(isinstance(plan, Plan), f"plan must return a fairstream.Plan, got {type(plan).__name__}")
        if plan.events is not None:
            sentence = "a plan without events learns nothing; return Plan.keep() instead of empty events"
            _require(len(plan.events) > 0, sentence)
            first, last = plan.events[0], plan.events[-1]  # ascending: the plan has checked it
            sentence = f"Plan.events must be positions from 0 to {len(history) - 1}, got {first} to {last}"
            _require(first >= 0 and last < len(history), sentence)
        _require(memory == before, "plan changes period.memory; return the new memory in Plan(memory=…)")
        for again in (strategy.plan(period), copy.deepcopy(untouched).plan(period)):
            _require(
                _describe(again) == _describe(plan),
                "the same period gives another plan the second time; a strategy keeps nothing on itself (use "
                "Plan(memory=…)) and draws from period.randomness alone",
            )
        try:
            memory = json.loads(json.dumps(dict(plan.memory), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"Plan.memory must hold JSON values, such as numbers and lists: {error}") from None
        _require(memory == plan.memory, "Plan.memory changes when it is written as JSON; use lists and string keys")
    data = _data()
    with _explained("fit and update with this strategy"):
        rec = FairRecommender(MF(embedding_dim=_DIM), strategy=strategy, training=_TRAINING, **_OPTIONS)
        rec.fit(data.first).update(data.second)
    with tempfile.TemporaryDirectory() as folder:
        rec.save(folder)
        loaded = load(folder, strategy=strategy)
    lists = [data.lists(recommender.update(data.third)) for recommender in (rec, loaded)]
    is_same = lists[0].equals(lists[1])
    _require(is_same, "an update after load differs from one without it; keep the state of a strategy in Plan.memory")


def _describe(plan: Plan) -> dict[str, Any]:
    events = None if plan.events is None else np.asarray(plan.events).tolist()
    return vars(replace(plan, extra_loss=None)) | {"events": events, "has_loss": plan.extra_loss is not None}


@dataclass(frozen=True, eq=False)
class _Data:
    first: EventLog
    second: pa.Table  # with users and items that the first events do not have
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
def _history(n_events: int = 50) -> History:
    pairs = np.random.default_rng(0).permutation(_N_USERS * _N_ITEMS)[:n_events]
    return History.of(pairs // _N_ITEMS, pairs % _N_ITEMS, n_users=_N_USERS, n_items=_N_ITEMS)


def _model(factory: ModelFactory, n_users: int = _N_USERS, n_items: int = _N_ITEMS, *, learn: bool = True) -> Scorer:
    with _explained("making a model with (n_users, n_items)"), Randomness(0).seeded("weights"):
        model = make_model(factory, n_users, n_items).eval()
    for part in closed_forms(model).values() if learn else ():
        part.learn(_history(), range(len(_history())))
    return model


def _context(model: Scorer, history: History, users: Rows | None = None) -> Context:
    builder = ContextBuilder(model.history_length, history, np.ones(history.n_users, np.bool_))
    return builder.at(_USERS.numpy() if users is None else users)


def _window(context: Context) -> Tensor:
    history = context.history
    _require(history is not None and history.shape[1] > 1, "a WindowScorer reads windows: set history_length = L > 1")
    assert history is not None
    return history


def _tensors(model: Scorer) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _finite(value: Tensor | None) -> bool:
    return value is not None and bool(value.isfinite().all())


def _call(what: str, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    with _explained(what), torch.no_grad():
        return function(*inputs)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _close(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors are equal up to the rounding of different block sizes."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def _require_shape(value: Any, shape: Sequence[int], sentence: str) -> None:
    actual = tuple(value.shape) if isinstance(value, Tensor | np.ndarray) else type(value).__name__
    _require(actual == tuple(shape), f"{sentence}; expected the shape {tuple(shape)}, got {actual}")


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, FairstreamError) else f" with {type(error).__name__}"
        raise AssertionError(f"{what} failed{kind}: {error}") from error
