"""Loops compiled by Numba, for computations that would need large temporary arrays in NumPy or PyTorch.

Numba caches the machine code in the folder `NUMBA_CACHE_DIR`, else in `__pycache__` next to the source, else in the
user's cache folder (`~/.cache/numba` on Linux); where it can write to none of them it compiles in every process.
The cache of a function depends on the file of that function alone. So a compiled function calls compiled functions of
its own file only; the one exception is `randomness.uniform_at`, which must never change.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, update_wrapper
from itertools import pairwise
from threading import Lock
from typing import Any, TypeVar, cast

from fairstream.reporting import COMPILING
from fairstream.threads import available_cores

Function = TypeVar("Function", bound=Callable[..., Any])
Part = TypeVar("Part")
_COMPILE_LOCK = Lock()


def njit(function: Function) -> Function:
    """Compile a function when it is first called; it runs without the interpreter's lock.

    Sums may be reordered, which lets loops vectorise; NaN and infinity keep their meaning.

    >>> @njit
    ... def twice(x: int) -> int:
    ...     return 2 * x
    >>> twice(21)
    42
    """
    return cast("Function", _Compiled(function))


def njit_inline(function: Function) -> Function:
    """Compile a function into the loops that call it, for bodies that cost less than passing their arguments."""
    return cast("Function", _Compiled(function, forceinline=True))


class _Compiled:
    """A function that loads Numba at its first call, since commands that compute nothing should not wait for it."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._function, self._options = function, options
        self._dispatcher: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return (self._dispatcher or self._compile())(*arguments)

    @property
    def _numba_type_(self) -> Any:
        """Return the type that Numba asks for where a compiled loop calls this function."""
        return (self._dispatcher or self._compile())._numba_type_

    def _compile(self) -> Any:
        with _COMPILE_LOCK:  # threads that call a function at once compile it once
            if self._dispatcher is None:
                fastmath = {"reassoc", "contract", "nsz"}
                options = {**self._options, "nogil": True, "error_model": "numpy", "fastmath": fastmath}
                try:
                    self._dispatcher = _numba().njit(self._function, cache=True, **options)
                except RuntimeError:  # no folder for the cache, or a function without a file
                    self._dispatcher = _numba().njit(self._function, **options)
        return self._dispatcher


@cache
def _numba() -> Any:
    import numba  # noqa: PLC0415 (takes half a second)
    from numba.core import event  # noqa: PLC0415

    class Compilation(event.Listener):
        def on_start(self, event: Any) -> None:  # not called for cached code
            _log_first_compilation()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Compilation())  # type: ignore[no-untyped-call]
    return numba


@cache
def _log_first_compilation() -> None:
    COMPILING.info("Compiling loops to machine code, once on this machine; this can take a minute.")


def parallel_ranges(n: int, work: Callable[[int, int], Part]) -> list[Part]:
    """Call `work(begin, end)` on parts of 0 … n, one for each of PyTorch's threads; return the results in order.

    >>> sum(parallel_ranges(10, lambda begin, end: end - begin))
    10
    """
    n_parts = max(1, min(_n_threads(), n))
    if n_parts == 1:
        return [work(0, n)]
    ends = [n * part // n_parts for part in range(n_parts + 1)]
    others = [_pool(os.getpid(), n_parts).submit(work, *part) for part in pairwise(ends[1:])]
    try:
        first = work(0, ends[1])
    finally:
        wait(others)  # no thread continues after an error here
    return [first, *(part.result() for part in others)]


def _n_threads() -> int:
    """Return PyTorch's number of threads; before PyTorch is loaded, the number it would use."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() else available_cores()


@cache
def _pool(process: int, n_parts: int) -> ThreadPoolExecutor:
    """Return a pool of threads, which are slow to start; a forked process needs another one."""
    return ThreadPoolExecutor(n_parts - 1, thread_name_prefix=f"fairstream-{process}")
