"""Every built-in part passes the public checks, and each check fails a part that is broken in its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fairstream as fs
from fairstream.evaluation import METRICS
from fairstream.methods import MethodConfig
from fairstream.models import MODELS, MFScorer
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES
from fairstream.strategies import STRATEGIES, FineTune
from fairstream.testing import check_fairness, check_loss, check_metric, check_model, check_strategy


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_built_in_model_passes(name: str) -> None:
    check_model(name)


@pytest.mark.parametrize("name", LOSSES)
def test_every_built_in_loss_passes(name: str) -> None:
    check_loss(name)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", FAIRNESS_LOSSES)
@pytest.mark.parametrize("surrogate", ["hit", "neural-ndcg", "approx-ndcg"])
def test_every_built_in_fairness_loss_passes(name: str, surrogate: str) -> None:
    check_fairness(MethodConfig(fairness=name, temperature=3.0, surrogate=surrogate).recipe().fairness)
    check_fairness(name)


@pytest.mark.parametrize("name", METRICS)
def test_every_built_in_metric_passes(name: str) -> None:
    check_metric(name)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_built_in_strategy_passes(name: str) -> None:
    check_strategy(name)


def test_a_strategy_with_arguments_passes() -> None:
    check_strategy(FineTune(restart_every=3))


# ── models that are broken in one way each ───────────────────────────────────────────────


class Small(MFScorer):
    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)

    def score_range(self, users: Tensor, start: int, stop: int, context: Any = None) -> Tensor:
        return fs.Scorer.score_range(self, users, start, stop, context)


class WrongShape(Small):
    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return super().forward(users, items).mean(dim=1)


class NotANumber(Small):
    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return super().forward(users, items).log()


class ChangesItsInput(Small):
    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return super().forward(users.clamp_(max=3), items)


class Counts(Small):
    n_calls: Tensor

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items)
        self.register_buffer("n_calls", torch.zeros(()))

    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        self.n_calls += 1
        return super().forward(users, items)


class SwitchesMode(Small):
    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        self.train()
        return super().forward(users, items)


class DrawsAtRandom(Small):
    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return super().forward(users, items) + torch.rand(items.shape)


class NormalisesOverTheBatch(Small):
    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        scores = super().forward(users, items)
        return scores - scores.mean(dim=0)


class OtherRange(Small):
    def score_range(self, users: Tensor, start: int, stop: int, context: Any = None) -> Tensor:
        return super().score_range(users, 0, stop - start)


class FixedRows(Small):
    """Does not grow."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items)
        self.bias = nn.Embedding(n_items, 1)

    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return super().forward(users, items) + self.bias(items).squeeze(-1)


class StartsAgain(Small):
    def grow(self, n_users: int, n_items: int) -> None:
        super().grow(n_users, n_items)
        self.item.reset_parameters()


class KeepsRows(Small):
    """Grows what it keeps of users, but does not forget it."""

    level: Tensor

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items)
        self.register_buffer("level", torch.arange(float(n_users)))

    def grow(self, n_users: int, n_items: int) -> None:
        super().grow(n_users, n_items)
        self.level = torch.cat([self.level, torch.zeros(n_users - len(self.level))])


class Detached(Small):
    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return (self.item(items) @ self.user(users).detach().unsqueeze(-1)).squeeze(-1)


class Window(fs.WindowScorer):
    """The mean of the embeddings of the items so far."""

    history_length = 6

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.item = fs.ItemTable(n_items, 4, padding=True)

    def states(self, history: Tensor) -> Tensor:
        n = (history >= 0).cumsum(dim=1).clamp(min=1)
        return self.item(history).cumsum(dim=1) / n.unsqueeze(-1)


class LooksAhead(Window):
    def states(self, history: Tensor) -> Tensor:
        return super().states(history)[:, -1:].expand(-1, history.shape[1], -1)


class CountsPadding(Window):
    ignores_padding = True

    def states(self, history: Tensor) -> Tensor:
        places = torch.arange(1, history.shape[1] + 1).unsqueeze(-1)
        return self.item(history).cumsum(dim=1) / places


class ServesOtherwise(Window):
    def forward(self, users: Tensor, items: Tensor, context: fs.Context) -> Tensor:
        return -super().forward(users, items, context)

    def block_scorer(self, users: Tensor, context: fs.Context) -> Any:
        score = super().block_scorer(users, context)
        return lambda start, stop: -score(start, stop)


class TwoWays(Small):
    def block_scorer(self, users: Tensor, context: fs.Context) -> Any:
        return lambda start, stop: torch.zeros(len(users), stop - start)


