"""The blend: what it weighs, when, and by which evidence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import fairstream as fs
from fairstream.data import History
from fairstream.models import TASKS, BlendScorer, Context, ContextBuilder, ItemItemScorer, SASRec, closed_forms
from fairstream.models.blend import MEMORY, PARTS, _CalibrationData, _candidates, _Requests, _requests
from fairstream.recommender.state import NewEvents
from support import make_recommender

N_ITEMS = 40
QUICK: dict[str, Any] = {"pretrain_epochs": 3, "update_epochs": 1, "embedding_dim": 8, "device": "cpu"}


@pytest.fixture(scope="module")
def stream() -> fs.SyntheticStream:
    return fs.synthetic_stream(n_users=150, n_items=N_ITEMS, n_events=3000, seed=0)


def read(stream: fs.SyntheticStream, start: int, length: int) -> fs.EventLog:
    return fs.read_events(
        stream.events.slice(start, length), users=stream.users, group="community", advantaged="majority"
    )


@pytest.fixture(scope="module")
def fitted(stream: fs.SyntheticStream) -> fs.FairRecommender:
    return make_recommender("blend", **QUICK).fit(read(stream, 0, 2000))


def test_a_score_is_the_weighted_sum_of_what_the_parts_say(fitted: fs.FairRecommender) -> None:
    model = fitted.model
    assert isinstance(model, BlendScorer)
    model = copy.deepcopy(model)
    torch.manual_seed(0)
    model.weights = torch.rand_like(model.weights)
    users, history = torch.arange(3), torch.tensor([[-1, -1, -1], [5, 1, 2], [-1, 7, 9]])
    n_events, items = torch.tensor([0, 30, 2]), torch.arange(model.n_items).expand(3, -1)
    for task in TASKS:
        context = Context(F.pad(history, (50, 0), value=-1), n_events, task=task)
        by_item, by_order = model.item_item(users, items, context), model.transitions(users, items, context)
        said = [
            model.sequence(users, items, Context(F.pad(history, (47, 0), value=-1), task=task)),
            10 * by_item,
            torch.log(by_item.clamp(min=0) + 1e-2),
            10 * by_order,
            torch.log(by_order + 1e-2),
            *(torch.log(part.popularity + 1).expand(3, -1) for part in model.popular),
        ]
        ranges = [0, 4, 2]
        weights = model.weights[TASKS.index(task)]
        for user in range(3):
            expected = sum(weights[ranges[user], p] * said[p][user] for p in range(len(PARTS)))
            assert torch.allclose(model(users, items, context)[user], expected.float(), atol=1e-4)
        block = model.block_scorer(users, context)
        assert torch.allclose(block(5, 20), model(users, items, context)[:, 5:20], atol=1e-5)


def test_the_weights_that_made_the_data_are_found() -> None:
    """Requests were answered by chance in proportion to e^(x · w)."""
    rng, n = np.random.default_rng(0), 3000
    true = torch.tensor([0.9, 0.0, 0.0, 0.4, 0.0, 0.6, 0.0, 0.0, 0.0, 0.0])
    features = torch.tensor(rng.normal(size=(n, N_ITEMS, len(PARTS))), dtype=torch.float32)
    seen = torch.tensor(rng.random((n, N_ITEMS)) < 0.3)
    shift = torch.zeros(n, N_ITEMS).masked_fill(seen, -torch.inf)
    shares = torch.softmax(features @ true + shift, dim=1).double().numpy()
    items = np.array([rng.choice(N_ITEMS, p=share / share.sum()) for share in shares])
    rows = np.arange(n)
    known = _CalibrationData(features, shift, _Requests(rows, rows, np.ones(n), rows, items), items)
    assert torch.allclose(known.fit_weights(torch.full((len(PARTS),), 0.2)), true, atol=0.12)


def evidence_of(
    rng: np.random.Generator, features: torch.Tensor
) -> tuple[_CalibrationData, Callable[[Any, Any], float]]:
    """Some wanted items, one or more a request, and the loss by its definition."""
    n, n_items = features.shape[:2]
    is_wanted = rng.random((n, n_items)) < 0.2
    is_wanted[np.arange(n), rng.integers(0, n_items, n)] = True
    seen = (rng.random((n, n_items)) < 0.3) & ~is_wanted
    row, items = np.nonzero(is_wanted)
    importance = rng.uniform(0.2, 1.0, n)
    requests = _Requests(np.arange(n), np.arange(n), importance, row, items)
    evidence = _CalibrationData(
        features, torch.zeros(n, n_items).masked_fill(torch.from_numpy(seen), -torch.inf), requests, items
    )

    def loss(weights: Any, prior: Any) -> float:
        scores = np.where(seen, -np.inf, features.double().numpy() @ np.asarray(weights, dtype=np.float64))
        log_share = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        of_request = np.array([log_share[at, is_wanted[at]].mean() for at in range(n)])
        return float(-(importance * of_request).sum() / importance.sum() + 0.01 * ((weights - prior) ** 2).sum())

    return evidence, loss


@given(seed=st.integers(0, 2**32))
def test_the_loss_of_weights_is_its_definition_and_the_gradient_its_slope(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = torch.tensor(rng.normal(size=(6, 9, len(PARTS))), dtype=torch.float32)
    evidence, by_definition = evidence_of(rng, features)
    weights, prior = rng.uniform(0, 1, len(PARTS)), rng.uniform(-3, 3, len(PARTS)).astype(np.float32)
    value, gradient = evidence.loss(weights, torch.from_numpy(prior))
    assert value == pytest.approx(by_definition(weights, prior), abs=1e-5)
    step = 1e-5 * np.eye(len(PARTS))
    slopes = [(by_definition(weights + d, prior) - by_definition(weights - d, prior)) / 2e-5 for d in step]
    np.testing.assert_allclose(gradient, slopes, atol=1e-4)


@given(seed=st.integers(0, 2**32))
def test_no_other_weights_are_more_likely(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = torch.tensor(rng.normal(size=(6, 9, len(PARTS))), dtype=torch.float32)
    evidence, loss = evidence_of(rng, features)
    prior = rng.uniform(0, 1, len(PARTS)).astype(np.float32)
    found = evidence.fit_weights(torch.from_numpy(prior)).double().numpy()
    assert (found >= 0).all()
    for size in (0.03, 0.3, 3.0):
        for other in np.maximum(0, found + size * rng.normal(size=(20, len(PARTS)))):
            assert loss(other, prior) > loss(found, prior) - 1e-5


def test_where_the_parts_say_nothing_the_weights_are_the_prior() -> None:
    """The same of every item: any weights would be as likely."""
    rng = np.random.default_rng(0)
    evidence, _ = evidence_of(rng, torch.tensor(rng.normal(size=(5, 1, len(PARTS)))).float().expand(-1, 9, -1))
    prior = torch.rand(len(PARTS), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(evidence.fit_weights(prior), prior, atol=1e-3, rtol=0)


@pytest.mark.few(2)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n_candidates", [8, 10_000])
def test_what_a_user_has_had_is_no_alternative_to_what_was_wanted(
    task: Any, n_candidates: int, fitted: fs.FairRecommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, model = fitted.state, copy.deepcopy(fitted.model)
    assert isinstance(model, BlendScorer)
    rng, n_items = np.random.default_rng(0), state.history.n_items
    history = state.history.after(rng.integers(0, 160, 200), rng.integers(0, n_items + 5, 200))
    model.grow(history.n_users, history.n_items)
    requests = _requests(task, history, np.arange(len(state.history), len(history)), np.arange(n_items))
    monkeypatch.setattr("fairstream.models.blend.MAX_CANDIDATES", n_candidates)
    monkeypatch.setattr("fairstream.models.blend._SCORES_AT_ONCE", 10 * n_items)  # in many pieces
    known = ContextBuilder(model.history_length, state.history, observed=history, task=task)
    with torch.no_grad():
        shift = model._calibration_data(requests, known)._shift
    candidates, _ = _candidates(requests.items, np.arange(n_items))
    for row, (user, moment) in enumerate(zip(requests.users, requests.before, strict=True)):
        had = history.items[:moment][history.users[:moment] == user]
        assert candidates[shift[row].isneginf()].tolist() == sorted(set(had) & set(candidates)), row


@pytest.mark.slow
def test_a_sample_of_the_catalogue_gives_nearly_the_same_weights(
    stream: fs.SyntheticStream, fitted: fs.FairRecommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = []
    for n in (10_000, 20):
        monkeypatch.setattr("fairstream.models.blend.MAX_CANDIDATES", n)
        rec = copy.deepcopy(fitted).update(stream.events.slice(2000, 500), users=stream.users)
        learned.append(rec.model.weights)
    assert torch.allclose(*learned, atol=0.25)


def test_those_that_stand_for_others_count_as_many_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairstream.models.blend.MAX_CANDIDATES", 10)
    candidates, offset = _candidates(np.array([3, 7, 3]), np.arange(100))
    assert {3, 7} <= set(candidates.tolist())
    assert np.exp(offset).sum() == pytest.approx(100)
    assert (offset[np.isin(candidates, [3, 7])] == 0).all()


@pytest.mark.parametrize("task", TASKS)
def test_requests_are_made_before_what_they_are_to_tell(task: Any) -> None:
    rng = np.random.default_rng(0)
    before = History.of(rng.integers(0, 20, 100), rng.integers(0, N_ITEMS, 100))
    history = before.after(rng.integers(0, 25, 60), rng.integers(0, N_ITEMS + 5, 60))
    requests = _requests(task, history, np.arange(100, 160), np.arange(before.n_items))
    assert (requests.items < before.n_items).all()
    assert np.setdiff1d(requests.users, before.users).size
    users, items = history.users, history.items
    wanted = set()
    for row, item in zip(requests.row.tolist(), requests.items.tolist(), strict=True):
        user, moment = int(requests.users[row]), int(requests.before[row])
        assert moment == 100 if task == "next" else items[moment] == item
        assert user == users[moment] if task == "event" else user in users[moment:]
        wanted.add((user, item))
    assert wanted == {
        (int(u), int(i)) for at, (u, i) in enumerate(zip(users, items, strict=True)) if at >= 100 and i < before.n_items
    }


def test_a_user_counts_once_or_by_the_users_weight_however_many_requests_there_are() -> None:
    history = History.of(np.array([0, 0, 0, 1, 2]), np.arange(5))
    requests = _requests("event", history, np.arange(5), np.arange(5))
    for weights, expected in ((None, [1, 1, 1]), (np.array([2.0, 0.5, 3.0]), [2, 0.5, 3])):
        chosen = requests.where(np.ones(5, np.bool_), weights)
        assert np.bincount(chosen.users, chosen.weights) == pytest.approx(expected)


def test_fit_and_every_update_learn_the_weights(stream: fs.SyntheticStream, fitted: fs.FairRecommender) -> None:
    rec = copy.deepcopy(fitted)
    model = rec.model
    assert isinstance(model, BlendScorer)
    guess, before = BlendScorer(0, N_ITEMS).weights, model.n_periods.clone()
    assert before.any()
    assert not torch.equal(model.weights, guess)
    rec.update(stream.events.slice(2000, 500), users=stream.users)
    after = rec.model
    assert isinstance(after, BlendScorer)
    assert (after.n_periods > before).any()
    assert not torch.equal(after.weights, model.weights)
    assert (after.weights >= 0).all()
    assert not any("guess" in note for rec in (fitted, rec) for note in rec.last_update.notes)
    assert torch.equal(model.n_periods, before)  # the state before is as it was


def test_events_observed_before_an_update_give_the_same_weights_as_without(fitted: fs.FairRecommender) -> None:
    """An observed item that is not learned yet is in no list, so it says nothing about the weights."""
    rng, at_once = np.random.default_rng(0), copy.deepcopy(fitted)
    users, items = rng.integers(0, 150, 200), rng.integers(0, 2 * N_ITEMS, 200)
    events = pa.table({"user_id": users, "item_id": items, "time": 1e6 + np.arange(200)})
    observed = copy.deepcopy(fitted).observe(events.slice(0, 100)).update(events.slice(100))
    at_once.update(events)
    torch.testing.assert_close(observed.model.weights, at_once.model.weights, atol=1e-3, rtol=0)


@pytest.mark.slow
def test_fit_learns_the_weights_from_how_the_past_predicts_the_last_events(stream: fs.SyntheticStream) -> None:
    """As if the last 5 % had been a period of their own; but they are none."""
    options = {**QUICK, "fairness_weight": 0}
    whole = make_recommender("blend", **options).fit(read(stream, 0, 2000))
    parts = make_recommender("blend", **options).fit(read(stream, 0, 1900))
    history = parts.state.history
    at_once = parts._trainer._fit_all(history, events_of(parts), None, 0).commit(in_place=True)[0]
    parts._states.replace(at_once)
    parts.update(stream.events.slice(1900, 100), users=stream.users)
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(value, parts.model.state_dict()[name], msg=name)
    assert (whole.state.t, whole.state.history.ends, len(whole.state.unlearned)) == (0, (2000,), 0)
    assert whole.last_update.step == "retrain"


def events_of(rec: fs.FairRecommender) -> NewEvents:
    state = rec.state
    return NewEvents(state.history.users, state.history.items, state.user_ids, state.item_ids, state.groups)


def test_progress_counts_the_epochs_of_both_steps(stream: fs.SyntheticStream) -> None:
    seen: list[tuple[int, int]] = []
    make_recommender("blend", **QUICK).fit(read(stream, 0, 2000), on_epoch=lambda *epoch: seen.append(epoch))
    assert seen == [(done, 4) for done in range(1, 5)]


@pytest.mark.slow
def test_where_order_decides_a_list_for_the_period_is_better_than_without_order() -> None:
    """Each item leads to the next one; the guess gives the sequence model a weight of 0.1 in such lists."""
    rng, n_users, n_items = np.random.default_rng(0), 200, 300
    at, rows = rng.integers(0, n_items, n_users), []
    for _ in range(30):
        at = np.where(rng.random(n_users) < 0.6, at + 1, rng.integers(0, n_items, n_users)) % n_items
        rows += [(user, int(at[user])) for user in range(n_users)]
    users, items = zip(*rows, strict=True)
    events = pa.table({"user": users, "item": items, "time": range(len(rows))})
    quality = {
        model: make_recommender(model, pretrain_epochs=epochs, device="cpu")
        .fit(events.slice(0, 20 * n_users))
        .evaluate(events.slice(20 * n_users, 3 * n_users), n_resamples=0)["ndcg@20"]
        .mean
        for model, epochs in (("blend", 8), ("item-item", None))
    }
    assert quality["blend"] > 1.6 * quality["item-item"]  # 1.4 with the guess, 2.0 with learned weights


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3], ids=["tastes alone", "partners follow"])
def test_none_of_its_parts_is_better_alone(share: float) -> None:
    """A user's events are of one taste, some items more often than others, or the partner of the user's last item."""
    rng, n_users, n_items, n_tastes = np.random.default_rng(0), 400, 240, 8
    taste, partner = rng.integers(n_tastes, size=n_users), rng.permutation(n_items)
    at, rows = taste, list[tuple[int, int]]()
    for _ in range(30):
        liked = (taste + n_tastes * (rng.geometric(0.1, n_users) - 1)) % n_items
        at = np.where(rng.random(n_users) < share, partner[at], liked)
        rows += enumerate(at.tolist())
    users, items = zip(*rows, strict=True)
    events = pa.table({"user": users, "item": items, "time": range(len(rows))})
    quality: dict[str, float | None] = {}
    for model in ("blend", "sasrec", "transitions", "item-item", "popularity", "recent-popularity"):
        epochs = {"pretrain_epochs": 8} if model in ("blend", "sasrec") else {}
        rec = make_recommender(model, device="cpu", **epochs).fit(events.slice(0, 24 * n_users))
        later = events.slice(24 * n_users)
        quality[model] = rec.evaluate(later, task="event", n_resamples=0)["ndcg@20"].mean
    assert quality.pop("blend") > max(quality.values()) - 0.005, quality


@pytest.mark.few(2)  # the first and the last: before and after older periods fade
@pytest.mark.parametrize("n_before", [0, 1, 2, MEMORY - 1, MEMORY, 5 * MEMORY])
def test_every_period_counts_the_same_until_older_ones_fade(
    n_before: int, stream: fs.SyntheticStream, fitted: fs.FairRecommender
) -> None:
    """`learned` is what the new period alone says."""
    state = fitted.state
    events = read(stream, 0, 2500)
    history = state.history.after(events.users[2000:], events.items[2000:])
    previous, model = copy.deepcopy(fitted.model), copy.deepcopy(fitted.model)
    assert isinstance(previous, BlendScorer)
    assert isinstance(model, BlendScorer)
    contexts = ContextBuilder(model.history_length, state.history)
    previous.grow(history.n_users, history.n_items)
    previous.n_periods = torch.zeros_like(previous.n_periods)
    model.calibrate_from(previous, history, np.arange(2000, 2500), contexts)
    learned, is_learned = model.weights, model.n_periods > 0
    previous.n_periods = torch.full_like(previous.n_periods, n_before)
    model.calibrate_from(previous, history, np.arange(2000, 2500), contexts)
    share = is_learned.float()[..., None] / min(n_before + 1, MEMORY)
    torch.testing.assert_close(model.weights, (1 - share) * previous.weights + share * learned)
    assert is_learned.any()
    assert torch.equal(model.n_periods, n_before + is_learned.long())


def test_longer_histories_than_any_so_far_have_the_weights_of_the_longest(fitted: fs.FairRecommender) -> None:
    """A user's twentieth event is no reason to return to the guess."""
    state, rng = fitted.state, np.random.default_rng(0)
    model, previous = copy.deepcopy(fitted.model), copy.deepcopy(fitted.model)
    assert isinstance(model, BlendScorer)
    assert isinstance(previous, BlendScorer)
    guess = BlendScorer(0, N_ITEMS).weights
    previous.weights, previous.n_periods = guess, torch.zeros_like(previous.n_periods)
    n_events = np.bincount(state.history.users, minlength=state.history.n_users)
    users = np.flatnonzero((n_events >= 5) & (n_events < 20))
    history = state.history.after(users, rng.integers(0, state.history.n_items, len(users)))
    new, contexts = np.arange(len(state.history), len(history)), ContextBuilder(model.history_length, state.history)
    model.calibrate_from(previous, history, new, contexts)
    assert model.n_periods.tolist() == [[0, 0, 0, 1, 0]] * len(TASKS)
    assert torch.equal(model.weights[:, :3], guess[:, :3])
    assert not torch.equal(model.weights[:, 3], guess[:, 3])
    assert torch.equal(model.weights[:, 4], model.weights[:, 3])


