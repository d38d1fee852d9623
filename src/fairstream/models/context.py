"""What a model may know at the moment of scoring, built in one place for training, evaluation and serving."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairstream.data import History, Rows

if TYPE_CHECKING:
    from fairstream.models.scorer import Scorer

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Task = Literal["event", "next"]
TASKS: tuple[Task, ...] = ("event", "next")
"""What a list is made for: the user's very next event, or all that the user does in the next period."""


@dataclass(frozen=True)
class Reads:
    """What a model wants to find in its `Context`.

    >>> Reads(history=50).history
    50
    """

    history: int = 0
    """How many of the user's latest items; 0: none."""
    graph: bool = False
    """Whether the graph of all interactions so far."""


@dataclass(frozen=True, eq=False)
class Graph:
    """All interactions so far as edges between users and items."""

    users: Tensor
    """(E,)"""
    items: Tensor
    """(E,)"""
    n_users: int
    n_items: int

    @cached_property
    def normalized_adjacency(self) -> Tensor:
        """D^−½ A D^−½ of the bipartite graph as a sparse matrix, users first, then items."""
        n = self.n_users + self.n_items
        rows, columns = self.users, self.n_users + self.items
        at = torch.stack([torch.cat([rows, columns]), torch.cat([columns, rows])])  # (2, 2 E)
        degree = torch.bincount(at[0], minlength=n).clamp(min=1).float()
        weights = (degree[at[0]] * degree[at[1]]).rsqrt()
        return torch.sparse_coo_tensor(at, weights, (n, n), check_invariants=False).coalesce()

    @cached_property
    def _compressed_adjacency(self) -> Tensor:
        with warnings.catch_warnings():  # PyTorch says once per process that this layout is new
            warnings.simplefilter("ignore", UserWarning)
            return self.normalized_adjacency.to_sparse_csr()

    def propagate(self, rows: Tensor) -> Tensor:
        """D^−½ A D^−½ rows: one step along the edges, as in LightGCN.

        Faster than `torch.sparse.mm` with `normalized_adjacency`, forwards and backwards.

        Parameters
        ----------
        rows
            (n_users + n_items, d) those of the users first.

        Returns
        -------
        Tensor
            The same shape.

        Examples
        --------
        >>> graph = Graph(torch.tensor([0, 1]), torch.tensor([0, 0]), n_users=2, n_items=1)
        >>> graph.propagate(torch.tensor([[1.0], [3.0], [0.0]])).tolist()
        [[0.0], [0.0], [2.8284270763397217]]

        """
        product: Tensor = _SymmetricProduct.apply(self._compressed_adjacency, rows)  # type: ignore[no-untyped-call]
        return product


class _SymmetricProduct(torch.autograd.Function):
    """A X for a symmetric sparse A: the gradient is A again, where PyTorch would transpose it at every step."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, rows: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix @ rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix @ grads[0]


@dataclass(frozen=True, eq=False)
class Context:
    """What is known of B users at the moment that each is scored for."""

    history: Tensor | None = None
    """(B, L) the user's latest items before that moment, the latest last, padded with −1 at the front."""
    n_events: Tensor | None = None
    """(B,) how many events of the user there have been."""
    graph: Graph | None = None
    is_trained: Tensor | None = None
    """(B,) whether the model has been trained on the user."""
    task: Task = "event"


NO_CONTEXT = Context()


class ContextBuilder:
    """Builds the contexts of one model from one history.

    Training, evaluation and serving use the same builder, so a model cannot see the future in one
    of them and not in another.

    Parameters
    ----------
    reads
        What the model wants to know.
    history
        All events that may be known.
    trained
        (n_users,) the users whom the model has been trained on.
    device
        Where the model is.
    items
        The sorted rows of the items that the model can score; None: all of them.

    """

    def __init__(
        self,
        reads: Reads,
        history: History,
        trained: Mask | None = None,
        device: torch.device | str = "cpu",
        items: Rows | None = None,
    ) -> None:
        self.reads, self._history, self._trained, self._device = reads, history, trained, device
        self.items = items
        self._observed, self._task = history, TASKS[0]
        self._reads_nothing = not reads.history and not reads.graph

    @cached_property
    def _graph(self) -> Graph:
        users, items = (torch.as_tensor(column, device=self._device) for column in self._edges())
        return Graph(users, items, self._history.n_users, self._history.n_items)

    def _edges(self) -> tuple[Rows, Rows]:
        return self._history.users, self._history.items

    def observing(self, history: History) -> ContextBuilder:
        """The builder of users whose latest items come from a longer history; graph and trained users stay the same.

        What happens after an update is known and not learned: the model reads it, and nothing else has changed.
        """
        if self.reads.graph:
            _ = self._graph  # made once for both
        builder = copy.copy(self)
        builder._observed = history
        return builder

    def for_task(self, task: Task) -> ContextBuilder:
        """The builder of contexts in which lists are made for another task."""
        builder = copy.copy(self)
        builder._task = task
        return builder

    def index(self) -> None:
        """Sort now what `at` looks up, so that copies of this builder need not."""
        if self.reads.history:
            self._observed.index()

    @property
    def n_items(self) -> int:
        """Items that the model has learned of."""
        return self._history.n_items

    def at(self, users: Rows, before: Rows | None = None) -> Context:
        """The context of each of `users`, as of the event at position `before` (None: as of now)."""
        if self._reads_nothing:
            return NO_CONTEXT if self._task == NO_CONTEXT.task else Context(task=self._task)
        history = n_events = None
        if self.reads.history:
            latest, counts = self._observed.latest(users, self.reads.history, before)
            history, n_events = (torch.as_tensor(part, device=self._device) for part in (latest, counts))
        return Context(history, n_events, self._graph if self.reads.graph else None, task=self._task)

    def is_trained(self, users: Rows) -> Mask:
        """Whether the model has been trained on each of `users`."""
        mask: Mask = np.zeros(len(users), np.bool_)
        if self._trained is not None:
            known = (users >= 0) & (users < len(self._trained))
            mask[known] = self._trained[users[known]]
        return mask

    def can_score(self, model: Scorer, users: Rows, before: Rows | None = None) -> Mask:
        """For which of `users` the model has something to say, as `at`; the others get the fallback."""
        n_events = None
        if self.reads.history:
            n_events = torch.from_numpy(self._observed.latest(users, 1, before)[1])
        context = Context(n_events=n_events, is_trained=torch.from_numpy(self.is_trained(users)))
        mask: Mask = model.can_score(context).cpu().numpy()
        return mask
