"""The training loop: what it visits, in which order, with which negatives, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import Groups, History
from fairstream.errors import DataError, ModelError
from fairstream.models import (
    NO_CONTEXT,
    Context,
    ContextBuilder,
    ItemTable,
    MFScorer,
    Scorer,
    UserTable,
    resolve_model,
)
from fairstream.objectives import Objective
from fairstream.randomness import Randomness
from fairstream.sampling import NegativeSampler
from fairstream.training import (
    Training,
    TrainingJob,
    TrainingReport,
    choose_engine,
    cut_batches,
    make_optimizer,
)
from fairstream.training import train as run_epochs
from fairstream.training.optimizers import grow_state
from support import Recorder, coded

N_USERS, N_ITEMS, BATCH = 12, 30, 8


class Interactions:
    """Random events: distinct pairs, and who is in which group."""

    def __init__(self, n: int = 60, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        pairs = rng.permutation(N_USERS * N_ITEMS)[:n].astype(np.int64)
        self.users, self.items = pairs // N_ITEMS, pairs % N_ITEMS
        self.groups = coded(np.arange(N_USERS) % 3)

    @property
    def history(self) -> History:
        return History.of(self.users, self.items)


class Trained:
    """A model with its optimizer, and all that decides how they are trained."""

    def __init__(
        self,
        factory: Callable[[int, int], Scorer],
        *,
        seed: int = 0,
        lambda_: float = 0.5,
        n: int = 2,
        mu: int = 3,
        **options: Any,
    ) -> None:
        self.hyper = Training(batch_size=BATCH, **options)
        self.objective = Objective(lambda_=lambda_, n=n, mu=mu)
        self.randomness = Randomness(seed)
        with self.randomness.seeded("weights", 0):
            self.model = factory(N_USERS, N_ITEMS)
        self.optimizer = make_optimizer(
            self.hyper.optimizer, self.model, learning_rate=self.hyper.learning_rate, l2=self.hyper.l2
        )

    def job(
        self, history: History, groups: Groups, *, events: Any = None, seen: History | None = None, repeats: bool
    ) -> TrainingJob:
        events = range(len(history)) if events is None else events
        excluded = (seen or history).seen
        sampler = NegativeSampler(excluded, history.users_at(events), n_items=self.model.n_items)
        batches = cut_batches(
            history, events, groups.codes, sampler, n_drawn=self.objective.n_drawn, size=self.hyper.batch_size
        )
        return TrainingJob(
            self.model,
            self.optimizer,
            self.objective,
            batches,
            sampler,
            tuple(groups.signs(len(groups.names))),
            ContextBuilder(self.model.history_length, history),
            same_batches_every_epoch=repeats,
        )

    def train(
        self,
        history: History,
        groups: Groups,
        *,
        epochs: int = 3,
        shuffled: bool = False,
        t: int = 0,
        on_epoch: Any = None,
        **options: Any,
    ) -> TrainingReport:
        job = self.job(history, groups, repeats=not shuffled, **options)
        engine = choose_engine("auto", job)(job)
        report = run_epochs(
            job,
            engine,
            n_interactions=len(options.get("events", range(len(history)))),
            t=t,
            epochs=epochs,
            randomness=self.randomness,
            learning_rate=self.hyper.learning_rate,
            on_epoch=on_epoch,
        )
        engine.finish(in_place=True)
        return report

    def grow(self, n_users: int, n_items: int, t: int) -> None:
        with self.randomness.seeded("growth", t):
            self.model.grow(n_users, n_items)
        grow_state(self.optimizer)


def train(trained: Trained, data: Interactions, **options: Any) -> TrainingReport:
    return trained.train(data.history, data.groups, **options)


def recorded(trained: Trained, data: Interactions, **options: Any) -> list[list[tuple[list[int], list[list[int]]]]]:
    """For each epoch its batches, as (users, candidates)."""
    report = train(trained, data, **options)
    assert isinstance(trained.model, Recorder)
    asked = [(users.tolist(), items.tolist()) for users, items in trained.model.asked]
    return [asked[at : at + report.n_batches] for at in range(0, len(asked), report.n_batches)]


def batches_of(users: Sequence[int], items: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    return [(list(users[at : at + BATCH]), list(items[at : at + BATCH])) for at in range(0, len(users), BATCH)]


def positives(epoch: list[tuple[list[int], list[list[int]]]]) -> list[tuple[list[int], list[int]]]:
    return [(users, [row[0] for row in candidates]) for users, candidates in epoch]


def negatives(epoch: list[tuple[list[int], list[list[int]]]]) -> list[list[int]]:
    return [row[1:] for _, candidates in epoch for row in candidates]


def weights(trained: Trained) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trained.model.parameters()])


# ── reproducibility ──────────────────────────────────────────────────────────────────────


@pytest.mark.few
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("name", ["mf", "ncf"])
def test_the_seed_decides_everything(name: str, optimizer: str, shuffled: bool) -> None:
    def weights_after(seed: int, global_seed: int) -> tuple[Tensor, TrainingReport]:
        torch.manual_seed(global_seed)
        trained = Trained(resolve_model(name, {"embedding_dim": 4}).build, seed=seed, optimizer=optimizer)
        report = train(trained, Interactions(), shuffled=shuffled)
        trained.grow(N_USERS + 3, N_ITEMS + 3, t=1)
        return weights(trained), report

    first, again, other = weights_after(0, 1), weights_after(0, 2), weights_after(1, 1)
    assert torch.equal(first[0], again[0])
    assert first[1] == again[1]
    assert not torch.equal(first[0], other[0])


class Forgetful(MFScorer):
    """A model that draws while it trains."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        return self.dropout(super().forward(users, items, context))


