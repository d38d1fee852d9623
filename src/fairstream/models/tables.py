"""Embedding tables of users and items, which grow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OWN_DROPOUT = 0.1  # share of the own rows of items that training leaves out where items have features
_GENERATOR: ContextVar[torch.Generator | None] = ContextVar("generator of new rows", default=None)


@contextmanager
def drawing_rows_from(generator: torch.Generator) -> Iterator[None]:
    """Let tables draw new rows from this generator instead of PyTorch's global one."""
    token = _GENERATOR.set(generator)
    try:
        yield
    finally:
        _GENERATOR.reset(token)


class Table(nn.Embedding):
    """A matrix of learned rows, initialised from N(0, std²).

    Use `UserTable` and `ItemTable` for rows of users and items, and `Table` itself for anything else (positions,
    categories): it never grows.

    Parameters
    ----------
    n_rows, n_columns
        The shape of the matrix.
    weight_decay
        Whether L2 regularisation applies to the table (it does not to the biases of NCF).
    padding
        Whether the row −1 may be looked up; it is a zero vector that is never trained.
    std
        Standard deviation of the initial rows.

    """

    def __init__(
        self, n_rows: int, n_columns: int, *, weight_decay: bool = True, padding: bool = False, std: float = 0.01
    ) -> None:
        super().__init__(n_rows, n_columns, _weight=grow_rows(torch.empty(0, n_columns), n_rows))
        self.weight_decay, self.padding, self.std = weight_decay, padding, std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (...) → embeddings (..., d)."""
        if not self.padding or rows.numel() == 0:
            return super().forward(rows)
        if self.sparse:
            embeddings: Tensor = _SparsePadded.apply(self.weight, rows)  # type: ignore[no-untyped-call]
            return embeddings
        return super().forward(rows.clamp(min=0)).masked_fill((rows < 0).unsqueeze(-1), 0.0)

    def grow(self, n_rows: int) -> None:
        """Append freshly initialised rows; the existing rows keep their values.

        The parameter stays the same object, which optimizers refer to.
        """
        n_before, n_new = self.num_embeddings, n_rows - self.num_embeddings
        if n_new > 0:
            fresh = torch.empty(n_new, self.embedding_dim, dtype=self.weight.dtype)
            nn.init.normal_(fresh, std=self.std, generator=_GENERATOR.get())
            self.weight.data = grow_rows(self.weight, n_rows)
            self.weight.data[n_before:] = fresh.to(self.weight.device)
            self.num_embeddings = n_rows

    def drop(self, rows: Tensor) -> None:
        """Remove rows; the later ones move up."""
        self.weight.data = without_rows(self.weight.data, rows)
        self.num_embeddings = len(self.weight)


class _SparsePadded(torch.autograd.Function):
    """Rows (...) → embeddings, with a sparse gradient for exactly the rows that are looked up."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor) -> Tensor:
        is_padding = (rows < 0).unsqueeze(-1)
        ctx.save_for_backward(rows, is_padding)
        ctx.shape = weight.shape
        return nn.functional.embedding(rows.clamp(min=0), weight).masked_fill(is_padding, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        rows, is_padding = ctx.saved_tensors
        if rows.is_cuda:
            # Padding becomes a zero gradient of another row, or of the row −1, which `RowAdam` leaves out: a CUDA graph
            # needs a shape that does not depend on the rows.
            rows = torch.where(rows < 0, rows.amax(), rows).reshape(-1)
            values = grads[0].masked_fill(is_padding, 0.0).reshape(-1, ctx.shape[1])
        else:  # PyTorch would write the sum of the rows −1 before the first row
            is_row = ~is_padding.reshape(-1)
            rows, values = rows.reshape(-1)[is_row], grads[0].reshape(-1, ctx.shape[1])[is_row]
        return torch.sparse_coo_tensor(rows[None], values, ctx.shape, check_invariants=False), None


class UserTable(Table):
    """A table with one row per user.

    >>> table = UserTable(2, 3)
    >>> table.grow(5)
    >>> tuple(table.weight.shape)
    (5, 3)
    """


class ItemTable(Table):
    """A table with one row per item; with `padding=True` it can look up histories padded with −1.

    With `feature_buckets` the embedding of an item is its own row, which starts at 0, plus the sum of the rows of its
    n features, over √n, in a second table with this number of rows. So an item without events is known by its features.
    Training leaves out own rows at random, so that the features learn to stand alone.

    >>> table = ItemTable(4, 2, padding=True)
    >>> table(torch.tensor([-1])).tolist()
    [[0.0, 0.0]]
    >>> table = ItemTable(2, 3, feature_buckets=16)
    >>> table.set_features(torch.tensor([[17, -1], [3, 20]]))
    >>> torch.allclose(table(torch.tensor([1]))[0], table.features.weight[[3, 4]].sum(dim=0) / 2**0.5)
    True
    """

    codes: Tensor
    """(n_items, F) the buckets of each item's features, padded with −1."""

    def __init__(
        self, n_rows: int, n_columns: int, *, std: float = 0.01, feature_buckets: int = 0, **options: bool
    ) -> None:
        super().__init__(n_rows, n_columns, std=0.0 if feature_buckets else std, **options)
        self.features: Table | None = None
        if feature_buckets:
            self.own_dropout = nn.Dropout(OWN_DROPOUT)
            self.features = Table(feature_buckets, n_columns, padding=True, weight_decay=self.weight_decay, std=std)
            self.register_buffer("codes", torch.empty(n_rows, 0, dtype=torch.int64), persistent=False)

    def set_features(self, codes: Tensor) -> None:
        """Set the features of all items: (at least n_items, F) hashes ≥ 0, with −1 behind those of an item."""
        assert self.features is not None
        codes = codes[: self.num_embeddings]
        codes = codes[:, (codes >= 0).any(dim=0)]  # no wider than these items need: the sums depend on nothing else
        self.codes = torch.where(codes < 0, -1, codes % self.features.num_embeddings).to(self.weight.device)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (...) → embeddings (..., d)."""
        own = super().forward(rows)
        if self.features is None:
            return own
        codes = self.codes[rows.clamp(min=0)].masked_fill((rows < 0).unsqueeze(-1), -1)
        return self._without_some(own) + self._of_features(codes)

    def is_known(self, trained: Tensor) -> Tensor:
        """(n,) whether each of the first n items has a trained row, or shares a feature with an item that has one."""
        if self.features is None:
            return trained
        codes = self.codes[: len(trained)]
        known_features = trained.new_zeros(self.features.num_embeddings + 1)  # the last one stands for the padding
        known_features[codes[trained]] = True
        known_features[-1] = False
        return trained | known_features[codes].any(dim=1)

    def embeddings(self) -> Tensor:
        """(n_items, d) those of all items."""
        if self.features is None:
            return self.weight
        return self._without_some(self.weight) + self._of_features(self.codes)

    def _without_some(self, own: Tensor) -> Tensor:
        """Set whole rows (..., d) to 0 at random in training, and scale the others up."""
        return own * self.own_dropout(torch.ones_like(own[..., :1])) if self.training else own

    def _of_features(self, codes: Tensor) -> Tensor:
        assert self.features is not None
        n_features = (codes >= 0).sum(dim=-1, keepdim=True).clamp(min=1)
        scaled: Tensor = self.features(codes).sum(dim=-2) / n_features.sqrt()  # as long as one row, however many
        return scaled

    def grow(self, n_rows: int) -> None:
        """Append rows; new items have no features until `set_features`."""
        n_new = n_rows - self.num_embeddings
        super().grow(n_rows)
        if self.features is not None and n_new > 0:
            self.codes = F.pad(self.codes, (0, 0, 0, n_new), value=-1)


class _Capacity:
    """The number of used rows of one block of memory, over all tensors that share it.

    States share memory: the next one may append its rows after those of the previous one, but two successors of the
    same state must not append in the same place.
    """

    _lock = Lock()

    def __init__(self, pointer: int, used: int) -> None:
        self._pointer, self._used = pointer, used

    def claim(self, tensor: Tensor, n_rows: int) -> bool:
        """Reserve the rows after `tensor` up to `n_rows`; False if they are taken."""
        with self._lock:
            if self._pointer != tensor.data_ptr() or self._used != len(tensor):
                return False
            self._used = n_rows
            return True

    def __deepcopy__(self, memo: object) -> _Capacity:
        return self  # the copy lies in other memory, as the pointer shows

    def __reduce__(self) -> tuple[type[_Capacity], tuple[int, int]]:
        return _Capacity, (0, 0)


def grow_rows(tensor: Tensor, n_rows: int) -> Tensor:
    """Append uninitialised rows, up to `n_rows`.

    An eighth more is reserved, so that growth seldom copies: its cost follows the new rows, not the table.
    """
    columns, data = tensor.shape[1:], tensor.detach()
    capacity: _Capacity | None = getattr(tensor, "capacity", None)
    fits = n_rows * columns.numel() * data.element_size() <= data.untyped_storage().nbytes()
    if capacity is not None and fits and capacity.claim(data, n_rows):
        grown = data.new_empty(0).set_(data.untyped_storage())[: n_rows * columns.numel()].view(n_rows, *columns)
    else:
        block = data.new_empty(n_rows + n_rows // 8, *columns)  # the system provides memory once it is written
        block[: len(data)] = data
        grown = block[:n_rows]
        capacity = _Capacity(grown.data_ptr(), n_rows)
    keep_capacity(tensor if isinstance(tensor, nn.Parameter) else grown, capacity)
    return grown


def keep_capacity(tensor: Tensor, capacity: _Capacity | None) -> None:
    """Attach the use of its memory to a tensor."""
    if capacity is not None:
        tensor.capacity = capacity  # type: ignore[attr-defined]


def without_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Copy the other rows."""
    keep = torch.ones(len(tensor), dtype=torch.bool, device=tensor.device)
    keep[rows.to(tensor.device)] = False
    return tensor[keep]
