"""Loops that are compiled: where PyTorch or NumPy would fill tables only to read them once."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, update_wrapper
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

from fairstream.reporting import COMPILING
from fairstream.threads import available_cores

Function = TypeVar("Function", bound=Callable[..., Any])
Part = TypeVar("Part")


def njit(function: Function) -> Function:
    """The function in machine code: kept on disk between runs, and without the interpreter's lock.

    Sums may be taken in any order, which is what makes them sums of vectors; NaN and infinity
    keep their meaning.

    >>> @njit
    ... def twice(x: int) -> int:
    ...     return 2 * x
    >>> twice(21)
    42
    """
    return cast("Function", _Compiled(function))


def njit_inline(function: Function) -> Function:
    """The same for the inside of a loop, where handing over the arguments would cost more than the work."""
    return cast("Function", _Compiled(function, forceinline=True))


class _Compiled:
    """A function that Numba is given when it is first called, or needed by another one.

    To load Numba takes half a second, which a command that computes nothing should not have to wait for.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._function, self._options = function, options
        self._code: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return (self._code or self._make_code())(*arguments)

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks of objects that it does not know: where compiled loops call this function, it is its own."""
        return (self._code or self._make_code())._numba_type_

    def _make_code(self) -> Any:
        with _GIVING:
            if self._code is None:
                self._code = _given_to_numba(self._function, self._options)
        return self._code


_GIVING = Lock()
"""Threads that call a function for the first time at once compile it once, and Numba's settings are everybody's."""


def _given_to_numba(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    numba = _numba()
    has_file = not function.__code__.co_filename.startswith("<")  # in a doctest there is none
    options = {**options, "nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
    settings: Any = numba.config
    before = settings.CACHE_DIR
    folder = _cache_folder(before)
    settings.CACHE_DIR = str(folder or "")
    try:
        is_kept = has_file and folder is not None
        return numba.njit(function, cache=is_kept, **options)
    finally:
        settings.CACHE_DIR = before


@cache
def _numba() -> Any:
    import numba  # noqa: PLC0415 (half a second)
    from numba.core import event  # noqa: PLC0415

    class Compilation(event.Listener):
        def on_start(self, event: Any) -> None:  # code from the disk is not compiled
            _log_first_compilation()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Compilation())  # type: ignore[no-untyped-call]
    return numba


@cache
def _log_first_compilation() -> None:
    COMPILING.info("Compiling loops to machine code, once on this machine; this can take a minute.")


@cache
def _cache_folder(asked_for: str) -> Path | None:
    """Where machine code is kept, by preference as asked for (NUMBA_CACHE_DIR); None where nothing can be written.

    Its name depends on the source of everything that is compiled: Numba looks at the file of a
    function alone, and would not see that another one, which is compiled into it, has changed.
    """
    package = Path(__file__).parent
    sources = (file.read_bytes() for file in sorted(package.rglob("*.py")))
    digest = hashlib.sha256(b"".join(source for source in sources if b"fairstream.compiled" in source))
    digest.update(Path(__file__).read_bytes())
    places = [asked_for] if asked_for else []
    for place in (*places, str(package / "__pycache__"), "~/.cache/fairstream"):
        try:
            folder = Path(place).expanduser() / f"compiled-{digest.hexdigest()[:16]}"
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # the latter where there is no home
            continue
        if os.access(folder, os.W_OK):
            if folder.parent.parent == package:  # nobody else's place: what older sources left goes
                for old in set(folder.parent.glob("compiled-*")) - {folder}:
                    shutil.rmtree(old, ignore_errors=True)
            return folder
    return None


def parallel_ranges(n: int, work: Callable[[int, int], Part]) -> list[Part]:
    """`work(begin, end)` over 0 … n, a part for each of PyTorch's threads; what it gave, in order.

    >>> sum(parallel_ranges(10, lambda begin, end: end - begin))
    10
    """
    n_parts = max(1, min(_n_threads(), n))
    ends = [n * part // n_parts for part in range(n_parts + 1)]
    waiting = [_threads(os.getpid(), n_parts).submit(work, *part) for part in pairwise(ends[1:])]
    try:
        first = work(0, ends[1])
    finally:
        wait(waiting)  # whatever happens here: nobody goes on working behind the caller's back
    return [first, *(part.result() for part in waiting)]


def _n_threads() -> int:
    """PyTorch's number of threads; where it has not been loaded, as many as it would take."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() else available_cores()


@cache
def _threads(process: int, n_parts: int) -> ThreadPoolExecutor:
    """Kept, because to start them takes longer than much of their work; a forked process makes its own."""
    return ThreadPoolExecutor(n_parts - 1, thread_name_prefix=f"fairstream-{process}")
