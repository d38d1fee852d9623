"""Adam on one row of a table, with the L2 term inside the gradient.

g ← g + l2 · w,   m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²
w ← w − lr · m / (1 − β₁ⁿ) / (√(v / (1 − β₂ⁿ)) + ε)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairstream.compiled import njit, njit_inline

_LOOK_EVERY = 64
_LONG_ENOUGH = 16
"""Times that a row is found trembling before it is put to sleep."""
_FEW_BITS = np.float32(5e-42)
"""A few thousand times the smallest number that float32 knows."""
_INVISIBLE = np.float32(1e-30)
_BLOCK_BITS = 6

Floats = np.ndarray[Any, np.dtype[np.float32]]


class Table(NamedTuple):
    """The weights of a table and Adam's memory of them, all changed in place."""

    weight: Floats
    mean: Floats
    """m"""
    square: Floats
    """v"""
    n_updates: Floats
    """(rows,) row Adam: how often each row has been updated."""
    frozen_since: np.ndarray[Any, np.dtype[np.int64]]
    """(rows,) dense Adam: the step up to which a row that is asleep is up to date; −k where it is awake and has
    been found trembling the last k times."""


class Adam(NamedTuple):
    """What the rule needs to know besides the row."""

    learning_rate: np.float32
    beta1: np.float32
    rest1: np.float32
    """1 − β₁, not of the rounded β₁: for β₂ that would be wrong in its fifth digit."""
    beta2: np.float32
    rest2: np.float32
    beta2_exact: float
    epsilon: np.float32
    mean_scale: Floats
    """1 / (1 − β₁ⁿ) for n = 0, 1, 2 …; the last entry holds for all that follow."""
    square_scale: Floats
    """1 / (1 − β₂ⁿ)"""


@njit_inline
def owner(row: Any, n_threads: Any) -> Any:
    """The thread (of a power of two) that a row belongs to.

    Rows go in blocks: what is kept for neighbours lies in one cache line, which two threads that
    write to it would take from each other all the time.
    """
    return (row >> _BLOCK_BITS) & (n_threads - 1)


@njit_inline
def update_row(table: Any, row: Any, gradient: Any, scale: Any, l2: Any, adam: Any, n: Any) -> None:
    """One update of a row, the n-th one, by `scale` · `gradient`."""
    n = min(n, len(adam.mean_scale) - 1)
    step, square_scale = adam.learning_rate * adam.mean_scale[n], adam.square_scale[n]
    beta1, beta2, rest1, rest2, epsilon = adam.beta1, adam.beta2, adam.rest1, adam.rest2, adam.epsilon
    weight, mean, square = table.weight[row], table.mean[row], table.square[row]
    for k in range(len(gradient)):
        g = scale * gradient[k] + l2 * weight[k]
        m = beta1 * mean[k] + rest1 * g
        v = beta2 * square[k] + rest2 * g * g
        mean[k] = m
        square[k] = v
        weight[k] -= step * m / (np.sqrt(v * square_scale) + epsilon)


@njit
def update_idle_rows(
    table: Any, heads: Any, nothing: Any, l2: Any, adam: Any, n: Any, thread: Any, n_threads: Any
) -> None:
    """Dense Adam on the rows that a batch does not touch, where L2 alone drives them: step n.

    It drives them down until m can hold no more than a few bits of them, and from there on they
    do nothing but tremble (|w| ~ 1e−37), at the price of numbers too small for the machine's full
    speed. A row that has trembled long enough to point anywhere is put to sleep. All that goes on
    meanwhile is v ← β₂ v, which is made up for when a batch wakes it. `nothing` is a row of zeros.
    """
    looks = n % _LOOK_EVERY == 0
    for row in range(len(heads)):
        if owner(row, n_threads) != thread:
            continue
        if heads[row] > 0:
            _make_up(table, row, adam, n - 1)
            table.frozen_since[row] = 0
        elif table.frozen_since[row] <= 0:
            update_row(table, row, nothing, np.float32(1.0), l2, adam, n)
            if looks:
                n_found = 1 - table.frozen_since[row] if _only_trembles(table, row) else 0
                table.frozen_since[row] = n if n_found == _LONG_ENOUGH else -n_found


@njit
def catch_up(table: Any, adam: Any, n: Any) -> None:
    """Bring every row up to step n."""
    for row in range(len(table.frozen_since)):
        _make_up(table, row, adam, n)


@njit_inline
def _make_up(table: Any, row: Any, adam: Any, n: Any) -> None:
    if 0 < table.frozen_since[row] < n:
        faded = np.float32(adam.beta2_exact ** (n - table.frozen_since[row]))
        for k in range(table.square.shape[1]):
            table.square[row, k] *= faded
        table.frozen_since[row] = n


@njit_inline
def _only_trembles(table: Any, row: Any) -> Any:
    moves = False
    for k in range(table.weight.shape[1]):
        moves |= (abs(table.mean[row, k]) > _FEW_BITS) | (abs(table.weight[row, k]) > _INVISIBLE)
    return not moves
