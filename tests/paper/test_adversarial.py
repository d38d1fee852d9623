"""Adver's step: who moves when, on whose gradient, and what becomes of the group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adversarial_support import BATCH, N_BATCHES, discriminator, job_of, tensors
from fairstream import ConfigurationError, ItemTable, ModelError, Scorer, UserTable
from fairstream.models import NO_CONTEXT, Context, ContextBuilder, resolve_model
from fairstream.objectives import bpr_loss
from fairstream.paper.adver import (
    N_DISCRIMINATOR_STEPS,
    AdversarialEngine,
    CapturedAdversarialEngine,
    FilteredModel,
    choose_adversarial_engine,
    user_embedding_tables,
)
from fairstream.paper.recovery import group_recovery, user_embeddings
from fairstream.training import TrainingJob, make_optimizer

CASES = pytest.mark.parametrize(("model", "optimizer"), [(m, o) for m in ("mf", "ncf") for o in ("row", "dense")])
KEY = 7


class Watched(AdversarialEngine):
    """Takes the same steps and writes down what each of them moved, and on which gradients."""

    def __init__(self, job: TrainingJob, *, gamma: float) -> None:
        super().__init__(job, gamma=gamma)
        self.moved: list[set[str]] = []
        self.gradients: list[dict[str, Tensor]] = []

    def _descend(self, loss: Tensor, parameters: Any) -> None:
        before = {name: value.clone() for name, value in self.job.model.named_parameters()}
        super()._descend(loss, parameters)
        named = list(self.job.model.named_parameters())
        self.moved.append({name for name, value in named if not torch.equal(value, before[name])})
        self.gradients.append({name: p.grad.to_dense() for name, p in named if p.grad is not None})


def is_discriminators(name: str) -> bool:
    return name.startswith("group_discriminator.")


@pytest.mark.few(2)
@CASES
def test_ten_steps_of_the_discriminator_then_one_of_the_model(model: str, optimizer: Any) -> None:
    training = job_of(model, optimizer)
    engine = Watched(training, gamma=10.0)
    engine.epoch(np.arange(2), KEY)
    names = {name for name, _ in training.model.named_parameters()}
    theirs = {name for name in names if is_discriminators(name)}
    assert N_DISCRIMINATOR_STEPS == 10
    assert len(engine.moved) == 2 * 11
    for step, moved in enumerate(engine.moved):
        assert moved == (theirs if step % 11 < 10 else names - theirs)


@pytest.mark.few(2)
@CASES
def test_without_a_weight_the_models_gradient_is_that_of_the_recommendation_loss(model: str, optimizer: Any) -> None:
    training, alone = (job_of(model, optimizer) for _ in range(2))
    engine = Watched(training, gamma=0.0)
    engine.epoch(np.arange(1), KEY)
    at = alone.batches.span(0)
    users, items = (torch.from_numpy(column[at]) for column in (alone.batches.users, alone.batches.items))
    negatives = alone.sampler.draw(alone.batches.users, 4, KEY)[at]
    bpr_loss(alone.model(users, torch.cat([items[:, None], negatives], dim=1), NO_CONTEXT)).backward()
    expected = {name: p.grad.to_dense() for name, p in alone.model.named_parameters() if p.grad is not None}
    found = engine.gradients[-1]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_the_model_goes_against_the_discriminator(model: str) -> None:
    """The gradient is that of L_rec − γ L_D: linear in γ, with minus L_D's own as its slope."""
    found = {}
    for gamma in (0.0, 1.0, 3.0):
        engine = Watched(job_of(model, dropout=0.0), gamma=gamma)
        engine.epoch(np.arange(1), KEY)
        found[gamma] = engine.gradients[-1]
    differs = False
    for name, at_0 in found[0.0].items():
        once, thrice = found[1.0][name] - at_0, found[3.0][name] - at_0
        assert torch.allclose(thrice, 3 * once, atol=1e-4), name
        differs |= bool(once.abs().max() > 1e-2)
    assert differs
    alone = job_of(model, dropout=0.0)
    engine = Watched(alone, gamma=0.0)
    engine.epoch(np.arange(1), KEY)  # brings the discriminator where it was above
    again = job_of(model, dropout=0.0)
    discriminator(again).load_state_dict(discriminator(alone).state_dict())
    users = torch.from_numpy(again.batches.users[again.batches.span(0)])
    codes = torch.from_numpy(again.batches.codes).long()[users]
    tables = user_embedding_tables(again.model)
    discriminator(again).loss(torch.cat([t(users) for t in tables]), codes.repeat(len(tables))).backward()
    slope = {name: p.grad for name, p in again.model.named_parameters() if p.grad is not None}
    for name, value in slope.items():
        if not is_discriminators(name):
            assert torch.allclose(found[1.0][name] - found[0.0][name], -value, atol=1e-4), name


@pytest.mark.parametrize("optimizer", ["row", "dense"])
def test_a_batch_in_which_nobody_is_known_trains_on_the_recommendation_loss_alone(optimizer: Any) -> None:
    training = job_of(optimizer=optimizer, codes=np.full(40, -1))
    kept = {name: value.clone() for name, value in discriminator(training).state_dict().items()}
    engine = Watched(training, gamma=10.0)
    loss = engine.epoch(np.arange(N_BATCHES), KEY)
    assert len(engine.moved) == N_BATCHES
    assert loss > 0  # no loss of the discriminator's is taken off
    assert all(torch.equal(value, kept[name]) for name, value in discriminator(training).state_dict().items())