def test_the_seed_decides_what_a_model_draws_itself() -> None:
    results = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        trained = Trained(Forgetful)
        train(trained, Interactions())
        results.append(weights(trained))
    assert torch.equal(*results)


class Disturbed(Forgetful):
    """The same next to a thread that draws from PyTorch's global generator at every step."""

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        thread = Thread(target=torch.rand, args=(1,))
        thread.start()
        thread.join()
        return super().forward(users, items, context)


def test_draws_of_other_threads_do_not_change_a_model_with_dropout() -> None:
    results = []
    for kind in (Forgetful, Disturbed):
        trained = Trained(kind)
        train(trained, Interactions())
        results.append(weights(trained))
    assert torch.equal(*results)


def test_nobody_elses_draws_are_disturbed() -> None:
    before = torch.get_rng_state()
    trained = Trained(Recorder)
    train(trained, Interactions(), shuffled=True)
    trained.grow(N_USERS + 1, N_ITEMS + 1, t=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_period_draws_anew() -> None:
    data = Interactions()
    drawn = [negatives(recorded(Trained(Recorder), data, t=t, epochs=1)[0]) for t in (1, 2, 1)]
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2]


# ── what is visited ──────────────────────────────────────────────────────────────────────


def test_unshuffled_batches_are_chronological_and_keep_their_negatives() -> None:
    data = Interactions(n=60)
    epochs = recorded(Trained(Recorder), data, shuffled=False, epochs=3)
    expected = batches_of(data.users.tolist(), data.items.tolist())
    assert [len(users) for users, _ in expected] == [8] * 7 + [4]
    assert all(positives(epoch) == expected for epoch in epochs)
    assert len(epochs) == 3
    assert epochs[0] == epochs[1] == epochs[2]


