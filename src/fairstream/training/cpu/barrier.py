"""A barrier for the threads that share a batch: a fraction of a microsecond where all of them run."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from fairstream.compiled import njit

_LOOKS = 500

intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = extending.intrinsic
struct_proxy: Any = cgutils.create_struct_proxy
insert_function: Any = cgutils.get_or_insert_function

_give_way = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def _add_one(_typing: Any, counter: Any) -> Any:
    """Atomically add 1 to counter[0] and give what was there before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = struct_proxy(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "acq_rel")

    return types.int64(counter), generate


@intrinsic
def _read(_typing: Any, counter: Any) -> Any:
    """What counter[0] is now, and with it everything that was written before it became so."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = struct_proxy(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(array.data, "acquire", 8)

    return types.int64(counter), generate


@intrinsic
def _pause(_typing: Any) -> Any:
    """Tell the processor that this is a loop that waits: it leaves the core to the thread beside it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine() in {"x86_64", "AMD64"}:
            nothing = ir.FunctionType(ir.VoidType(), [])
            builder.call(insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


_CALLED_OFF = -(1 << 62)


def new_counter() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where threads count themselves in."""
    return np.zeros(1, dtype=np.int64)


def abort(counter: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Let nobody wait any more, now or later: one of the threads will not come."""
    counter[0] = _CALLED_OFF


@njit
def wait_for_all(counter: Any, n_threads: Any) -> Any:
    """Wait until all threads have come here; gives False where that has been called off.

    The counter only ever grows, so there is nothing to reset. A thread that waits long gives way:
    on a busy machine the one it waits for may not be running at all.
    """
    if n_threads == 1:
        return True
    goal = (_add_one(counter) // n_threads + 1) * n_threads
    looks = 0
    while True:
        n_came = _read(counter)
        if n_came < 0:
            return False
        if n_came >= goal:
            return True
        _pause()
        looks += 1
        if looks > _LOOKS:
            _give_way()
