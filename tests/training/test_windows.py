"""Windows of users' sequences: what they hold, and what is learned from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import History
from fairstream.errors import DataError, ModelError
from fairstream.models import Context, ContextBuilder, ItemTable, Scorer, WindowScorer
from fairstream.objectives import AmongAll, DisparityLoss, Loss, Objective, bpr_loss, softmax_loss
from fairstream.sampling import NegativeSampler
from fairstream.training import Batch, Batches, TrainingJob, Windows, choose_engine, cut_windows, make_optimizer
from fairstream.training.reference import ReferenceEngine, WindowEngine

Pairs = list[tuple[int, int]]

N_USERS, N_ITEMS, LENGTH = 5, 30, 3
CODES = np.array([0, 1, -1, 1, 0], dtype=np.int16)
PIECES = st.lists(
    st.lists(st.tuples(st.integers(0, N_USERS - 1), st.integers(0, 7)), max_size=12), min_size=1, max_size=3
)


def history_of(pieces: list[Pairs]) -> History:
    columns = [np.array(piece, dtype=np.int64).reshape(-1, 2).T for piece in pieces]
    history = History.of(*columns[0], n_users=N_USERS, n_items=N_ITEMS)
    for users, items in columns[1:]:
        history = history.after(users, items)
    return history


def windows_of(
    history: History, events: Any, *, length: int = LENGTH, size: int = 8, n_drawn: int = 2, **options: Any
) -> Windows:
    sampler = NegativeSampler(history.seen, np.arange(N_USERS), n_items=N_ITEMS)
    return cut_windows(history, events, CODES, sampler, n_drawn=n_drawn, length=length, size=size, **options)


# ── the windows ──────────────────────────────────────────────────────────────────────────


@given(PIECES, st.integers(1, 4), st.data())
def test_every_event_to_learn_is_a_target_once_behind_what_came_before_it(
    pieces: list[Pairs], length: int, data: st.DataObject
) -> None:
    """Against a slow search: each event, and up to `length` items before it."""
    log = [pair for piece in pieces for pair in piece]
    chosen = data.draw(st.sets(st.integers(0, len(log) - 1)) if log else st.just(set[int]()))
    assume(chosen)
    windows = windows_of(history_of(pieces), np.array(sorted(chosen)), length=length)
    learned = []
    for user, known, targets in zip(windows.users, windows.history, windows.targets, strict=True):
        sequence = [at for at, (owner, _) in enumerate(log) if owner == user]
        items = [log[at][1] for at in sequence]
        for place, target in enumerate(targets.tolist()):
            if target < 0:
                continue
            before = [item for item in known[: place + 1].tolist() if item >= 0]
            # Which event this target is: the one that ends the same stretch of the user's sequence.
            ends = [n for n in range(len(before), len(items)) if items[n - len(before) : n + 1] == [*before, target]]
            assert ends
            learned.append((int(user), target))
    expected = [log[at] for at in chosen]
    assert sorted(learned) == sorted(expected)
    assert windows.n_without_negatives == 0


def test_events_of_users_without_enough_free_items_are_left_out_and_counted() -> None:
    crowded = [(0, item) for item in range(N_ITEMS - 1)]  # one item left, where two are drawn
    windows = windows_of(history_of([[*crowded, (1, 3), (1, 4), (2, 5)]]), range(len(crowded) + 3))
    assert windows.n_without_negatives == len(crowded)
    assert windows.users.tolist() == [1, 2]


@given(PIECES, st.integers(1, 4))
def test_windows_over_everything_tile_each_sequence(pieces: list[Pairs], length: int) -> None:
    log = [pair for piece in pieces for pair in piece]
    assume(log)
    windows = windows_of(history_of(pieces), range(len(log)), length=length)
    for user in range(N_USERS):
        items = [item for owner, item in log if owner == user]
        mine = np.flatnonzero(windows.users == user)
        assert len(mine) == -(-len(items) // length)
        targets = [item for w in mine for item in windows.targets[w].tolist() if item >= 0]
        known = [item for w in mine for item in windows.history[w].tolist() if item >= 0]
        assert (targets, known) == (items, items[:-1])


@given(PIECES, st.integers(1, 20), st.integers(0, 5))
def test_batches_by_width_leave_out_nothing_but_padding(pieces: list[Pairs], length: int, start: int) -> None:
    log = [pair for piece in pieces for pair in piece]
    assume(len(log) > start)
    whole, grouped = (
        windows_of(history_of(pieces), range(start, len(log)), length=length, with_times=True, ignores_padding=ignores)
        for ignores in (False, True)
    )
    most = max(sum(owner == user for owner, _ in log) for user in {user for user, _ in log[start:]})
    assert grouped.history.shape[1] == min(length, most)
    for ours, theirs in ((grouped, whole), (grouped.cut_again(3), whole.cut_again(3))):
        assert contents(ours, length) == contents(theirs, length)
        for b, width in enumerate(ours.widths.tolist()):
            at = ours.span(b)
            assert (ours.history[at, :-width] == -1).all()
            assert (ours.targets[at, :-width] == -1).all()


def contents(windows: Windows, length: int) -> list[Any]:
    """The windows in an order that does not depend on their batches, padded to `length`."""
    padding = ((0, 0), (length - windows.history.shape[1], 0))
    columns = [getattr(windows, name) for name in ("history", "targets", "times")]
    padded = [np.pad(column, padding, constant_values=-1).tolist() for column in columns]
    rows = zip(windows.users.tolist(), windows.weights.round(12).tolist(), *padded, strict=True)
    return sorted(rows)


def test_only_events_to_learn_are_targets_and_the_rest_is_what_is_known() -> None:
    history = history_of([[(0, item) for item in range(6)], [(0, 6), (1, 7), (1, 3)]])
    windows = windows_of(history, range(6, 9))
    assert windows.users.tolist() == [0, 1]
    assert windows.history.tolist() == [[3, 4, 5], [-1, -1, 7]]
    assert windows.targets.tolist() == [[-1, -1, 6], [-1, 7, 3]]


def test_batches_have_about_as_many_events_as_was_asked_for() -> None:
    rng = np.random.default_rng(0)
    log = [(int(user), int(item)) for user, item in zip(rng.integers(0, 5, 120), rng.integers(0, 30, 120), strict=True)]
    windows = windows_of(history_of([log]), range(120), size=12, n_drawn=1)
    spans = [windows.span(b) for b in range(len(windows))]
    assert [row for span in spans for row in range(span.start, span.stop)] == list(range(len(windows.users)))
    counts = [(windows.targets[span] >= 0).sum() for span in spans]
    assert np.diff(windows.first_target).tolist() == counts
    assert 8 <= np.mean(counts[:-1]) <= 16
    expected = [len(set(CODES[windows.users[span]].tolist()) - {-1}) > 1 for span in spans]
    assert windows.have_two_groups.tolist() == expected


def test_users_without_enough_negatives_are_left_out() -> None:
    everything = [(0, item) for item in range(N_ITEMS)]
    history = history_of([[*everything, (1, 0), (1, 1)]])
    assert windows_of(history, range(len(history))).users.tolist() == [1]
    with pytest.raises(DataError, match="distinct negatives"):
        windows_of(history, range(N_ITEMS))


def test_what_cannot_be_learned_is_said_in_a_sentence() -> None:
    history = history_of([[(0, 1), (1, 2)]])
    with pytest.raises(DataError, match="no events to learn"):
        windows_of(history, range(0))


# ── the engine ───────────────────────────────────────────────────────────────────────────


class Summed(WindowScorer):
    """s = ⟨sum of the items so far, item⟩: any place of a window can be computed by hand."""

    history_length = LENGTH

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.item = ItemTable(n_items, 4, padding=True)

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        assert context.history is not None
        return (self.item(items) @ self.item(context.history).sum(dim=1).unsqueeze(-1)).squeeze(-1)

    def states(self, history: Tensor) -> Tensor:
        return self.item(history).cumsum(dim=1)  # (B, L, d)


def job_of(*, loss: Loss = bpr_loss, lambda_: float = 0.7, size: int = 9, learning_rate: float = 1e-2) -> TrainingJob:
    rng = np.random.default_rng(1)
    log = [(int(user), int(item)) for user, item in zip(rng.integers(0, 5, 60), rng.integers(0, 20, 60), strict=True)]
    history = history_of([log[:40], log[40:]])
    torch.manual_seed(0)
    model = Summed(N_USERS, N_ITEMS)
    torch.nn.init.normal_(model.item.weight)
    return TrainingJob(
        model,
        make_optimizer("row", model, learning_rate=learning_rate, l2=0.0),
        Objective(lambda_=lambda_, n=2, mu=3, loss=loss, fairness=DisparityLoss(temperature=1.0)),
        windows_of(history, range(20, 60), n_drawn=3, size=size),
        NegativeSampler(history.seen, np.arange(N_USERS), n_items=N_ITEMS),
        (1.0, -1.0),
        ContextBuilder(model.history_length, history),
    )


def by_hand(job: TrainingJob, order: list[int], key: int) -> float:
    """The mean loss of the batches, an event at a time, by the model's own `forward`."""
    windows, model = job.batches, job.model
    assert isinstance(windows, Windows)
    losses, first = [], 0
    starts = {}
    for b in range(len(windows)):
        starts[b], first = first, first + int((windows.targets[windows.span(b)] >= 0).sum())
    for b in order:
        scores, groups, everything, at = [], [], [], starts[b]
        for w in range(windows.span(b).start, windows.span(b).stop):
            for place in range(windows.targets.shape[1]):
                target = int(windows.targets[w, place])
                if target < 0:
                    continue
                user = windows.users[w : w + 1]
                negatives = job.sampler.draw(user, job.objective.n_drawn, key, at)[0].tolist()
                known = [*([-1] * (LENGTH - 1 - place)), *windows.history[w, : place + 1].tolist()]
                context = Context(torch.tensor([known]))
                rows, items = torch.from_numpy(user), torch.tensor([[target, *negatives]])
                scores.append(model(rows, items, context)[0])
                others = [item for item in range(N_ITEMS) if item != target]
                everything.append(model(rows, torch.tensor([[target, *others]]), context)[0])
                groups.append(int(CODES[user[0]]))
                at += 1
        codes = torch.tensor(groups)
        needs_all, zeros = job.objective.needs_all_items, torch.zeros(len(scores), dtype=torch.long)
        losses.append(
            job.objective(
                torch.stack(scores),
                codes,
                torch.tensor(job.signs),
                has_two_groups=len(set(groups) - {-1}) > 1,
                among_all=AmongAll(torch.stack(everything), zeros, torch.ones(len(scores))) if needs_all else None,
            )
        )
    return float(torch.stack(losses).detach().mean())


