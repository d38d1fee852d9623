"""The compiled CPU engine takes the same steps as the reference engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fairstream.training.engines.cpu_mf as engine_module
from fairstream.data import History
from fairstream.errors import ConfigurationError
from fairstream.models import NO_CONTEXT, ContextBuilder, MFScorer, Scorer, UserTable
from fairstream.objectives import DisparityLoss, Objective, bpr_loss, sampled_softmax_loss
from fairstream.objectives.fairness import MIN_TEMPERATURE
from fairstream.sampling import NegativeSampler
from fairstream.training.batches import cut_batches
from fairstream.training.engine import Batch, Engine, TrainingJob
from fairstream.training.engines.cpu_mf import CpuMF
from fairstream.training.optimizers import make_optimizer, state_tensors
from fairstream.training.reference import ReferenceEngine
from fairstream.training.train import choose_engine

N_USERS, N_ITEMS, SIZE = 40, 90, 16
TOLERANCE = 1e-5


def job_of(
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
    temperature: float = 3.0,
    same_batches_every_epoch: bool = False,
) -> TrainingJob:
    """A job on made-up interactions; the same arguments give the same one again."""
    rng = np.random.default_rng(seed)
    users = rng.integers(0, N_USERS, n_interactions)
    items = rng.integers(0, N_ITEMS, n_interactions)
    users[:SIZE] = users[0]  # the first batch is of one group
    codes = rng.integers(-1, n_groups, N_USERS).astype(np.int16)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MFScorer(N_USERS, N_ITEMS, embedding_dim=d)
        for table in model.tables():
            torch.nn.init.normal_(table.weight, std=std)
    history = History.of(users, items)
    sampler = NegativeSampler(history.seen, users, n_items=N_ITEMS)
    objective = Objective(lambda_=lambda_, n=n, mu=mu, fairness=DisparityLoss(fairness, surrogate, temperature))
    batches = cut_batches(history, range(len(users)), codes, sampler, n_drawn=objective.n_drawn, size=size)
    signs = tuple(1.0 if g == 0 else -1.0 for g in range(n_groups))
    return TrainingJob(
        model,
        make_optimizer(optimizer, model, learning_rate=1e-3, l2=1e-4),
        objective,
        batches,
        sampler,
        signs,
        ContextBuilder(model.history_length, history),
        same_batches_every_epoch,
    )


def run(engine: Engine, n_steps: int, key: int = 11) -> list[float]:
    """Steps over the batches in an order of their own, with new negatives every epoch."""
    n_batches, losses = len(engine.job.batches), []
    rng = np.random.default_rng(5)
    for epoch in itertools.count():
        order = rng.permutation(n_batches)[: n_steps - epoch * n_batches]
        if len(order) == 0:
            return losses
        losses.append(engine.epoch(order, key + epoch))
    raise AssertionError


def everything(job: TrainingJob) -> dict[str, torch.Tensor]:
    return {**job.model.state_dict(), **state_tensors(job.optimizer, job.model)}


def largest_difference(ours: TrainingJob, theirs: TrainingJob) -> float:
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


KINDS = [(o, f, lambda_) for o in ("row", "dense") for f in ("signed", "absolute") for lambda_ in (0.5, 4.0)]
KINDS += [("row", "signed", 0.0), ("dense", "signed", 0.0)]
SHAPES = itertools.cycle([(4, 4, 2), (3, 5, 3), (5, 2, 4)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "fairness", "lambda_", "n", "mu", "n_groups"),
    [(*kind, *shape) for kind, shape in zip(KINDS, SHAPES, strict=False)],
)
def test_two_hundred_steps_stay_within_the_tolerance(
    optimizer: str, fairness: str, lambda_: float, n: int, mu: int, n_groups: int
) -> None:
    options = {"optimizer": optimizer, "fairness": fairness, "lambda_": lambda_, "n": n, "mu": mu, "n_groups": n_groups}
    fused, reference = job_of(**options), job_of(**options)
    losses = run(CpuMF(fused), 200), run(ReferenceEngine(reference), 200)
    assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)
    assert largest_difference(fused, reference) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("options", [{"mu": 40}, {"n": 40, "mu": 2}])
def test_200_steps_with_many_candidates_end_where_the_references_end(optimizer: str, options: dict[str, Any]) -> None:
    fused, reference = (job_of(optimizer=optimizer, **options) for _ in range(2))
    losses = run(CpuMF(fused), 200), run(ReferenceEngine(reference), 200)
    assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)
    # P̂'s logits are sums of μ differences: of 40, the reference itself is half a TOLERANCE away from float64.
    assert largest_difference(fused, reference) < 2 * TOLERANCE


@given(st.integers(0, 10**6), st.sampled_from(["row", "dense"]), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=20)
def test_steps_of_any_shape_stay_within_the_tolerance(seed: int, optimizer: str, n: int, mu: int) -> None:
    shape = {"d": 1 + seed % 40, "n_interactions": 1 + seed % 61, "n_groups": 2 + seed % 3}
    fused, reference = (job_of(seed=seed, optimizer=optimizer, n=n, mu=mu, **shape) for _ in range(2))
    run(CpuMF(fused), 8)
    run(ReferenceEngine(reference), 8)
    # Small rows cancel: of forty such jobs the float32 reference itself was up to 4e-5 away from float64.
    assert largest_difference(fused, reference) < 5 * TOLERANCE


def test_threads_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for n_threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n_threads: n)
        job = job_of()
        run(CpuMF(job), 40)
        results.append(everything(job))
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_an_update_on_a_copy_equals_an_update_in_place_and_is_written_at_the_end() -> None:
    in_place, on_copy = job_of(), job_of(same_batches_every_epoch=True)
    before = {name: value.clone() for name, value in on_copy.model.state_dict().items()}
    order = np.arange(len(on_copy.batches))
    engines = CpuMF(in_place), CpuMF(on_copy)
    losses = [[engine.epoch(order, key=3) for _ in range(4)] for engine in engines]
    assert losses[0] == losses[1]
    assert all(torch.equal(value, before[name]) for name, value in on_copy.model.state_dict().items())
    engines[1].finish(in_place=True)
    expected = everything(in_place)
    assert all(torch.equal(value, expected[name]) for name, value in everything(on_copy).items())


def test_drawing_a_part_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, in_parts = job_of(), job_of()
    run(CpuMF(whole), 40)
    monkeypatch.setattr(engine_module, "_MAX_BATCHES_DRAWN", 5)
    run(CpuMF(in_parts), 40)
    expected = everything(whole)
    assert all(torch.equal(value, expected[name]) for name, value in everything(in_parts).items())


@pytest.mark.slow
def test_rows_absent_for_thousands_of_steps_follow_the_reference() -> None:
    # Without the fairness loss: its gradient follows the signs of differences, which for denormal rows are chance.
    fused, reference = (job_of(optimizer="dense", std=0.01, lambda_=0.0) for _ in range(2))
    engines = CpuMF(fused), ReferenceEngine(reference)
    for engine in engines:
        for key in range(160):  # always the first batch: most users are absent, negatives touch every item
            engine.epoch(np.zeros(25, dtype=np.int64), key)
    absent = np.setdiff1d(np.arange(N_USERS), fused.batches.users[:SIZE])
    weights = [job.model.get_parameter("user.weight").detach()[absent] for job in (fused, reference)]
    assert all(0 < float(weight.abs().max()) < 1e-30 for weight in weights)  # denormals are not flushed to 0
    order = np.arange(len(fused.batches))
    losses = [engine.epoch(order, key=160) for engine in engines]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    after = [job.model.get_parameter("user.weight").detach() for job in (fused, reference)]
    assert float((after[0] - after[1]).abs().max()) < 1e-4 * float(after[1].abs().max())


# ── when something goes wrong ────────────────────────────────────────────────────────────


def test_undo_restores_what_finish_wrote() -> None:
    job = job_of(same_batches_every_epoch=True)
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    engine = CpuMF(job)
    engine.epoch(np.arange(len(job.batches)), key=3)
    engine.undo()  # nothing was written yet
    engine.finish(in_place=True)
    engine.finish(in_place=True)  # once is enough
    assert not torch.equal(job.model.get_parameter("user.weight"), before["user.weight"])
    engine.undo()
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())
    assert not state_tensors(job.optimizer, job.model)["user.weight/n_updates"].any()


def test_a_batch_may_be_larger_than_the_data() -> None:
    fused, reference = (job_of(size=10**9) for _ in range(2))
    run(CpuMF(fused), 3)
    run(ReferenceEngine(reference), 3)
    assert largest_difference(fused, reference) < TOLERANCE


@pytest.mark.few(2)
@pytest.mark.parametrize("optimizer", ["row", "dense"])
def test_the_smallest_temperature_that_is_allowed_gives_the_same_numbers(optimizer: str) -> None:
    """Single precision must neither overflow nor lose the gradient at τ = 1e-6."""
    smallest = MIN_TEMPERATURE
    options = {"optimizer": optimizer, "temperature": smallest, "lambda_": 2.0}
    fused, reference = job_of(**options), job_of(**options)
    losses = run(CpuMF(fused), 30), run(ReferenceEngine(reference), 30)
    assert np.isfinite(losses[0]).all()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    with pytest.raises(ConfigurationError, match="temperature"):
        DisparityLoss(temperature=smallest / 2)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_result_is_written_into_shared_memory_only_where_that_is_allowed(in_place: bool) -> None:
    """`finish` writes over the rows of an older state, or into memory of its own; the numbers are the same."""
    job, alone = job_of(same_batches_every_epoch=True), job_of(same_batches_every_epoch=True)
    older = job.model.sharing_memory()
    before = {name: value.clone() for name, value in older.state_dict().items()}
    order = np.arange(len(job.batches))
    engines = CpuMF(job), CpuMF(alone)
    for engine, where in zip(engines, (in_place, True), strict=True):
        engine.epoch(order, key=3)
        engine.finish(in_place=where)
    expected = everything(alone)
    assert all(torch.equal(value, expected[name]) for name, value in everything(job).items())
    is_untouched = all(torch.equal(value, before[name]) for name, value in older.state_dict().items())
    assert is_untouched == (not in_place)
    engines[0].undo()
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())


# ── which engine ─────────────────────────────────────────────────────────────────────────


class Shifted(MFScorer):
    """Scores otherwise than the class it derives from."""


class Halved(UserTable):
    """Looks up something else than its rows."""


class Weighted(DisparityLoss):
    """A fairness loss derived from the paper's."""


