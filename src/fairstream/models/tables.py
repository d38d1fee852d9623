"""Embedding tables whose rows are users or items, and which grow."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Table(nn.Embedding):
    """One row of numbers per user or per item, started from N(0, 0.01²).

    `decayed=False` keeps L2 off the table (the biases of NCF).
    """

    def __init__(self, n_rows: int, n_columns: int, *, decayed: bool = True) -> None:
        super().__init__(n_rows, n_columns, _weight=with_rows(torch.empty(0, n_columns), n_rows))
        self.decayed = decayed
        self._made = self.weight.data_ptr()
        """The memory that was made here and has room behind its rows; any other may be somebody else's."""
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.01)

    def grow(self, n_rows: int) -> None:
        """Append freshly started rows; the rows that are there keep their values.

        The parameter stays the same object, so an optimizer that holds it goes on holding it.
        """
        n_before, n_new = self.num_embeddings, n_rows - self.num_embeddings
        if n_new > 0:
            fresh = torch.empty(n_new, self.embedding_dim, dtype=self.weight.dtype)
            nn.init.normal_(fresh, std=0.01)
            is_ours = self.weight.data_ptr() == self._made
            self.weight.data = with_rows(self.weight.data, n_rows, is_ours=is_ours)
            self._made = self.weight.data_ptr()
            self.weight.data[n_before:] = fresh.to(self.weight.device)
            self.num_embeddings = n_rows

    def drop(self, row: int) -> None:
        """Take a row out; the later ones move up."""
        self.weight.data = without_row(self.weight.data, row)
        self.num_embeddings -= 1


def without_row(tensor: Tensor, row: int) -> Tensor:
    """The other rows, in memory of their own."""
    return torch.cat([tensor[:row], tensor[row + 1 :]])


def with_rows(tensor: Tensor, n_rows: int, *, is_ours: bool = True) -> Tensor:
    """The same rows and room for more behind them; what is in the new ones is undefined.

    As long as the room that an earlier call has left behind the rows lasts (an eighth of them),
    nothing is copied: in the long run growing costs as much as the new rows, not as the table.
    """
    storage, columns = tensor.untyped_storage(), tensor.shape[1:]
    n_bytes = n_rows * columns.numel() * tensor.element_size()
    if is_ours and tensor.storage_offset() == 0 and tensor.is_contiguous() and 0 < n_bytes <= storage.nbytes():
        flat = tensor.new_empty(0).set_(storage)
        return flat[: n_rows * columns.numel()].view(n_rows, *columns)
    roomy = tensor.new_empty(n_rows + n_rows // 8, *columns)  # memory that is not written to is not taken
    roomy[: len(tensor)] = tensor
    return roomy[:n_rows]


class UserTable(Table):
    """A table with one row per user.

    >>> table = UserTable(2, 3)
    >>> table.grow(5)
    >>> tuple(table.weight.shape)
    (5, 3)
    """


class ItemTable(Table):
    """A table with one row per item."""