@pytest.mark.few
@pytest.mark.parametrize("loss", [bpr_loss, softmax_loss])
@pytest.mark.parametrize("size", [5, 9, 1000])
def test_the_loss_is_that_of_a_loop_over_single_events(size: int, loss: Loss) -> None:
    job = job_of(loss=loss, size=size, learning_rate=1e-30)  # a model that stands still can be asked again
    order = np.random.default_rng(2).permutation(len(job.batches))
    expected = by_hand(job, order.tolist(), key=11)
    assert WindowEngine(job).epoch(order, 11) == pytest.approx(expected, rel=1e-5)


def test_a_batch_is_computed_without_its_padding() -> None:
    n_events = [9, 1, 4, 14, 2]  # of each user
    log = [(user, item) for user, n in enumerate(n_events) for item in range(n)]
    windows = windows_of(history_of([log]), range(len(log)), length=12, size=3, ignores_padding=True)
    assert set(windows.widths.tolist()) == {2, 8, 12}
    engine = WindowEngine(replace(job_of(), batches=windows))
    is_target = torch.from_numpy(windows.targets >= 0)
    model = engine.job.model
    assert isinstance(model, WindowScorer)
    whole = model.states(torch.from_numpy(windows.history))[is_target]
    parts = [engine._states(b, is_target[windows.span(b)]) for b in range(len(windows))]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_a_few_short_windows_join_longer_ones() -> None:
    log = [(0, 1), *((1, item) for item in range(20))]
    windows = windows_of(history_of([log]), range(len(log)), length=12, size=20, ignores_padding=True)
    assert windows.widths.tolist() == [12]