def test_the_weights_for_the_next_event_depend_on_the_pause_before_it() -> None:
    model = BlendScorer(0, N_ITEMS, with_times=True)
    model.weights = torch.arange(13.0)[:, None] + 100 * torch.arange(2.0)[:, None, None]
    day = 24 * 60
    n_events = torch.tensor([0, 1, 1, 1, 1, 4, 19, 20, 20])
    last, request = torch.tensor([[-1, 0, 0, 0, -1, 0, 0, 0, 9], [5, 59, 60, 14 * day, 9, 7 * day, 1, 14 * day, -1]])
    times = torch.stack([torch.full_like(last, -1), last, request], dim=1)
    context = Context(torch.zeros(9, 2, dtype=torch.int64), n_events, times)
    assert model._weights_of(context).squeeze(1).tolist() == [0, 1, 2, 3, 1, 5, 7, 12, 10]
    of_period = model._weights_of(replace(context, task="next"))
    assert of_period.squeeze(1).tolist() == [100, 101, 101, 101, 101, 104, 107, 110, 110]
    without_times = BlendScorer(0, N_ITEMS)
    without_times.weights = torch.arange(5.0)[:, None] + torch.zeros(2, 1, 1)
    assert without_times._weights_of(replace(context, times=None)).squeeze(1).tolist() == [0, 1, 1, 1, 1, 2, 3, 4, 4]