def test_shuffling_permutes_the_batches_not_what_is_in_them() -> None:
    data = Interactions(n=60)
    epochs = recorded(Trained(Recorder), data, shuffled=True, epochs=3)
    expected = batches_of(data.users.tolist(), data.items.tolist())
    orders = [[expected.index(batch) for batch in positives(epoch)] for epoch in epochs]
    assert all(sorted(order) == list(range(len(expected))) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_shuffled_epochs_draw_fresh_negatives() -> None:
    epochs = recorded(Trained(Recorder), Interactions(n=6), shuffled=True, epochs=3)  # one batch: no order to tell
    assert positives(epochs[0]) == positives(epochs[1]) == positives(epochs[2])
    assert len({str(negatives(epoch)) for epoch in epochs}) == 3


@pytest.mark.few(3)
@pytest.mark.parametrize(("n", "mu"), [(1, 1), (2, 5), (5, 2)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_one_draw_of_max_n_mu_distinct_free_negatives_per_interaction(n: int, mu: int, shuffled: bool) -> None:
    data = Interactions()
    had = set(zip(data.users.tolist(), data.items.tolist(), strict=True))
    for epoch in recorded(Trained(Recorder, n=n, mu=mu), data, shuffled=shuffled):
        for users, candidates in epoch:
            for user, row in zip(users, candidates, strict=True):
                assert len(row) == len(set(row)) == 1 + max(n, mu)
                assert all((user, item) not in had and 0 <= item < N_ITEMS for item in row[1:])


def test_interactions_without_enough_free_items_are_left_out_and_counted() -> None:
    data = Interactions()
    crowded = np.array([3, 7])  # two users with 2 free items each, where 3 are drawn
    others = ~np.isin(data.users, crowded)
    pairs = np.array([(user, item) for user in crowded for item in range(N_ITEMS - 2)], dtype=np.int64)
    seen = data.history.after(pairs[:, 0], pairs[:, 1])
    n_left_out = int((~others).sum())
    assert n_left_out > 0
    trained = Trained(Recorder, n=2, mu=3)
    before = trained.model.get_parameter("user.weight")[crowded].detach().clone()
    report = train(trained, data, seen=seen, epochs=1)
    assert report.n_without_negatives == n_left_out
    assert report.n_interactions == len(data.users)
    assert isinstance(trained.model, Recorder)
    visited = [(users.tolist(), items[:, 0].tolist()) for users, items in trained.model.asked]
    assert visited == batches_of(data.users[others].tolist(), data.items[others].tolist())
    assert torch.equal(trained.model.get_parameter("user.weight")[crowded], before)


def test_with_nobody_left_to_learn_from_it_says_so_and_changes_nothing() -> None:
    users, items = np.repeat(np.arange(N_USERS), N_ITEMS), np.tile(np.arange(N_ITEMS), N_USERS)
    trained = Trained(Recorder)
    before = weights(trained)
    with pytest.raises(DataError, match="distinct negatives"):
        trained.train(History.of(users, items), coded([0] * N_USERS), epochs=2, shuffled=True)
    assert torch.equal(weights(trained), before)


# ── groups ───────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(-1, 3), min_size=N_USERS, max_size=N_USERS))
def test_batches_without_two_groups_are_counted(codes: list[int]) -> None:
    data = Interactions(n=40)
    data.groups = coded(codes)
    n_one_group = sum(
        len({codes[user] for user in users} - {-1}) < 2
        for users, _ in batches_of(data.users.tolist(), data.items.tolist())
    )
    report = train(Trained(Recorder), data, epochs=1)
    assert report.n_one_group_batches == n_one_group
    assert report.n_batches == 5


@pytest.mark.few(2)
@pytest.mark.parametrize("code", [-1, 0, 1, 7])
def test_one_group_alone_trains_on_the_recommendation_loss_alone(code: int) -> None:
    data = Interactions()
    data.groups = coded([code] * N_USERS)
    fair, unfair = Trained(Recorder, lambda_=4.0), Trained(Recorder, lambda_=0.0)
    assert train(fair, data) == train(unfair, data)
    assert torch.equal(weights(fair), weights(unfair))


@pytest.mark.few(2)
@pytest.mark.parametrize("codes", [[0, 1], [1, 2], [0, 2, -1], [2, 0, 1]])
def test_two_groups_together_feel_the_fairness_loss(codes: list[int]) -> None:
    data = Interactions()
    data.groups = coded(np.resize(codes, N_USERS))
    fair, unfair = Trained(Recorder, lambda_=4.0), Trained(Recorder, lambda_=0.0)
    train(fair, data)
    train(unfair, data)
    assert not torch.equal(weights(fair), weights(unfair))


@pytest.mark.slow
def test_the_fairness_loss_pulls_the_advantaged_group_down() -> None:
    data = Interactions()
    below = []
    for advantaged in range(3):
        data.groups = coded(np.arange(N_USERS) % 3).with_advantaged(f"g{advantaged}")
        trained = Trained(Recorder, lambda_=50.0, learning_rate=0.05, l2=0.0)
        train(trained, data, epochs=10)
        users, candidates = torch.from_numpy(data.users), torch.from_numpy(data.items)[:, None]
        scores = trained.model(users, candidates, NO_CONTEXT)[:, 0]
        below.append(int(torch.stack([scores[users % 3 == code].mean() for code in range(3)]).argmin()))
    assert below == [0, 1, 2]


# ── the loss ─────────────────────────────────────────────────────────────────────────────


def test_the_reported_loss_is_the_mean_over_the_batches_of_the_last_epoch() -> None:
    data = Interactions(n=20)
    trained = Trained(Recorder, lambda_=0.5, learning_rate=1e-30)  # a model that stands still can be asked again
    loss = train(trained, data, epochs=1).loss
    assert isinstance(trained.model, Recorder)
    losses, signs = [], torch.tensor([1.0, -1.0, -1.0])
    for users, candidates in list(trained.model.asked):
        groups = torch.from_numpy(data.groups.codes)[users]
        with torch.no_grad():
            scores = trained.model(users, candidates, NO_CONTEXT)
            losses.append(float(trained.objective(scores, groups, signs, has_two_groups=len(groups.unique()) > 1)))
    assert len(losses) == 3
    assert loss == pytest.approx(sum(losses) / len(losses), rel=1e-6)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", ["row", "dense"])
def test_training_lowers_the_loss(optimizer: str) -> None:
    trained = Trained(Recorder, optimizer=optimizer, learning_rate=0.05, l2=0.0)
    first = train(trained, Interactions(), epochs=1).loss
    assert train(trained, Interactions(), epochs=30).loss < 0.7 * first


def test_epochs_are_told_one_by_one() -> None:
    told: list[tuple[int, int]] = []
    train(Trained(Recorder), Interactions(), epochs=3, on_epoch=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


class Broken(Scorer):
    """Loses its mind with the second batch."""

    def __init__(self, n_users: int, n_items: int, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.user, self.item, self.how = UserTable(n_users, 1), ItemTable(n_items, 1), how
        self.n_calls = 0

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        self.n_calls += 1
        scores = self.user(users) * self.item(items).squeeze(-1)
        return scores if self.n_calls == 1 else self.how(scores)


@pytest.mark.parametrize(
    ("loss", "how"),
    [
        ("nan", lambda scores: scores * float("nan")),
        ("inf", lambda scores: scores.sign() * 3e38),  # finite scores, but not their differences
    ],
)
def test_a_training_that_diverges_is_an_error(loss: str, how: Callable[[Tensor], Tensor]) -> None:
    trained = Trained(lambda n_users, n_items: Broken(n_users, n_items, how), lambda_=0.0)
    sentence = rf"diverged: the loss of epoch 1 is {loss}; lower learning_rate \(0.001\) or fairness_weight"
    with pytest.raises(ModelError, match=sentence):
        train(trained, Interactions(), epochs=5)


# ── growth ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("optimizer", ["row", "dense"])
def test_a_grown_model_learns_newcomers(optimizer: str) -> None:
    trained, data = Trained(Recorder, optimizer=optimizer), Interactions()
    train(trained, data)
    before = weights(trained)
    trained.grow(N_USERS + 1, N_ITEMS + 4, t=1)
    assert torch.equal(trained.model.get_parameter("user.weight")[:N_USERS].flatten(), before[: N_USERS * 4])
    grown = trained.model.get_parameter("item.weight").detach().clone()
    history = data.history.after(np.full(4, N_USERS), np.arange(N_ITEMS, N_ITEMS + 4))
    new = range(len(data.users), len(history))
    report = trained.train(history, coded([0] * (N_USERS + 1)), events=new, t=1, epochs=1)
    assert report.n_interactions == 4
    assert bool((trained.model.get_parameter("item.weight") != grown)[N_ITEMS:].all())


def test_a_model_with_scores_of_another_shape_is_told_apart_from_divergence() -> None:
    class OneColumn(MFScorer):
        def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
            return super().forward(users, items, context)[:, :1]

    with pytest.raises(ModelError, match=r"one score for each candidate: expected the shape \(8, 4\), got \(8, 1\)"):
        train(Trained(OneColumn), Interactions())


class Reader(MFScorer):
    """Records the histories that it is given."""

    history_length = 3

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)
        self.given: list[tuple[int, int, list[int]]] = []

    def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
        assert context.history is not None
        self.given += zip(users.tolist(), items[:, 0].tolist(), context.history.tolist(), strict=True)
        return super().forward(users, items, context)


def test_training_shows_what_was_known_before_each_event_and_nothing_later() -> None:
    data = Interactions()
    trained = Trained(Reader)
    events = np.arange(20, 55)
    trained.train(data.history, data.groups, events=events, shuffled=True, epochs=1)
    model = trained.model
    assert isinstance(model, Reader)
    assert len(model.given) == len(events)
    at = {(int(user), int(item)): place for place, (user, item) in enumerate(zip(data.users, data.items, strict=True))}
    for user, item, history in model.given:
        earlier = data.items[: at[user, item]][data.users[: at[user, item]] == user].tolist()[-3:]
        assert history == [-1] * (3 - len(earlier)) + earlier


def test_a_model_that_returns_no_tensor_is_one_sentence() -> None:
    class Nothing(MFScorer):
        def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
            return None  # type: ignore[return-value]

    with pytest.raises(ModelError, match=r"one score for each candidate: expected the shape \(8, 4\), got NoneType"):
        train(Trained(Nothing), Interactions())


def test_a_loss_without_gradients_is_one_sentence() -> None:
    class Detached(MFScorer):
        def forward(self, users: Tensor, items: Tensor, context: Context = NO_CONTEXT) -> Tensor:
            return super().forward(users, items, context).detach()

    with pytest.raises(ModelError, match="the loss does not depend on the model's parameters"):
        train(Trained(Detached), Interactions())
