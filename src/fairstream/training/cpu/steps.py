"""The fused step of matrix factorisation: scores, loss, gradients and Adam of a batch, on one or more threads.

What comes out does not depend on how many threads there are. Scores are shared out by interaction;
the loss, a few thousand numbers, every thread computes for itself; the rows of the tables are
shared out by row, and a row's gradient is the sum over its occurrences in a fixed order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairstream.compiled import njit, njit_inline
from fairstream.training.cpu.adam import Floats, owner
from fairstream.training.cpu.objective import bpr, fairness, positive_approx_ndcg, positive_hit
from fairstream.training.cpu.prefetch import prefetch_row

Integers = np.ndarray[Any, np.dtype[np.int32]]
_ZERO = np.float32(0.0)
_AHEAD = 4
"""Interactions between asking for memory and needing it."""


class Chains(NamedTuple):
    """The distinct rows of a batch that a thread owns, and the occurrences of each, the latest first."""

    rows: Integers
    heads: Integers
    """(rows of the table,) 1 + the latest occurrence of the row, 0 where there is none."""
    links: Integers
    """(occurrences,) 1 + the occurrence of the same row before this one, 0 where there is none."""


class Buffers(NamedTuple):
    """Where a thread works; `scores`, `old` and `pulls` are one and the same for all of them."""

    scores: Floats
    """(1 + C, B)"""
    old: Floats
    """(B, d) the users' rows as they were before the step."""
    user_grads: Floats
    """(B, d) what each interaction adds to the gradient of its user's row."""
    score_grads: Floats
    """(1 + C, B) ∂L/∂s"""
    hits: Floats
    """(B,) DH, or ApproxNDCG"""
    hit_slopes: Floats
    """(1 + C, B) their slopes, ∂DH/∂s"""
    scratch: Floats
    """(2 + C, B)"""
    product: np.ndarray[Any, np.dtype[np.float64]]
    """(B,)"""
    codes: np.ndarray[Any, np.dtype[np.int16]]
    """(B,)"""
    sums: np.ndarray[Any, np.dtype[np.float64]]
    """(2, G)"""
    group_slopes: Floats
    """(G,) ∂(λ L_fair)/∂DH"""
    gradient: Floats
    """(d,)"""
    nothing: Floats
    """(d,) zeros"""
    users: Chains
    items: Chains


class Loss(NamedTuple):
    """`Objective` and the signs of the groups."""

    n: int
    mu: int
    tau: float
    lambda_: float
    is_signed: bool
    signs: np.ndarray[Any, np.dtype[np.float64]]
    is_hit: bool = True
    """DH in the fairness loss, or else ApproxNDCG."""


@njit_inline
def append(chains: Any, n: Any, occurrence: Any, row: Any) -> Any:
    """Put an occurrence before the others of its row; gives the number of distinct rows so far."""
    head = chains.heads[row]
    chains.links[occurrence] = head
    chains.heads[row] = occurrence + 1
    chains.rows[n] = row  # overwritten by the next one unless the row is new
    return n + (1 if head == 0 else 0)


@njit
def score(users: Any, items: Any, negatives: Any, p: Any, q: Any, begin: Any, end: Any, room: Any) -> None:
    """s_bc = ⟨p_u, q_i⟩ of the interactions `begin` … `end`; keeps their p_u as they are now."""
    s, old = room.scores, room.old
    for b in range(begin, end):
        if b + _AHEAD < end:
            prefetch_row(q, items[b + _AHEAD])
            for c in range(negatives.shape[1]):
                prefetch_row(q, negatives[b + _AHEAD, c])
        p_u = p[users[b]]
        for k in range(len(p_u)):
            old[b, k] = p_u[k]
        for c in range(len(s)):
            q_i = q[items[b] if c == 0 else negatives[b, c - 1]]
            total = _ZERO
            for k in range(len(p_u)):
                total += p_u[k] * q_i[k]
            s[c, b] = total


@njit
def losses(n_rows: Any, loss: Any, room: Any) -> Any:
    """L of the batch, and ∂L/∂s, put into `slopes`."""
    s, ds = room.scores, room.score_grads
    total = bpr(s, n_rows, loss.n, ds, room.product)
    if loss.lambda_ > 0:
        d, dh = room.hit_slopes, room.hits
        if loss.is_hit:
            positive_hit(s, n_rows, loss.mu, loss.tau, dh, d, room.scratch[1:], room.scratch[0])
        else:
            positive_approx_ndcg(s, n_rows, loss.mu, loss.tau, dh, d)
        total += fairness(
            dh, room.codes, n_rows, loss.signs, loss.is_signed, loss.lambda_, room.sums, room.group_slopes
        )
        # ∂L/∂DH of each interaction takes DH's place: that is all that is needed of it from here on.
        for b in range(n_rows):
            dh[b] = room.group_slopes[room.codes[b]] if 0 <= room.codes[b] < len(loss.signs) else _ZERO
        for c in range(loss.mu + 1):
            for b in range(n_rows):
                ds[c, b] += dh[b] * d[c, b]
    return total


@njit
def find_rows(users: Any, items: Any, negatives: Any, room: Any, thread: Any, n_threads: Any) -> Any:
    """The distinct user rows and item rows of the batch that this thread owns, with their occurrences."""
    width = negatives.shape[1] + 1
    n_users, n_items = 0, 0
    for b in range(len(users)):
        if owner(users[b], n_threads) == thread:
            n_users = append(room.users, n_users, b, users[b])
        for c in range(width):
            row = items[b] if c == 0 else negatives[b, c - 1]
            if owner(row, n_threads) == thread:
                n_items = append(room.items, n_items, b * width + c, row)
    return n_users, n_items


@njit
def pull(items: Any, negatives: Any, q: Any, begin: Any, end: Any, room: Any) -> None:
    """What each of the interactions `begin` … `end` adds to ∂L/∂p_u: Σ_c ∂L/∂s_bc q_c."""
    ds = room.score_grads
    for b in range(begin, end):
        user_grads = room.user_grads[b]
        user_grads[:] = _ZERO
        for c in range(len(ds)):
            q_i, slope = q[items[b] if c == 0 else negatives[b, c - 1]], ds[c, b]
            for k in range(len(user_grads)):
                user_grads[k] += slope * q_i[k]


@njit_inline
def user_gradient(row: Any, room: Any) -> None:
    """∂L/∂p_u, the sum of the pulls of its occurrences, put into `gradient`."""
    chains, gradient = room.users, room.gradient
    gradient[:] = _ZERO
    link = chains.heads[row]
    while link > 0:
        user_grads = room.user_grads[link - 1]
        for k in range(len(gradient)):
            gradient[k] += user_grads[k]
        link = chains.links[link - 1]


@njit_inline
def item_gradient(row: Any, room: Any) -> None:
    """∂L/∂q_i = Σ_(b, c) ∂L/∂s_bc p_u over the occurrences of i, put into `gradient`."""
    ds, chains, gradient = room.score_grads, room.items, room.gradient
    gradient[:] = _ZERO
    width = len(ds)
    link = chains.heads[row]
    while link > 0:
        b = (link - 1) // width
        slope, p_u = ds[link - 1 - b * width, b], room.old[b]
        for k in range(len(gradient)):
            gradient[k] += slope * p_u[k]
        link = chains.links[link - 1]