def test_random_cuts_learn_every_event_once_after_other_events() -> None:
    n_events = [9, 1, 4, 14, 2, 41]
    log = [(user, item) for user, n in enumerate(n_events) for item in range(n)]
    windows = windows_of(history_of([log]), range(len(log)), length=5, size=7)
    whole = sorted(zip(windows.users.repeat((windows.targets >= 0).sum(axis=1)), windows.positives, strict=True))
    cuts = [windows.cut_again(key) for key in range(20)]
    for cut in cuts:
        is_target = cut.targets >= 0
        assert sorted(zip(cut.users.repeat(is_target.sum(axis=1)), cut.positives, strict=True)) == whole
        # The place of a target holds the item before it; each user had the items 0, 1, 2 …
        assert (cut.history[is_target] == cut.targets[is_target] - 1).all()
    contexts = {tuple(row) for cut in cuts for row in cut.history[cut.users == 5].tolist()}
    assert len(contexts) > len(windows.history[windows.users == 5])
    np.testing.assert_array_equal(windows.cut_again(3).history, cuts[3].history)


def test_training_on_windows_lowers_the_loss() -> None:
    job = job_of(lambda_=0.0)
    engine, order = WindowEngine(job), np.arange(len(job.batches))
    first = engine.epoch(order, 1)
    for _ in range(30):
        last = engine.epoch(order, 1)
    assert last < 0.7 * first


