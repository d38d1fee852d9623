"""Loops that are compiled: where PyTorch or NumPy would fill tables only to read them once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Self, TypeVar, cast

import numba
import torch

Function = TypeVar("Function", bound=Callable[..., Any])
Part = TypeVar("Part")


def compiled(function: Function) -> Function:
    """The function in machine code: kept on disk between runs, and without the interpreter's lock.

    `reassoc` lets a sum be taken in any order, which is what makes it one of vectors; NaN and
    infinity keep their meaning.

    >>> @compiled
    ... def twice(x: int) -> int:
    ...     return 2 * x
    >>> twice(21)
    42
    """
    has_file = not function.__code__.co_filename.startswith("<")  # in a doctest there is none to keep it beside
    return cast("Function", numba.njit(cache=has_file, nogil=True, fastmath={"reassoc"})(function))


class Threads:
    """As many threads as PyTorch uses, for as long as the block lasts: kept ones would be missing after a fork.

    >>> with Threads() as threads:
    ...     sum(threads.share(10, lambda begin, end: end - begin))
    10
    """

    def __enter__(self) -> Self:
        self._n = torch.get_num_threads()
        self._others = ThreadPoolExecutor(max(1, self._n - 1))  # starts none that it has no work for
        return self

    def __exit__(self, *_: object) -> None:
        self._others.shutdown()

    def share(self, n: int, work: Callable[[int, int], Part]) -> list[Part]:
        """`work(begin, end)` over 0 … n, a part for each thread; the parts are in order."""
        n_parts = max(1, min(self._n, n))
        ends = [n * part // n_parts for part in range(n_parts + 1)]
        waiting = [self._others.submit(work, *part) for part in pairwise(ends[1:])]
        return [work(0, ends[1]), *(part.result() for part in waiting)]
