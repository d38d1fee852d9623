"""Adver: the model learns to recommend and to hide the group, a discriminator learns to find it (appendix, "Adver")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairstream.data import UNKNOWN
from fairstream.errors import ConfigurationError, ModelError
from fairstream.models import Context, Model, Scorer, UserTable
from fairstream.training import Batches, EngineName
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.engines.cuda_graph import CapturedEngine
from fairstream.training.optimizers import grow_state
from fairstream.training.reference import ReferenceEngine

N_DISCRIMINATOR_STEPS: Final = 10  # steps of the discriminator for one of the model's
DROPOUT: Final = 0.3
_HIDDEN: Final = (128, 256, 128, 128, 64, 32)
_SLOPE: Final = 0.2
_DISCRIMINATOR = "group_discriminator"


class Filter(nn.Module):
    """f(p_u): d → 2d → d, a leaky ReLU after each layer, batch norm at the end.

    >>> import torch
    >>> tuple(Filter(8)(torch.zeros(5, 8)).shape)
    (5, 8)
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(d, 2 * d), nn.LeakyReLU(), nn.Linear(2 * d, d), nn.LeakyReLU())
        self.norm = nn.BatchNorm1d(d)

    def forward(self, rows: Tensor) -> Tensor:
        """(B, d) → (B, d)."""
        hidden = self.layers(rows)
        if len(rows) > 1:
            return self.norm(hidden)
        # A batch of one has no variance: normalise it by the running statistics.
        norm = self.norm
        return F.batch_norm(hidden, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


class Discriminator(nn.Module):
    """D(f(p_u)): which group a filtered embedding belongs to. Seven layers, leaky ReLUs, dropout.

    >>> import torch
    >>> discriminator = Discriminator(8)
    >>> discriminator.grow(3)
    >>> tuple(discriminator(torch.zeros(5, 8)).shape)
    (5, 3)
    """

    def __init__(self, d: int, *, dropout: float = DROPOUT) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise((d, *_HIDDEN)):
            layers += [nn.Linear(n_in, n_out), nn.LeakyReLU(_SLOPE), nn.Dropout(dropout)]
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(_HIDDEN[-1], 2)

    def forward(self, rows: Tensor) -> Tensor:
        """(B, d) → one logit per group (B, G)."""
        return self.head(self.hidden(rows))

    def loss(self, rows: Tensor, codes: Tensor) -> Tensor:
        """L_D: the cross-entropy over the users whose group is known; there has to be one."""
        return F.cross_entropy(self(rows), codes, ignore_index=UNKNOWN)

    def grow(self, n_groups: int) -> None:
        """Add outputs for new groups.

        Their weights start at 0 and the parameters stay the same objects, so neither the random draws nor
        the optimizer change.
        """
        head, n_new = self.head, n_groups - self.head.out_features
        if n_new > 0:
            head.weight.data = F.pad(head.weight.data, (0, 0, 0, n_new))
            head.bias.data = F.pad(head.bias.data, (0, n_new))
            head.out_features = n_groups

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Grow first: a checkpoint may have more groups than a fresh network."""
        if (stored := state_dict.get(f"{prefix}head.bias")) is not None:
            self.grow(len(stored))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class FilteredUserTable(UserTable):
    """Returns f(p_u) instead of p_u, for the rows of an existing table.

    The filter belongs to the model, which saves it once for all of its tables.
    """

    def __init__(self, table: UserTable, shared: Filter) -> None:
        super().__init__(0, table.embedding_dim, weight_decay=table.weight_decay)
        self.weight, self.num_embeddings = table.weight, table.num_embeddings
        self._shared = (shared,)  # a tuple, so that PyTorch does not register it as a part of the table

    def forward(self, users: Tensor) -> Tensor:
        """Users (B,) → filtered embeddings (B, d)."""
        return self._shared[0](super().forward(users))


@dataclass(frozen=True)
class FilteredModel:
    """A model with one filter on all of its user embeddings, and a discriminator to train it against.

    >>> from fairstream.models import MF
    >>> model = FilteredModel(MF()).build(10, 20)
    >>> type(model).__name__, type(model.user).__name__
    ('MFScorer', 'FilteredUserTable')
    """

    base: Model

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the base would copy or pickle itself, without the filter
            raise AttributeError(name)
        return getattr(self.base, name)

    def build(self, n_users: int, n_items: int, *, with_features: bool = False, with_times: bool = False) -> Scorer:
        """Return a freshly initialised model with its filter."""
        model = self.base.build(n_users, n_items, with_features=with_features, with_times=with_times)
        tables = user_embedding_tables(model)
        widths = {table.embedding_dim for table in tables}
        if len(widths) != 1 or any(type(table) is not UserTable for table in tables):
            kinds = ", ".join(f"{type(table).__name__} of {table.embedding_dim}" for table in tables) or "none"
            raise ModelError(
                f"Adver filters user embeddings: expected UserTables of one width of 2 or more, found {kinds}; "
                f"use a model that has them, or another method"
            )
        d = widths.pop()
        shared = Filter(d)
        replacements = {table: FilteredUserTable(table, shared) for table in tables}
        for name, part in list(model.named_modules(remove_duplicate=False)):
            if isinstance(part, UserTable) and part in replacements:
                owner, _, own = name.rpartition(".")
                setattr(model.get_submodule(owner), own, replacements[part])
        model.add_module("user_filter", shared)
        model.add_module(_DISCRIMINATOR, Discriminator(d))
        return model


def user_embedding_tables(model: Scorer) -> list[UserTable]:
    """Return the tables of user embeddings; a table of a single column is a bias."""
    return [table for table in model.tables() if isinstance(table, UserTable) and table.embedding_dim > 1]


def discriminator_of(model: Scorer) -> Discriminator:
    """The discriminator of a filtered model."""
    discriminator = model.get_submodule(_DISCRIMINATOR)
    assert isinstance(discriminator, Discriminator)
    return discriminator


@contextmanager
def capture_outputs(model: Scorer) -> Iterator[list[Tensor]]:
    """Collect the outputs of the filter inside the block, (B, d) for each call."""
    outputs: list[Tensor] = []
    tables = [table for table in model.tables() if isinstance(table, FilteredUserTable)]
    hooks = [table.register_forward_hook(lambda *call: outputs.append(call[-1])) for table in tables]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


class AdversarialEngine(ReferenceEngine):
    """min over the model, max over the discriminator: L_rec − γ L_D   (appendix, "Adver").

    On each batch the discriminator takes ten steps down L_D on the current filtered embeddings, then the
    model takes one step down the whole loss against the new discriminator. One optimizer holds the
    parameters of both; a step moves those that have a gradient.
    """

    def __init__(self, job: TrainingJob, *, gamma: float) -> None:
        super().__init__(job)
        self._gamma = gamma
        discriminator = self._discriminator = discriminator_of(job.model)
        discriminator.grow(len(job.signs))
        grow_state(job.optimizer)
        self._against = [p for p in discriminator.parameters() if p.requires_grad]
        theirs = {id(p) for p in discriminator.parameters()}
        self._for = [p for p in job.model.parameters() if p.requires_grad and id(p) not in theirs]
        batches = job.batches
        assert isinstance(batches, Batches)
        is_known = batches.codes[batches.users] != UNKNOWN
        # Computed once on the host: reading it from the device would block every step.
        self._have_known = np.logical_or.reduceat(is_known, np.arange(0, len(is_known), batches.size))

    def _conditions(self, b: int) -> dict[str, bool]:
        return {**super()._conditions(b), "has_known": bool(self._have_known[b])}

    def _learn(
        self,
        users: Tensor,
        candidates: Tensor,
        groups: Tensor,
        context: Context,
        *,
        has_known: bool = True,
        **conditions: bool,
    ) -> Tensor:
        """Take the steps on one batch; without a user of known group it trains on L_rec alone."""
        with capture_outputs(self.job.model) as outputs:
            loss = self._loss(users, candidates, groups, context, **conditions)
        if not outputs:
            raise ModelError("Adver filters user embeddings, but this model scores without its own; use another method")
        if has_known:
            rows, codes = torch.cat(outputs), groups.repeat(len(outputs))  # (m B, d), (m B,) with m embeddings a user
            fixed_rows = rows.detach()
            for _ in range(N_DISCRIMINATOR_STEPS):
                self._descend(self._discriminator.loss(fixed_rows, codes), self._against)
            loss = loss - self._gamma * self._discriminator.loss(rows, codes)
        self._descend(loss, self._for)
        return loss.detach()

    def _descend(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        """Take one step of these parameters alone: the others have no gradient."""
        optimizer = self.job.optimizer
        optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
        optimizer.step()


class CapturedAdversarialEngine(CapturedEngine, AdversarialEngine):
    """The same steps on CUDA, all eleven of a batch in one graph. Dropout draws from PyTorch's generator, as usual."""


def choose_adversarial_engine(name: EngineName, job: TrainingJob, *, gamma: float) -> Callable[[TrainingJob], Engine]:
    """Return Adver's engine of this name, for a `FilteredModel`."""
    reason = CapturedAdversarialEngine.unsupported(job)
    if name != "reference" and reason is None:
        return partial(CapturedAdversarialEngine, gamma=gamma)
    if name == "fused":
        raise ConfigurationError(f"Adver has no fused engine for this job: {reason}; use auto or reference")
    return partial(AdversarialEngine, gamma=gamma)
