"""A run of steps, as each of the threads takes part in it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairstream.compiled import njit
from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.training.cpu.adam import update_idle_rows, update_row
from fairstream.training.cpu.barrier import wait_for_all
from fairstream.training.cpu.drawing import draw
from fairstream.training.cpu.prefetch import prefetch_row_to_write
from fairstream.training.cpu.steps import Integers, find_rows, item_gradient, losses, pull, score, user_gradient

_ONE = np.float32(1.0)
_AHEAD = 8
"""Rows between asking for memory and needing it."""


class Interactions(NamedTuple):
    """Who, what, and which group."""

    users: Rows
    items: Rows
    codes: Codes
    """The group of every user row."""
    size: int
    """Interactions in a batch."""


class Exclusions(NamedTuple):
    """What may not be drawn: `NegativeSampler`'s lists."""

    place: Rows
    """Where the user of each interaction stands in `bounds`."""
    bounds: Rows
    free_before: Integers
    n_items: int


@njit
def draw_share(
    order: Any, size: Any, exclusions: Any, key: Any, negatives: Any, taken: Any, thread: Any, n_threads: Any
) -> None:
    """Draw a share of the negatives of the batches in `order`; they lie in `negatives` in that order."""
    for at in range(thread, len(order), n_threads):
        begin = order[at] * size
        place = exclusions.place[begin : begin + size]
        out = negatives[at * size : at * size + len(place)]
        draw(place, begin, exclusions.bounds, exclusions.free_before, exclusions.n_items, key, taken, out)


@njit
def take_steps(
    order: Any,
    interactions: Any,
    negatives: Any,
    p: Any,
    q: Any,
    loss: Any,
    adam: Any,
    l2: Any,
    n_before: Any,
    room: Any,
    thread: Any,
    n_threads: Any,
    counter: Any,
) -> Any:
    """A step on each batch of `order`; gives the sum of the losses.

    `n_before` counts the steps of dense Adam before these; below 0 it is row Adam.
    """
    total = 0.0
    for at in range(len(order)):
        begin = order[at] * interactions.size
        users = interactions.users[begin : begin + interactions.size]
        items = interactions.items[begin : begin + interactions.size]
        n_rows = len(users)
        drawn = negatives[at * interactions.size : at * interactions.size + n_rows]
        share = (n_rows + n_threads - 1) // n_threads
        first, last = thread * share, min(n_rows, (thread + 1) * share)
        score(users, items, drawn, p.weight, q.weight, first, last, room)
        for b in range(n_rows):
            room.codes[b] = interactions.codes[users[b]]
        n_users, n_items = find_rows(users, items, drawn, room, thread, n_threads)
        if not wait_for_all(counter, n_threads):  # all scores are there
            break

        total += losses(n_rows, loss, room)
        pull(items, drawn, q.weight, first, last, room)
        if not wait_for_all(counter, n_threads):  # nobody needs q as it was any more
            break

        n = -1 if n_before < 0 else n_before + at + 1
        if n >= 0:
            update_idle_rows(q, room.items.heads, room.nothing, l2, adam, n, thread, n_threads)
            update_idle_rows(p, room.users.heads, room.nothing, l2, adam, n, thread, n_threads)
        update_items(q, n_items, l2, adam, n, room)
        update_users(p, n_users, l2, adam, n, room)
        if not wait_for_all(counter, n_threads):  # all rows are as the next step needs them
            break
    return total


@njit
def update_items(q: Any, n_items: Any, l2: Any, adam: Any, n: Any, room: Any) -> None:
    """Adam on the touched item rows; n counts the steps of dense Adam, below 0 each row counts its own."""
    chains, width = room.items, len(room.scores)
    for slot in range(n_items):
        row = chains.rows[slot]
        if slot + _AHEAD < n_items:
            later = chains.rows[slot + _AHEAD]
            prefetch_row_to_write(q.weight, later)
            prefetch_row_to_write(q.mean, later)
            prefetch_row_to_write(q.square, later)
        count = n
        if n < 0:
            q.n_updates[row] += _ONE
            count = np.int64(q.n_updates[row])
        occurrence = chains.heads[row] - 1
        if chains.links[occurrence] == 0:  # most items come once in a batch: there is no sum to take
            b = occurrence // width
            update_row(q, row, room.old[b], room.score_grads[occurrence - b * width, b], l2, adam, count)
        else:
            item_gradient(row, room)
            update_row(q, row, room.gradient, _ONE, l2, adam, count)
        chains.heads[row] = 0


@njit
def update_users(p: Any, n_users: Any, l2: Any, adam: Any, n: Any, room: Any) -> None:
    """The same on the touched user rows."""
    for slot in range(n_users):
        row = room.users.rows[slot]
        count = n
        if n < 0:
            p.n_updates[row] += _ONE
            count = np.int64(p.n_updates[row])
        user_gradient(row, room)
        update_row(p, row, room.gradient, _ONE, l2, adam, count)
        room.users.heads[row] = 0
