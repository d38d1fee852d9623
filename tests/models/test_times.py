"""Times of events and of requests: what a sequence model reads, and that training and serving build the same."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fairstream as fs
from engine_support import job_of
from fairstream.data import History
from fairstream.models import ContextBuilder, SASRec, SASRecScorer, Scorer, resolve_model
from fairstream.models.blend import LENGTHS
from fairstream.models.sequence import _ELAPSED
from fairstream.periods import minutes_of
from fairstream.sampling import NegativeSampler
from fairstream.training import Batch, cut_windows
from fairstream.training.reference import WindowEngine

N_USERS, N_ITEMS, LENGTH = 4, 20, 6


def timed_model(length: int = LENGTH, **options: Any) -> SASRecScorer:
    """A model whose biases of elapsed time are not 0."""
    torch.manual_seed(0)
    model = SASRecScorer(0, N_ITEMS, embedding_dim=8, length=length, with_times=True, dropout=0.0, **options).eval()
    torch.nn.init.normal_(model.item.weight)
    for table in (model.since, *(block.elapsed for block in model.blocks)):
        torch.nn.init.normal_(table[1:])
    return model


def random_windows(n: int = 5) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    times = 30_000_000 + np.sort(rng.choice([0, 3, 70, 5_000, 90_000], (n, LENGTH + 1)).cumsum(axis=1), axis=1)
    return torch.from_numpy(rng.integers(0, N_ITEMS, (n, LENGTH))), torch.from_numpy(times)


@given(st.integers(-5, 10**8))
def test_ranges_of_elapsed_time_grow_by_a_factor(minutes: int) -> None:
    times = torch.tensor([[1_000_000_000 - minutes, 1_000_000_000]])
    assert list(_ELAPSED) == sorted(set(_ELAPSED))  # no row without a range
    row = timed_model()._elapsed(times).item()
    begin, end = _ELAPSED[row - 1], _ELAPSED[row] if row < len(_ELAPSED) else math.inf
    assert begin <= max(1, minutes) < end
    assert end <= math.ceil(1.36 * begin) or row == len(_ELAPSED)


def test_a_state_depends_on_times_up_to_its_request_alone() -> None:
    model, (items, times) = timed_model(), random_windows()
    states = model.states(items, times)
    for place in range(LENGTH):
        later, request = times.clone(), times.clone()
        later[:, place + 2 :] += 10**6
        request[:, place + 1] += 10**5
        assert torch.equal(model.states(items, later)[:, : place + 1], states[:, : place + 1])
        is_same = torch.allclose(model.states(items, request)[:, place], states[:, place], atol=1e-3)
        assert not is_same
    assert torch.equal(model.states(items, times + 10**6), states)  # only differences count
    times[:, -1] = 0
    assert (model._elapsed(times)[:, -1] == 1).all()  # a request before an event counts as in the event's minute


def test_unknown_times_add_nothing() -> None:
    model, (items, times) = timed_model(), random_windows()
    unknown = torch.full_like(times, -1)
    assert torch.equal(model.states(items, unknown), model.states(items))
    times[:, -1] = -1
    assert torch.allclose(model.states(items, times)[:, -2], model.states(items, random_windows()[1])[:, -2])


def test_without_timestamps_the_model_is_as_before() -> None:
    for name in ("sasrec", "blend"):
        torch.manual_seed(3)
        timed = resolve_model(name).build(N_USERS, N_ITEMS, with_times=True)
        torch.manual_seed(3)
        plain = resolve_model(name).build(N_USERS, N_ITEMS)
        assert (timed.reads_times, plain.reads_times) == (True, False)
        more = {key for key in timed.state_dict() if key.endswith(("elapsed", "since"))}
        assert len(more) == 3
        assert plain.state_dict().keys() == timed.state_dict().keys() - more
        for key, value in plain.state_dict().items():
            if key in ("weights", "n_periods"):
                assert value.shape[1] == 1 + len(LENGTHS)  # no ranges of pauses
            else:
                assert torch.equal(value, timed.state_dict()[key])
    assert not resolve_model("gru").build(N_USERS, N_ITEMS, with_times=True).reads_times


def history_with_times() -> History:
    """Distinct pairs in two runs; one time in ten is unknown."""
    rng = np.random.default_rng(2)
    pairs, times = rng.permutation(N_USERS * N_ITEMS)[:60], 1.7e9 + rng.exponential(4_000, 60).cumsum()
    times[rng.random(60) < 0.1] = np.nan
    users, items = pairs // N_ITEMS, pairs % N_ITEMS
    return History.of(users[:20], items[:20], times[:20]).after(users[20:], items[20:], times[20:])


@pytest.mark.parametrize("length", [3, 40])
def test_a_place_of_a_window_is_the_context_at_its_event(length: int) -> None:
    history, model = history_with_times(), timed_model(length)
    sampler = NegativeSampler(history.seen, np.arange(N_USERS), n_items=N_ITEMS)
    codes = np.zeros(N_USERS, np.int16)
    windows = cut_windows(history, range(60), codes, sampler, n_drawn=1, length=length, size=9, with_times=True)
    contexts = ContextBuilder(length, history, reads_times=True)
    position_of = {pair: at for at, pair in enumerate(zip(history.users.tolist(), history.items.tolist(), strict=True))}
    n_places = n_whole = 0
    for cut in (windows, windows.cut_again(7)):
        assert cut.times is not None
        for w, place in np.argwhere(cut.targets >= 0).tolist():
            user = int(cut.users[w])
            at = np.array([position_of[user, int(cut.targets[w, place])]])
            context = contexts.at(np.array([user]), at)
            assert context.history is not None
            assert context.times is not None
            items = np.pad(cut.history[w, : place + 1], (length - 1 - place, 0), constant_values=-1)
            times = np.pad(cut.times[w, : place + 2], (length - 1 - place, 0), constant_values=-1)
            is_there = np.append(items >= 0, True)
            assert context.times[0].numpy()[is_there].tolist() == times[is_there].tolist()
            n_places += 1
            if items.tolist() == context.history[0].tolist():  # the window holds all that serving reads
                window = torch.from_numpy(cut.history[w : w + 1]), torch.from_numpy(cut.times[w : w + 1])
                served = model.states(context.history, context.times)[:, -1]
                torch.testing.assert_close(model.states(*window)[:, place], served)
                n_whole += 1
    assert n_places == 2 * len(history)
    assert n_whole > 20


def test_requests_have_the_time_of_their_event_or_of_now() -> None:
    history = history_with_times()
    contexts, users = ContextBuilder(2, history, reads_times=True), np.array([0, 1])

    def request(builder: ContextBuilder, *about: Any) -> list[int]:
        times = builder.at(users, *about).times
        assert times is not None
        return times[:, -1].tolist()

    seconds = history.times_at(range(60))
    assert seconds is not None
    before = np.array([30, 7])
    assert request(contexts, before) == minutes_of(seconds[before]).tolist()
    assert request(contexts) == [int(np.nanmax(seconds) // 60)] * 2
    assert request(replace(contexts, now=1.8e9)) == [30_000_000] * 2
    assert request(contexts, before, np.array([1.8e9, np.nan])) == [30_000_000, -1]
    assert ContextBuilder(2, history).at(users).times is None
    assert history.latest_time(7) == np.nanmax(seconds[:7])
    assert history.latest_time(25) == np.nanmax(seconds[:25])
    assert np.isnan(History.of(users, users).latest_time())


def test_an_engine_gives_each_target_its_times() -> None:
    """The padding that training skips takes no time with it, and a target's context has the target's scores."""

    def extra(model: Scorer, batch: Batch) -> Tensor:
        assert batch.context.times is not None
        torch.testing.assert_close(model(batch.users, batch.items, batch.context), batch.scores)
        batches.append(batch)
        return torch.tensor(0.0)

    batches = list[Batch]()
    job = job_of("timed", "dense", extra_loss=extra)
    WindowEngine(replace(job, same_batches_every_epoch=True)).epoch(np.arange(len(job.batches)), 1)
    assert len(batches) == len(job.batches)


# ── a stream in which time matters ───────────────────────────────────────────────────────

HOMES, N_CHAIN = 6, 60


def stream_of_returns(n_users: int, n_events: int) -> pa.Table:
    """People who come back within minutes take the item after their last one, after days one of their home's ten."""
    rng, rows = np.random.default_rng(0), list[tuple[float, int, int]]()
    for user in range(n_users):
        home, had, time = 10 * int(rng.integers(HOMES)), list[int](), 1.7e9 + rng.uniform(0, 30 * 86_400)
        for n in range(n_events):
            is_soon = n > 0 and rng.random() < 0.5
            time += rng.uniform(120, 300) if is_soon else rng.uniform(2, 10) * 86_400
            following = [(had[-1] + 1) % N_CHAIN] if is_soon else []
            free = [item for item in (*following, *rng.permutation(10) + home) if item not in had]
            had.append(int(free[0]) if free else int(rng.integers(N_CHAIN)))
            rows.append((time, user, had[-1]))
    times, users, items = zip(*sorted(rows), strict=True)
    return pa.table({"user_id": users, "item_id": items, "timestamp": (np.array(times) * 1e6).astype("datetime64[us]")})


@pytest.mark.slow
def test_when_people_come_back_decides_what_they_get() -> None:
    events = stream_of_returns(800, 12)
    model = SASRec(embedding_dim=32, length=12)
    training = fs.Training(pretrain_epochs=60, batch_size=256, threads=1)
    rec = fs.FairRecommender(model, target=None, training=training, device="cpu").fit(events)
    history, users = rec.state.history, np.arange(800)
    last = history.latest_positions(users, 1)[0][:, 0]
    ids = np.array(rec.state.item_ids.ids.to_pylist())
    following = (ids[history.items_of_events(last)] + 1) % N_CHAIN
    is_new = ~history.seen.has(users, np.argsort(ids)[following])  # else the truth is another item
    shares = []
    for elapsed in (180, 5 * 86_400):
        context = rec.state.contexts.at(users, None, 60.0 * history.minutes_of_events(last) + elapsed)
        with torch.no_grad():
            scores = rec.model.score_range(torch.from_numpy(users), 0, history.n_items, context)
        shares.append(float((ids[scores.argmax(dim=1).numpy()] == following)[is_new].mean()))
    assert shares[0] > 0.7
    assert shares[1] < 0.3