class Caches(Window):
    """Keeps the first history that it sees."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items)
        self.kept: dict[int, Tensor] = {}

    def forward(self, users: Tensor, items: Tensor, context: fs.Context) -> Tensor:
        assert context.history is not None
        rows = [self.kept.setdefault(u, row) for u, row in zip(users.tolist(), context.history, strict=True)]
        return super().forward(users, items, fs.Context(history=torch.stack(rows)))


class Unseeded(Small):
    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items)
        noise = np.random.default_rng().normal(size=(n_items, 4)).astype(np.float32)
        self.item.weight.data.copy_(torch.from_numpy(noise))


class ScoresNobody(Small):
    def can_score(self, context: fs.Context) -> Tensor:
        assert context.is_trained is not None
        return torch.zeros_like(context.is_trained)


class OnlyTheMainThread(Small):
    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        scores = super().forward(users, items)
        return scores if threading.current_thread() is threading.main_thread() else -scores


class NotInTheCheckpoint(fs.ClosedFormScorer):
    """Counts items in an attribute instead of a buffer."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.count = torch.zeros(n_items)

    def grow(self, n_users: int, n_items: int) -> None:
        self.count = torch.cat([self.count, torch.zeros(n_items - len(self.count))])

    def learn(self, history: fs.History, new: Any) -> None:
        self.count = self.count + torch.from_numpy(history.items_at(new)).bincount(minlength=len(self.count))

    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return self.count[items]


class NoParameters(fs.Scorer):
    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()

    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return items.float()


class RowForPadding(Small):
    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items)
        self.item = fs.ItemTable(n_items + 1, 4)


