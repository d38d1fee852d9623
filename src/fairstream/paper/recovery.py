"""How well a fresh classifier recovers the group from the user embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.evaluation.ranking import evaluating
from fairstream.models import Scorer
from fairstream.paper.adver import user_embedding_tables

N_FOLDS: Final = 5
# Few steps and much L2: a classifier that memorises users would not recognise others of their group.
_N_HIDDEN, _N_STEPS, _LEARNING_RATE, _L2 = 16, 60, 0.02, 3e-2
_N_RESAMPLES: Final = 10_000


@dataclass(frozen=True)
class GroupProbe:
    """How often a fresh classifier is right about held-out users."""

    balanced_accuracy: float  # the mean over the groups of the share of their users that it recognises
    interval: tuple[float, float]  # the 95 % bootstrap interval over users; too wide where the group is obvious
    chance: float  # the accuracy of guessing: one in the number of groups
    n_users: int


@torch.no_grad()
def user_embeddings(model: Scorer, users: Rows) -> Tensor:
    """Return the m embeddings of each user side by side, (U,) → (U, m d), as the model uses them: filtered or not.

    >>> from fairstream.models import NCFScorer
    >>> tuple(user_embeddings(NCFScorer(10, 20, embedding_dim=8), np.arange(6)).shape)
    (6, 16)
    """
    rows = torch.as_tensor(users, device=model.device)
    with evaluating(model):
        parts = [table(rows) for table in user_embedding_tables(model)]
    return torch.cat(parts, dim=1) if parts else torch.empty(len(users), 0)


def group_recovery(embeddings: Tensor, codes: Codes, *, rng: np.random.Generator) -> GroupProbe | None:
    """Cross-validated balanced accuracy of a small perceptron that predicts the group from the embedding.

    Embeddings (U, d) and codes (U,). Users of unknown group are left out, and groups with fewer
    users than folds; None where fewer than two groups are left.

    >>> codes = np.arange(60, dtype=np.int16) % 2
    >>> telling = torch.tensor(codes)[:, None] + torch.zeros(60, 3)
    >>> group_recovery(telling, codes, rng=np.random.default_rng(0)).balanced_accuracy
    1.0
    """
    names, sizes = np.unique(codes[codes >= 0], return_counts=True)
    names = names[sizes >= N_FOLDS]
    if len(names) < 2 or embeddings.shape[1] == 0:
        return None
    members = np.flatnonzero(np.isin(codes, names))
    labels = np.searchsorted(names, codes[members])  # 0 … G − 1
    folds = _stratified_folds(labels, rng)
    x = embeddings.detach().to("cpu", torch.float64)[torch.from_numpy(members)]
    right = _held_out_predictions(x, labels, folds, rng) == labels
    n_of = np.bincount(labels)
    shares = np.bincount(labels, weights=right) / n_of
    # Resampling a group's users makes the number of correct ones binomial. Half as many are drawn: folds learn
    # from each other, so their errors are correlated, and the variance is up to twice that of independent users.
    n_drawn = n_of // 2
    drawn = (rng.binomial(n_drawn, shares, size=(_N_RESAMPLES, len(n_of))) / n_drawn).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return GroupProbe(float(shares.mean()), (float(low), float(high)), 1 / len(n_of), len(labels))


def _stratified_folds(labels: Any, rng: np.random.Generator) -> Any:
    """Return a fold for each user (U,), with every group spread over all folds."""
    folds = np.empty(len(labels), dtype=np.int64)
    for label in range(labels.max() + 1):
        members = rng.permutation(np.flatnonzero(labels == label))
        folds[members] = np.arange(len(members)) % N_FOLDS
    return folds


def _held_out_predictions(x: Tensor, labels: Any, folds: Any, rng: np.random.Generator) -> Any:
    """Return the group of each user (U,) as predicted by the classifier of the other folds.

    The classifiers of all folds are trained together: they share the embeddings and the first matrix
    product, and each gives weight 0 to its held-out users.
    """
    spread = x.std(dim=0)
    x = ((x - x.mean(dim=0)) / torch.where(spread > 0, spread, 1)).float()
    n_groups = labels.max() + 1
    inwards = _initial_weights(rng, x.shape[1], (x.shape[1], N_FOLDS * _N_HIDDEN))
    biases = torch.zeros(N_FOLDS * _N_HIDDEN, requires_grad=True)
    outwards = _initial_weights(rng, _N_HIDDEN, (N_FOLDS, _N_HIDDEN, n_groups))
    offsets = torch.zeros(N_FOLDS, 1, n_groups, requires_grad=True)

    def logits() -> Tensor:
        hidden = torch.relu(torch.addmm(biases, x, inwards)).view(-1, N_FOLDS, _N_HIDDEN)
        return hidden.transpose(0, 1) @ outwards + offsets  # (F, U, G)

    seen = folds != np.arange(N_FOLDS)[:, None]  # (F, U)
    n_seen = np.stack([np.bincount(labels[row], minlength=n_groups) for row in seen])
    weights = torch.from_numpy(np.where(seen, 1 / (n_groups * n_seen[:, labels]), 0)).float()
    targets = torch.from_numpy(labels)
    parameters = [inwards, biases, outwards, offsets]
    optimizer = torch.optim.Adam(parameters, lr=_LEARNING_RATE, weight_decay=_L2)
    for _ in range(_N_STEPS):
        losses = F.cross_entropy(logits().flatten(0, 1), targets.repeat(N_FOLDS), reduction="none")
        optimizer.zero_grad(set_to_none=True)
        (losses * weights.flatten()).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        predicted = logits().argmax(dim=2).numpy()
    return predicted[folds, np.arange(len(labels))]


def _initial_weights(rng: np.random.Generator, n_inputs: int, shape: tuple[int, ...]) -> Tensor:
    """Return initial weights of the scale 1 / √(number of inputs)."""
    return torch.from_numpy(rng.normal(0, n_inputs**-0.5, shape)).float().requires_grad_()