@pytest.mark.slow
def test_an_update_learns_which_part_tells_what_follows_a_pause() -> None:
    """Within a visit the next item follows the last one; after a pause it is one of the popular."""
    rng, n_users, length, n_items = np.random.default_rng(0), 100, 24, 200
    is_pause = rng.random((n_users, length)) < 0.3
    items = 5 * rng.integers(0, n_items // 5, (n_users, length))
    for at in range(1, length):
        items[:, at] = np.where(is_pause[:, at], items[:, at], (items[:, at - 1] + 1) % n_items)
    minutes = np.cumsum(np.where(is_pause, 3 * 24 * 60, 2), axis=1) + rng.integers(0, 2**18, (n_users, 1))
    order = np.argsort(minutes, axis=None)
    users, seconds = np.repeat(np.arange(n_users), length), 60.0 * (28_000_000 + minutes.ravel())
    table = pa.table({"user_id": users[order], "item_id": items.ravel()[order], "time": seconds[order]})
    rec = fs.FairRecommender(training=fs.Training(pretrain_epochs=1)).fit(table.slice(0, 1500))
    weights = rec.update(table.slice(1500)).model.weights[0]
    transitions, popularity = PARTS.index("transitions"), slice(PARTS.index("popularity"), None)
    within, after = weights[7], weights[8]  # a visit goes on, or begins after days; of 5 to 19 events
    assert within[transitions] > 2 * after[transitions]
    assert within[popularity].sum() < after[popularity].sum() / 2


@pytest.mark.slow
def test_users_count_as_much_as_their_weights_say(stream: fs.SyntheticStream, fitted: fs.FairRecommender) -> None:
    """Users that count a million times decide alone; those that count nothing might as well not be there."""
    events, state = read(stream, 0, 2500), fitted.state
    history = state.history.after(events.users[2000:], events.items[2000:])
    contexts, learned = ContextBuilder(fitted.model.history_length, state.history), []
    is_first = np.arange(history.n_users) % 2 == 0
    for weights in (None, np.where(is_first, 1e6, 1.0), np.where(is_first, 1.0, 0.0), np.full(history.n_users, 3.0)):
        previous, model = copy.deepcopy(fitted.model), copy.deepcopy(fitted.model)
        assert isinstance(previous, BlendScorer)
        assert isinstance(model, BlendScorer)
        previous.grow(history.n_users, history.n_items)
        model.calibrate_from(previous, history, np.arange(2000, 2500), contexts, weights)
        learned.append(model.weights)
    moved = (learned[0] - learned[1]).abs().mean()
    assert moved > 0.01
    for ours, theirs in ((1, 2), (0, 3)):  # alike up to where the search for the most likely weights ends
        assert (learned[ours] - learned[theirs]).abs().mean() < moved / 5


@pytest.mark.slow
def test_retraining_takes_the_weights_over(stream: fs.SyntheticStream) -> None:
    learned = []
    for strategy in ("fine-tune", "retrain"):
        rec = make_recommender("blend", strategy=strategy, **QUICK).fit(read(stream, 0, 2000))
        rec.update(stream.events.slice(2000, 500), users=stream.users)
        learned.append(rec.model.weights)
    assert torch.equal(*learned)  # what the same model in service showed


def test_what_comes_later_does_not_reach_the_weights(stream: fs.SyntheticStream, fitted: fs.FairRecommender) -> None:
    """What the parts say to a request rests on the events before it alone."""
    state = fitted.state
    history = state.history.after(np.array([0, 1, 2]), np.array([5, 6, 7]))
    changed = state.history.after(np.array([0, 1, 2]), np.array([5, 6, 8]))
    model = state.model
    assert isinstance(model, BlendScorer)
    scores = []
    for known in (history, changed):
        context = (
            ContextBuilder(model.history_length, state.history)
            .observing(known)
            .at(np.array([0, 1]), np.array([2000, 2001]))
        )
        scores.append(model.score_range(torch.arange(2), 0, state.history.n_items, context).detach())
    assert torch.equal(*scores)


def test_updates_and_forgetting_reach_the_closed_forms(stream: fs.SyntheticStream, fitted: fs.FairRecommender) -> None:
    rec = copy.deepcopy(fitted)
    rec.update(stream.events.slice(2000, 500), users=stream.users)
    rec.forget(stream.events["user_id"][:3].to_pylist())
    history = rec.state.history
    fresh = BlendScorer(0, history.n_items)
    for name, part in closed_forms(fresh).items():
        part.learn(history, range(len(history)))
        for key, value in part.named_buffers():
            assert torch.allclose(value, dict(closed_forms(rec.model)[name].named_buffers())[key], atol=1e-5), (
                name,
                key,
            )


def test_a_list_for_the_period_is_another_than_for_the_next_event(
    stream: fs.SyntheticStream, fitted: fs.FairRecommender
) -> None:
    users = stream.events["user_id"][:20]
    assert not fitted.recommend(users, k=10).equals(fitted.recommend(users, k=10, task="event"))
    with pytest.raises(fs.ConfigurationError, match="task must be one of event, next"):
        fitted.recommend(users, task="someday")


# ── less than it would like to have ──────────────────────────────────────────────────────


def test_with_too_few_events_it_recommends_by_a_guess_and_says_so(stream: fs.SyntheticStream, tmp_path: Path) -> None:
    fitted = make_recommender("blend", **QUICK).fit(read(stream, 0, 300))
    fitted.save(tmp_path)
    items = fitted.state.item_ids.ids.to_pylist()
    for rec in (fitted, fs.load(tmp_path)):
        assert any("they are a guess" in note for note in rec.model.notes)
        for task in TASKS:
            table = rec.recommend(histories=[[], items[:1], items[:8]], k=5, task=task)
            assert table["source"].to_pylist() == ["model"] * 15
            recent = np.argsort(-rec.state.history.recent_popularity, kind="stable")
            assert table["item_id"].to_pylist()[:5] == [items[row] for row in recent[:5]]
            assert np.isfinite(table["score"].to_numpy()).all()
    assert fitted.notes == fitted.last_update.notes == fitted.model.notes


def test_a_period_too_small_to_learn_from_leaves_the_weights(
    stream: fs.SyntheticStream, fitted: fs.FairRecommender
) -> None:
    rec = copy.deepcopy(fitted).update(stream.events.slice(2000, 5), users=stream.users)
    assert torch.equal(rec.model.weights, fitted.model.weights)
    assert torch.equal(rec.model.n_periods, fitted.model.n_periods)


class SmallBlend(BlendScorer):
    """Its item–item part holds 15 items."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, sequence=SASRec(embedding_dim=8))
        self.item_item = ItemItemScorer(n_users, n_items, max_items=15)


@pytest.mark.slow
def test_a_catalogue_too_large_for_item_item_is_noted_and_all_items_are_ranked(stream: fs.SyntheticStream) -> None:
    quick = {name: value for name, value in QUICK.items() if name != "embedding_dim"}
    rec = make_recommender(SmallBlend, **quick).fit(read(stream, 0, 2000))
    for is_updated in (False, True):
        if is_updated:
            rec.update(stream.events.slice(2000, 500), users=stream.users)
        items = rec.state.item_ids.ids.to_pylist()
        assert f"item-item knows the 15 most popular of {len(items)} items; all others score 0" in rec.notes
        found = rec.recommend(histories=[items[:1]], k=len(items))["item_id"].to_pylist()
        assert sorted(found) == sorted(items[1:])
    assert rec.model.n_periods.any()


def test_a_newcomers_first_event_is_answered_by_the_blends_own_weights(
    stream: fs.SyntheticStream, fitted: fs.FairRecommender
) -> None:
    later = stream.events.slice(2000)
    rec = copy.deepcopy(fitted)
    model = rec.model
    assert isinstance(model, BlendScorer)
    values = []
    for sign in (1.0, -1.0):  # the most popular items first, then the least popular ones
        model.weights[:, 0] *= sign
        result = rec.evaluate(later, users=stream.users, task="event", min_group_size=1, n_resamples=0)
        values.append(result.slices["history_0"]["ndcg@20"].mean)
    assert values[0] > 2 * values[1]


def test_where_nobody_in_the_tail_has_items_left_to_learn_from_it_is_fitted_at_once() -> None:
    """Everybody at the end has had every item, so there are no negatives to train on."""
    rows = [(user, item) for user in range(40) for item in range(user % 12 + 1)]
    rows.sort(key=lambda row: row[0] % 12)  # whoever has had everything comes last
    users, items = zip(*rows, strict=True)
    rec = make_recommender("blend", **QUICK).fit(pa.table({"user": users, "item": items, "time": range(len(rows))}))
    assert len(rec.state.unlearned) == 0
    assert rec.state.history.ends == (len(rows),)


def test_a_blend_that_begins_to_read_times_keeps_what_it_weighs() -> None:
    """The earliest time of the first events is none, so their times only order them until all are fitted again."""
    rng, n = np.random.default_rng(0), 1_200
    pairs = {"user_id": rng.integers(0, 60, n), "item_id": rng.integers(0, N_ITEMS, n)}
    times = 1_700_000_000 + 3_600 * np.arange(n)
    first = pa.table({**pairs, "time": np.append(0, times[1:])})
    later = pa.table({"user_id": rng.integers(0, 60, 300), "item_id": rng.integers(0, N_ITEMS, 300)})
    later = later.append_column("time", pa.array(times[-1] + 3_600 * np.arange(1, 301)))
    rec = make_recommender("blend", strategy="retrain", **QUICK).fit(first)
    rec.update(later)
    model = rec.model
    assert isinstance(model, BlendScorer)
    assert model.weights.shape[1] == 1 + 4 * model.n_pauses
    assert rec.recommend([1, 2], k=3).num_rows == 6


def test_a_pause_that_nobody_made_so_far_has_the_weights_of_the_next_shorter_one() -> None:
    model = BlendScorer(0, N_ITEMS, with_times=True)
    n_periods = torch.zeros(13, dtype=torch.int64)
    n_periods[[2, 4]] = 1
    assert [model._stand_in(which, n_periods) for which in range(13)] == [0, 1, 1, 2, 1, 2, 5, 4, 7, 8, 7, 10, 11]


def test_requests_with_more_items_than_can_be_compared_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairstream.models.blend.MAX_FOLLOWING", 6)
    row = np.repeat(np.arange(4), 5)
    requests = _Requests(np.arange(4), np.full(4, 20), np.ones(4), row, np.arange(20))
    chosen = requests.where(np.array([True, False, True, True]), None)
    assert len(chosen.items) == 6
    assert set(chosen.items) <= {*range(5), *range(10, 20)}
    assert chosen.users[chosen.row].tolist() == (chosen.items // 5).tolist()