class Doubled(Objective):
    """An objective with a formula of its own."""

    def __call__(self, *args: Any, **options: Any) -> torch.Tensor:
        return 2 * super().__call__(*args, **options)


def frozen(job: TrainingJob) -> TrainingJob:
    job.model.get_parameter("item.weight").requires_grad_(False)
    return job


def double_precision(job: TrainingJob) -> TrainingJob:
    job.model.double()
    return job


def derived(job: TrainingJob) -> TrainingJob:
    return replace(job, model=Shifted(N_USERS, N_ITEMS, embedding_dim=8))


def other_table(job: TrainingJob) -> TrainingJob:
    job.model.user = Halved(N_USERS, 8)
    return job


def undecayed(job: TrainingJob) -> TrainingJob:
    job.model.item.weight_decay = False
    return job


def other_loss(job: TrainingJob) -> TrainingJob:
    return replace(job, objective=replace(job.objective, loss=sampled_softmax_loss))


def wrapped_loss(job: TrainingJob) -> TrainingJob:
    return replace(job, objective=replace(job.objective, loss=lambda scores: bpr_loss(scores) + 0))


def other_fairness(job: TrainingJob) -> TrainingJob:
    return replace(job, objective=replace(job.objective, fairness=lambda scores, groups, signs: scores.sum()))