def test_an_extra_loss_sees_every_target() -> None:
    batches: list[Batch] = []

    def extra(model: Scorer, batch: Batch) -> Tensor:
        batches.append(batch)
        torch.testing.assert_close(model(batch.users, batch.items, batch.context), batch.scores)
        return torch.tensor(2.0)

    plain = WindowEngine(job_of())
    more = WindowEngine(replace(job_of(), extra_loss=extra))
    order = np.arange(len(plain.job.batches))
    assert more.epoch(order, 1) == pytest.approx(plain.epoch(order, 1) + 2)
    assert sum(len(batch.users) for batch in batches) == int(plain.job.batches.first_target[-1])
    assert all(batch.scores.shape == batch.items.shape for batch in batches)


def test_windows_go_to_their_engine_and_interactions_to_theirs() -> None:
    job = job_of()
    assert choose_engine("auto", job) is WindowEngine
    assert ReferenceEngine.unsupported(job) == "the batches are windows"
    rows = np.zeros(3, dtype=np.int64)
    interactions = replace(job, batches=Batches(rows, rows, CODES, 2, range(3)))
    assert WindowEngine.unsupported(interactions) == "the batches are single interactions"
    assert choose_engine("auto", interactions) is ReferenceEngine


def test_scores_of_another_shape_are_refused() -> None:
    class Narrow(Summed):
        def score_states(self, states: Tensor, items: Tensor | None) -> Tensor:
            return super().score_states(states, items)[:, :1]

    job = job_of()
    model = Narrow(N_USERS, N_ITEMS)
    job = replace(job, model=model, optimizer=make_optimizer("row", model, learning_rate=1e-3, l2=0.0))
    with pytest.raises(ModelError, match="one score for each candidate"):
        WindowEngine(job).epoch(np.arange(1), 1)