def test_users_of_unknown_group_do_not_change_what_the_discriminator_learns() -> None:
    """Dealing other embeddings to them changes nothing for it, once the filter lets rows through one by one."""
    codes = np.where(np.arange(40) < 20, np.arange(40) % 2, -1)
    found = []
    for shift in (0.0, 5.0):
        training = job_of(codes=codes, dropout=0.0)
        training.model.user_filter.norm = torch.nn.Identity()
        with torch.no_grad():
            training.model.user.weight[20:] += shift
        engine = Watched(training, gamma=10.0)
        engine.epoch(np.arange(1), KEY)
        found.append(engine.gradients[:10])
    for one, other in zip(*found, strict=True):
        assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", ["row", "dense"])
def test_groups_that_appear_later_are_learned_too(optimizer: Any) -> None:
    """The discriminator and the optimizer's state grow with them."""
    training = job_of(optimizer=optimizer)
    AdversarialEngine(training, gamma=1.0).epoch(np.arange(2), KEY)
    third = np.arange(40) % 3
    later = replace(training, batches=job_of(codes=third).batches, signs=(1.0, -1.0, -1.0))
    AdversarialEngine(later, gamma=1.0).epoch(np.arange(2), KEY)
    head = discriminator(training).head
    assert head.weight.shape == (3, 32)
    assert head.weight[2].abs().max() > 0
    state = training.optimizer.state[head.weight]
    assert len(state["exp_avg"]) == 3


def test_a_last_batch_of_one_can_be_learned_from() -> None:
    training = job_of(n_interactions=BATCH + 1)
    assert np.isfinite(AdversarialEngine(training, gamma=1.0).epoch(np.arange(2), KEY))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_the_adversary_takes_the_group_out(model: str) -> None:
    """Of embeddings that show it plainly, and that nobody needs to show it."""
    codes, found = np.arange(40, dtype=np.int16) % 2, {}
    for gamma in (0.0, 5.0):
        training = job_of(model, codes=codes)
        with torch.no_grad():
            for table in user_embedding_tables(training.model):
                table.weight[codes == 1, :3] += 0.1
        engine = AdversarialEngine(training, gamma=gamma)
        for epoch in range(4):
            torch.manual_seed(epoch)
            engine.epoch(np.arange(N_BATCHES), epoch)
        recovery = group_recovery(user_embeddings(training.model, np.arange(40)), codes, rng=np.random.default_rng(0))
        assert recovery is not None
        found[gamma] = recovery.balanced_accuracy
    assert found[0.0] > 0.85
    assert found[5.0] < 0.7


class Deaf(Scorer):
    """Has user embeddings and scores without them."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.user, self.item = UserTable(n_users, 4), ItemTable(n_items, 1)

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        return self.item(items).squeeze(-1)


def test_a_model_that_does_not_ask_its_embeddings_is_told_so() -> None:
    training = job_of()
    deaf = FilteredModel(resolve_model(Deaf)).build(40, 60)
    other = replace(training, model=deaf, optimizer=torch.optim.Adam(deaf.parameters()))
    with pytest.raises(ModelError, match="this model scores without its own; use another method"):
        AdversarialEngine(other, gamma=1.0).epoch(np.arange(1), KEY)


class Reader(Scorer):
    """Reads the user's latest items beside the user's row."""

    history_length = 2

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.user, self.item = UserTable(n_users, 4), ItemTable(n_items, 4, padding=True)

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        assert context.history is not None
        query = self.user(users) + self.item(context.history).sum(dim=1)
        return (self.item(items) @ query.unsqueeze(-1)).squeeze(-1)


def test_a_model_that_reads_the_history_is_given_it() -> None:
    training = job_of()
    reader = FilteredModel(resolve_model(Reader)).build(40, 60)
    other = replace(
        training,
        model=reader,
        optimizer=make_optimizer("row", reader, learning_rate=1e-2, l2=1e-4),
        contexts=ContextBuilder(Reader.history_length, training.contexts.history),
    )
    assert np.isfinite(AdversarialEngine(other, gamma=1.0).epoch(np.arange(2), KEY))


# ── the engine for CUDA, but for the capture itself ──────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_what_is_captured_is_the_same_step(model: str) -> None:
    codes = np.arange(40) % 2
    captured, eager = (job_of(model, codes=codes) for _ in range(2))
    quiet = np.unique(captured.batches.users[captured.batches.span(2)])
    for training in (captured, eager):
        training.batches.codes[quiet] = -1
    engines = CapturedAdversarialEngine(captured, gamma=2.0), AdversarialEngine(eager, gamma=2.0)
    for epoch in range(3):
        order = np.random.default_rng(epoch).permutation(N_BATCHES)
        losses = []
        for engine in engines:
            torch.manual_seed(epoch)
            losses.append(engine.epoch(order, KEY + epoch // 2))
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    ours, theirs = tensors(captured), tensors(eager)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not engines[1]._have_known.all()


@pytest.mark.few(1)
@CASES
def test_what_is_captured_is_the_same_step_in_double_precision(model: str, optimizer: Any) -> None:
    """In single precision the last digit of the start decides the loss after a few epochs, of either engine."""
    captured, eager = (job_of(model, optimizer, dropout=0.0, learning_rate=1e-3) for _ in range(2))
    for job in (captured, eager):
        job.model.double()
    engines = CapturedAdversarialEngine(captured, gamma=2.0), AdversarialEngine(eager, gamma=2.0)
    for epoch in range(2):
        losses = [engine.epoch(np.arange(N_BATCHES), KEY + epoch) for engine in engines]
        assert losses[0] == pytest.approx(losses[1], rel=1e-8)


def test_who_takes_the_steps() -> None:
    for name in ("auto", "reference"):
        job = job_of()
        assert type(choose_adversarial_engine(name, job, gamma=1.0)(job)) is AdversarialEngine
    with pytest.raises(ConfigurationError, match=r"no fused engine for this job: .*; use auto or reference"):
        choose_adversarial_engine("fused", job_of(), gamma=1.0)