def derived_fairness(job: TrainingJob) -> TrainingJob:
    return replace(job, objective=replace(job.objective, fairness=Weighted()))


def derived_objective(job: TrainingJob) -> TrainingJob:
    return replace(job, objective=Doubled(lambda_=0.5, n=4, mu=4))


def with_extra_loss(job: TrainingJob) -> TrainingJob:
    return replace(job, extra_loss=lambda model, batch: batch.scores.square().mean())


@pytest.mark.parametrize(
    "change",
    [
        frozen,
        double_precision,
        derived,
        other_table,
        undecayed,
        other_loss,
        wrapped_loss,
        other_fairness,
        derived_fairness,
        derived_objective,
        with_extra_loss,
    ],
)
def test_an_unsupported_job_runs_on_the_reference_engine(
    change: Callable[[TrainingJob], TrainingJob],
) -> None:
    assert choose_engine("auto", job_of()) is CpuMF
    assert choose_engine("reference", job_of()) is ReferenceEngine
    assert choose_engine("auto", change(job_of())) is ReferenceEngine
    with pytest.raises(ConfigurationError, match=r"no fused engine can run this job: .*; use auto or reference"):
        choose_engine("fused", change(job_of()))


@pytest.mark.parametrize("change", [other_fairness, derived_fairness])
def test_a_fairness_loss_of_weight_0_does_not_matter(change: Callable[[TrainingJob], TrainingJob]) -> None:
    assert choose_engine("fused", change(job_of(lambda_=0.0))) is CpuMF


def test_an_extra_loss_is_added_to_every_batch_and_sees_it() -> None:
    seen: list[Batch] = []

    def extra(model: Scorer, batch: Batch) -> torch.Tensor:
        seen.append(batch)
        return torch.tensor(3.0)

    plain, more = job_of(), replace(job_of(), extra_loss=extra)
    order = np.arange(len(plain.batches))
    assert ReferenceEngine(more).epoch(order, 5) == pytest.approx(ReferenceEngine(plain).epoch(order, 5) + 3)
    assert len(seen) == len(order)
    assert torch.equal(seen[0].users, torch.from_numpy(plain.batches.users[:SIZE]))
    assert torch.equal(seen[0].items[:, 0], torch.from_numpy(plain.batches.items[:SIZE]))
    assert seen[0].scores.shape == seen[0].items.shape == (SIZE, 5)
    assert seen[0].context is NO_CONTEXT


@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("name", ["fused", "reference"])
def test_an_engine_that_works_on_a_copy_changes_nothing_before_finish(name: Any, repeats: bool, optimizer: str) -> None:
    job = job_of(optimizer=optimizer, same_batches_every_epoch=repeats)
    engine = choose_engine(name, job)
    works_on_copy = engine.works_on_copy(job)
    assert works_on_copy == (name == "fused" and optimizer == "row" and repeats)
    before = job.model.get_parameter("user.weight").detach().clone()
    engine(job).epoch(np.arange(len(job.batches)), key=3)
    assert torch.equal(job.model.get_parameter("user.weight"), before) == works_on_copy


def test_only_the_differentiable_hit_is_compiled() -> None:
    assert choose_engine("auto", job_of(surrogate="log-likelihood")) is ReferenceEngine
    with pytest.raises(ConfigurationError, match="log-likelihood"):
        choose_engine("fused", job_of(surrogate="log-likelihood"))
    assert choose_engine("fused", job_of(surrogate="log-likelihood", lambda_=0.0)) is CpuMF
