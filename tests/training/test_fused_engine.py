"""The fused engine takes the reference's steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fairstream.training.engines import fine_tunes_a_copy, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st

import fairstream.training.cpu.engine as engine_module
from fairstream.data import SeenItems
from fairstream.errors import ConfigurationError
from fairstream.models import MatrixFactorization
from fairstream.objectives import Objective
from fairstream.sampling import NegativeSampler
from fairstream.training.batches import cut_batches
from fairstream.training.cpu import FusedEngine
from fairstream.training.engine import Engine, Training
from fairstream.training.optimizers import make_optimizer, state_tensors
from fairstream.training.reference import ReferenceEngine

N_USERS, N_ITEMS, SIZE = 40, 90, 16
TOLERANCE = 1e-5


def training_of(
    *,
    optimizer: Any = "row",
    lambda_: float = 0.5,
    fairness: Any = "signed",
    surrogate: Any = "hit",
    n: int = 4,
    mu: int = 4,
    d: int = 8,
    n_groups: int = 2,
    n_interactions: int = 200,
    size: int = SIZE,
    std: float = 0.7,  # scores of a few units, so that the exponentials have something to do
    seed: int = 0,
    repeats: bool = False,
) -> Training:
    """A training on made-up interactions; the same arguments give the same one anew."""
    rng = np.random.default_rng(seed)
    users = rng.integers(0, N_USERS, n_interactions)
    items = rng.integers(0, N_ITEMS, n_interactions)
    users[:SIZE] = users[0]  # the first batch is of one group
    codes = rng.integers(-1, n_groups, N_USERS).astype(np.int16)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MatrixFactorization(N_USERS, N_ITEMS, embedding_dim=d)
        for table in model.tables():
            torch.nn.init.normal_(table.weight, std=std)
    sampler = NegativeSampler(SeenItems.from_pairs(users, items), users, n_items=N_ITEMS)
    objective = Objective(lambda_=lambda_, tau=3.0, n=n, mu=mu, fairness=fairness, surrogate=surrogate)
    batches = cut_batches(users, items, codes, sampler, n_drawn=objective.n_drawn, size=size)
    signs = tuple(1.0 if g == 0 else -1.0 for g in range(n_groups))
    return Training(
        model,
        make_optimizer(optimizer, model, learning_rate=1e-3, l2=1e-4),
        objective,
        batches,
        sampler,
        signs,
        repeats,
    )


def run(engine: Engine, n_steps: int, key: int = 11) -> list[float]:
    """Steps over the batches in an order of their own, with new negatives every epoch."""
    n_batches, losses = len(engine.training.batches), []
    rng = np.random.default_rng(5)
    for epoch in itertools.count():
        order = rng.permutation(n_batches)[: n_steps - epoch * n_batches]
        if len(order) == 0:
            return losses
        losses.append(engine.epoch(order, key + epoch))
    raise AssertionError


def everything(training: Training) -> dict[str, torch.Tensor]:
    return {**training.model.state_dict(), **state_tensors(training.optimizer, training.model)}


def largest_difference(ours: Training, theirs: Training) -> float:
    """The largest ‖a − b‖ / ‖b‖ of any row of any parameter or optimizer state."""
    found = 0.0
    expected = everything(theirs)
    for name, value in everything(ours).items():
        a, b = (x.double().reshape(len(x) if x.dim() else 1, -1) for x in (value, expected[name]))
        assert torch.isfinite(a).all()
        norm = b.norm(dim=1)
        found = max(found, float(((a - b).norm(dim=1) / norm.clamp(min=1e-30)).max()))
    assert expected.keys() == everything(ours).keys()
    return found


EVERY_KIND = pytest.mark.parametrize(
    ("optimizer", "fairness", "lambda_"),
    [(o, f, lambda_) for o in ("row", "dense") for f in ("signed", "absolute") for lambda_ in (0.5, 4.0)]
    + [("row", "signed", 0.0), ("dense", "signed", 0.0)],
)


@EVERY_KIND
@pytest.mark.parametrize(("n", "mu", "n_groups"), [(4, 4, 2), (3, 5, 2), (5, 2, 4), (1, 1, 3)])
def test_two_hundred_steps_stay_within_a_hundred_thousandth(
    optimizer: str, fairness: str, lambda_: float, n: int, mu: int, n_groups: int
) -> None:
    options = {"optimizer": optimizer, "fairness": fairness, "lambda_": lambda_, "n": n, "mu": mu, "n_groups": n_groups}
    fused, reference = training_of(**options), training_of(**options)
    losses = run(FusedEngine(fused), 200), run(ReferenceEngine(reference), 200)
    assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)
    assert largest_difference(fused, reference) < TOLERANCE


@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("options", [{"mu": 40}, {"n": 40, "mu": 2}, {"surrogate": "approx-ndcg", "lambda_": 4.0}])
def test_so_do_those_with_many_candidates_and_with_approx_ndcg(optimizer: str, options: dict[str, Any]) -> None:
    fused, reference = (training_of(optimizer=optimizer, **options) for _ in range(2))
    losses = run(FusedEngine(fused), 200), run(ReferenceEngine(reference), 200)
    assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)
    # P̂'s logits are sums of μ differences: of 40, the reference itself is half a TOLERANCE away from float64.
    assert largest_difference(fused, reference) < 2 * TOLERANCE


@given(st.integers(0, 10**6), st.sampled_from(["row", "dense"]), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=20)
def test_so_do_steps_of_any_shape(seed: int, optimizer: str, n: int, mu: int) -> None:
    shape = {"d": 1 + seed % 40, "n_interactions": 1 + seed % 61, "n_groups": 2 + seed % 3}
    fused, reference = (training_of(seed=seed, optimizer=optimizer, n=n, mu=mu, **shape) for _ in range(2))
    run(FusedEngine(fused), 8)
    run(ReferenceEngine(reference), 8)
    assert largest_difference(fused, reference) < TOLERANCE


@EVERY_KIND
def test_the_result_does_not_depend_on_the_number_of_threads(optimizer: str, fairness: str, lambda_: float) -> None:
    n_before, results = torch.get_num_threads(), []
    for n_threads in (1, 2, 4):
        training = training_of(
            optimizer=optimizer, fairness=fairness, lambda_=lambda_, size=4 * 64, n_interactions=1500
        )
        try:
            torch.set_num_threads(n_threads)
            engine = FusedEngine(training)
        finally:
            torch.set_num_threads(n_before)
        assert engine._n_threads == n_threads
        run(engine, 30)
        results.append(everything(training))
    for other in results[1:]:
        assert all(torch.equal(value, other[name]) for name, value in results[0].items())


def test_an_update_on_a_copy_is_the_update_itself_and_comes_to_light_only_at_the_end() -> None:
    in_place, on_copy = training_of(), training_of(repeats=True)
    before = {name: value.clone() for name, value in on_copy.model.state_dict().items()}
    order = np.arange(len(on_copy.batches))
    engines = FusedEngine(in_place), FusedEngine(on_copy)
    losses = [[engine.epoch(order, key=3) for _ in range(4)] for engine in engines]
    assert losses[0] == losses[1]
    assert all(torch.equal(value, before[name]) for name, value in on_copy.model.state_dict().items())
    engines[1].finish()
    expected = everything(in_place)
    assert all(torch.equal(value, expected[name]) for name, value in everything(on_copy).items())


def test_a_long_log_is_drawn_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, in_parts = training_of(), training_of()
    run(FusedEngine(whole), 40)
    monkeypatch.setattr(engine_module, "_BATCHES_AT_ONCE", 5)
    run(FusedEngine(in_parts), 40)
    expected = everything(whole)
    assert all(torch.equal(value, expected[name]) for name, value in everything(in_parts).items())


def test_rows_that_have_been_away_for_long_are_left_alone_and_wake_as_if_they_had_not_been() -> None:
    # Without the fairness loss: its gradient follows the signs of differences, and those of trembling rows are chance.
    fused, reference = (training_of(optimizer="dense", std=0.01, lambda_=0.0) for _ in range(2))
    engines = FusedEngine(fused), ReferenceEngine(reference)
    for engine in engines:
        for key in range(160):  # the first batch, over and over, with negatives that keep every item awake
            engine.epoch(np.zeros(25, dtype=np.int64), key)
    is_asleep = torch.from_numpy(engines[0]._p.frozen_since > 0)
    assert N_USERS / 2 < int(is_asleep.sum()) < N_USERS
    for training in (fused, reference):
        assert 0 < float(training.model.get_parameter("user.weight").detach()[is_asleep].abs().max()) < 1e-30
    fading = [state_tensors(t.optimizer, t.model)["user.weight/exp_avg_sq"][is_asleep] for t in (fused, reference)]
    assert torch.allclose(*fading, rtol=1e-4, atol=0)
    order = np.arange(len(fused.batches))
    losses = [engine.epoch(order, key=160) for engine in engines]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert int((engines[0]._p.frozen_since > 0).sum()) < int(is_asleep.sum())
    after = [training.model.get_parameter("user.weight").detach() for training in (fused, reference)]
    assert float((after[0] - after[1]).abs().max()) < 1e-4 * float(after[1].abs().max())


# ── when something goes wrong ────────────────────────────────────────────────────────────


def test_what_was_written_can_be_taken_back() -> None:
    training = training_of(repeats=True)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    engine = FusedEngine(training)
    engine.epoch(np.arange(len(training.batches)), key=3)
    engine.undo()  # nothing was written yet
    engine.finish()
    engine.finish()  # once is enough
    assert not torch.equal(training.model.get_parameter("user.weight"), before["user.weight"])
    engine.undo()
    assert all(torch.equal(value, before[name]) for name, value in training.model.state_dict().items())
    assert not state_tensors(training.optimizer, training.model)["user.weight/n_updates"].any()


def test_a_thread_that_fails_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    n_before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        engine = FusedEngine(training_of(size=4 * 64, n_interactions=1500))
    finally:
        torch.set_num_threads(n_before)
    whole = engine._take

    def fails(order: np.ndarray, thread: int) -> float:
        if thread == 0 and len(order):
            raise KeyboardInterrupt
        return whole(order, thread)

    monkeypatch.setattr(engine, "_take", fails)
    with pytest.raises(KeyboardInterrupt):
        engine.epoch(np.arange(len(engine.training.batches)), key=1)  # would wait for ever


def test_a_batch_may_be_larger_than_the_data() -> None:
    fused, reference = (training_of(size=10**9) for _ in range(2))
    run(FusedEngine(fused), 3)
    run(ReferenceEngine(reference), 3)
    assert largest_difference(fused, reference) < TOLERANCE


# ── which engine ─────────────────────────────────────────────────────────────────────────


def frozen(training: Training) -> Training:
    training.model.get_parameter("item.weight").requires_grad_(False)
    return training


def doubled(training: Training) -> Training:
    training.model.double()
    return training


class Shifted(MatrixFactorization):
    """Scores otherwise than the class it derives from."""


def derived(training: Training) -> Training:
    return replace(training, model=Shifted(N_USERS, N_ITEMS, embedding_dim=8))


def undecayed(training: Training) -> Training:
    training.model.item.decayed = False
    return training


@pytest.mark.parametrize("change", [frozen, doubled, derived, undecayed])
def test_the_fused_engine_keeps_its_hands_off_what_it_does_not_do(change: Callable[[Training], Training]) -> None:
    assert isinstance(make_engine("auto", training_of()), FusedEngine)
    assert isinstance(make_engine("reference", training_of()), ReferenceEngine)
    assert isinstance(make_engine("auto", change(training_of())), ReferenceEngine)
    with pytest.raises(ConfigurationError, match="use auto or reference"):
        make_engine("fused", change(training_of()))


@pytest.mark.parametrize("name", ["auto", "reference", "fused"])
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("lambda_", [0.0, 0.5])
@pytest.mark.parametrize("surrogate", ["hit", "approx-ndcg", "neural-ndcg"])
def test_a_way_back_is_light_only_where_the_engine_works_on_a_copy(
    surrogate: str, lambda_: float, optimizer: str, name: Any
) -> None:
    training = training_of(surrogate=surrogate, lambda_=lambda_, optimizer=optimizer, repeats=True)
    is_fused = name != "reference" and (surrogate != "neural-ndcg" or lambda_ == 0)
    is_light = fine_tunes_a_copy(name, training.model, training.optimizer, training.objective)
    assert is_light == (is_fused and optimizer == "row")
    if name == "fused" and not is_fused:
        with pytest.raises(ConfigurationError, match=r"MatrixFactorization on cpu with surrogate='neural-ndcg'; use"):
            make_engine(name, training)
        return
    assert isinstance(make_engine(name, training), FusedEngine if is_fused else ReferenceEngine)
    before = training.model.get_parameter("user.weight").detach().clone()
    make_engine(name, training).epoch(np.arange(len(training.batches)), key=3)
    assert torch.equal(training.model.get_parameter("user.weight"), before) == is_light