@pytest.mark.few(12)
@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (WrongShape, r"one score for each candidate.*\(7, 11\), got \(7,\)"),
        (NotANumber, "NaN or infinite"),
        (ChangesItsInput, "changes the tensors that it is given"),
        (Counts, "changes the parameters or buffers"),
        (SwitchesMode, "switches between training and evaluation mode"),
        (DrawsAtRandom, "other scores the second time"),
        (NormalisesOverTheBatch, "alone than in a batch"),
        (OtherRange, "score_range"),
        (FixedRows, "bias.weight has the wrong shape after growth.*UserTable and ItemTable"),
        (StartsAgain, "growth changes rows of item.weight"),
        (KeepsRows, "forget must remove the rows of users from level"),
        (Detached, "no finite gradient reaches user.weight"),
        (LooksAhead, "depend on later items"),
        (CountsPadding, "ignores_padding is set"),
        (ServesOtherwise, "serving and training must give the same scores"),
        (TwoWays, "block_scorer"),
        (Caches, "context of an earlier call"),
        (Unseeded, "two fits with the same seed differ"),
        (ScoresNobody, "can_score is False for every user"),
        (OnlyTheMainThread, "several threads"),
        (NotInTheCheckpoint, "a loaded model gives other lists"),
        (NoParameters, "no trainable parameters.*ClosedFormScorer"),
        (RowForPadding, "padding=True"),
        (lambda n_users: None, "making a model"),
        (lambda n_users, n_items: nn.Linear(2, 2), "must be a fairstream.Scorer, got Linear"),
    ],
)
def test_a_broken_model_is_told_what_is_wrong(model: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_model(model)


def test_the_sound_versions_of_the_broken_models_pass() -> None:
    check_model(Small)
    check_model(Window, loss="softmax")


def test_a_model_that_cannot_be_pickled_is_a_warning() -> None:
    class Local(Small):
        pass

    with pytest.warns(UserWarning, match="top level of a module"):
        check_model(Local)


# ── losses ───────────────────────────────────────────────────────────────────────────────


def bpr(scores: Tensor) -> Tensor:
    return -F.logsigmoid(scores[:, :1] - scores[:, 1:]).mean()


def _in_place(scores: Tensor) -> Tensor:
    value = bpr(scores)
    scores.data.clamp_(max=0.5)
    return value


def _over_all(scores: Tensor, positives: Tensor, weights: Tensor) -> Tensor:
    return bpr(scores) + 0 * scores.sum()


def _unweighted(scores: Tensor, positives: Tensor, weights: Tensor) -> Tensor:
    return F.cross_entropy(scores, positives)


_over_all.candidates = "all"  # type: ignore[attr-defined]
_unweighted.candidates = "all"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda scores: -F.logsigmoid(scores[:, 0] - scores[:, 1]), "must return one number"),
        (lambda scores: 0.5, "must return one number.*float"),
        (lambda scores: (scores[:, 1:] - scores[:, :1]).exp().mean(), "extreme scores is inf"),
        (lambda scores: bpr(scores.detach()), "not differentiable"),
        (lambda scores: bpr(scores) + 0 * scores.abs().sqrt().sum(), "gradient .* not finite"),
        (lambda scores: bpr(-scores), "does not fall"),
        (_in_place, "changes the scores"),
        (lambda scores: bpr(scores) * torch.rand(()), "another value the second time"),
        (lambda scores: bpr(scores[:, [0, 4]]), "failed with IndexError"),
        (_over_all, "−∞"),
        (_unweighted, "weight 0"),
    ],
)
def test_a_broken_loss_is_told_what_is_wrong(loss: Callable[[Tensor], Tensor], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_loss(loss)


def test_the_order_of_the_negatives_is_a_warning() -> None:
    def first_only(scores: Tensor) -> Tensor:
        return bpr(scores[:, :2])

    with pytest.warns(UserWarning, match="order of the negatives"):
        check_loss(first_only)


def gap(scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
    quality = torch.tanh(scores[:, 0] - scores[:, 1:].mean(dim=1))
    return quality[groups == 0].mean() - quality[groups == 1].mean()


def test_a_sound_fairness_loss_passes() -> None:
    check_fairness(gap)


@pytest.mark.parametrize(
    ("fairness", "sentence"),
    [
        (lambda scores, groups, signs: scores[:, 0], "must return one number"),
        (lambda scores, groups, signs: -gap(scores, groups, signs), "does not rise"),
        (lambda scores, groups, signs: gap(scores, groups.clamp(min=0), signs), "not known"),
        (
            lambda scores, groups, signs: (
                gap(scores, groups, signs) + sum(0 * scores[groups == g, 0].mean() for g in range(len(signs)))
            ),
            "a group does not occur",
        ),
        (lambda scores, groups, signs: gap(scores.exp(), groups, signs), "the fairness loss"),
    ],
)
def test_a_broken_fairness_loss_is_told_what_is_wrong(fairness: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_fairness(fairness)


# ── metrics ──────────────────────────────────────────────────────────────────────────────


def _hits_in_place(lists: Any, truth: Any) -> Any:
    lists.hits[0] = True
    return lists.hits.mean(axis=1)


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        (lambda lists, truth: lists.hits, r"one value a user, \(7,\), .* got \(7, 4\)"),
        (lambda lists, truth: lists.scores.mean(axis=1), "NaN or infinite.*shorter than k"),
        (_hits_in_place, "changes the arrays"),
        (lambda lists, truth: np.random.default_rng().random(len(lists.hits)), "second time"),
        (lambda lists, truth: float(lists.hits[0].mean()), "order of the users"),
        (lambda lists, truth: lists.hits.mean(axis=1) - lists.hits.mean(), "depends on the other users"),
        (lambda lists, truth: lists.hits[:, 1].astype(float), "at k = 1 failed with IndexError"),
        (lambda lists: 0.0, "failed with TypeError"),
    ],
)
def test_a_broken_metric_is_told_what_is_wrong(metric: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_metric(metric)


# ── strategies ───────────────────────────────────────────────────────────────────────────


def strategy_of(plan: Callable[[fs.Period], Any]) -> fs.Strategy:
    class Made(fs.Strategy):
        def plan(self, period: fs.Period) -> fs.Plan:
            return plan(period)

    return Made()


class KeepsCount(fs.Strategy):
    def __init__(self) -> None:
        self.n = 0

    def plan(self, period: fs.Period) -> fs.Plan:
        self.n += 1
        return fs.Plan(events=period.new, epochs=self.n)


def _remembers_in_place(period: fs.Period) -> fs.Plan:
    period.memory["t"] = period.t  # type: ignore[index]
    return fs.Plan.keep()


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("not a strategy", "strategy must be one of"),
        (strategy_of(lambda period: None), "must return a fairstream.Plan, got NoneType"),
        (strategy_of(lambda period: fs.Plan(events=np.array([0.0, 1.0]))), "whole numbers in ascending order"),
        (strategy_of(lambda period: fs.Plan(events=range(len(period.history) + 1))), "positions from 0 to"),
        (strategy_of(lambda period: fs.Plan(events=np.array([-1, 2]))), "positions from 0 to"),
        (strategy_of(lambda period: fs.Plan(events=np.array([2, 1]))), "ascending order"),
        (strategy_of(lambda period: fs.Plan(events=np.array([1, 1]))), "ascending order"),
        (strategy_of(lambda period: fs.Plan(events=range(0))), "learns nothing"),
        (
            strategy_of(lambda period: fs.Plan(events=range(np.random.default_rng().integers(1, 40)))),
            "another plan the second time",
        ),
        (KeepsCount(), "another plan the second time"),
        (strategy_of(_remembers_in_place), "changes period.memory"),
        (strategy_of(lambda period: fs.Plan.keep().remembering(seen={1, 2})), "JSON values"),
        (strategy_of(lambda period: fs.Plan.keep().remembering(seen=(1, 2))), "changes when it is written as JSON"),
        (strategy_of(lambda period: 1 / 0), "plan for period 1 failed with ZeroDivisionError"),
    ],
)
def test_a_broken_strategy_is_told_what_is_wrong(strategy: Any, sentence: str) -> None:
    with pytest.raises((AssertionError, fs.ConfigurationError), match=sentence):
        check_strategy(strategy)


def test_a_strategy_that_is_lost_by_a_checkpoint_is_told_so() -> None:
    class Lossy(fs.Strategy):
        """Plans by how often it was asked since it was made, which a checkpoint does not hold."""

        seen: dict[int, int] = {}  # noqa: RUF012 (shared on purpose, so that copies do not show it)

        def plan(self, period: fs.Period) -> fs.Plan:
            is_recommender = len(period.history) > 100
            n = self.seen.setdefault(period.t, 0)
            self.seen[period.t] += is_recommender
            return fs.Plan(events=period.new, epochs=1 + n)

    with pytest.raises(AssertionError, match="update after load differs"):
        check_strategy(Lossy())
