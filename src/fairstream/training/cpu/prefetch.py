"""Ask for memory before it is needed: rows lie all over the tables, and the machine cannot guess where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from fairstream.compiled import njit_inline

_LINE = 16
"""Numbers (float32) in a cache line."""

intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = extending.intrinsic
struct_proxy: Any = cgutils.create_struct_proxy
element_pointer: Any = cgutils.get_item_pointer
insert_function: Any = cgutils.get_or_insert_function


@intrinsic
def _prefetch(_typing: Any, table: Any, row: Any, column: Any, will_write: Any) -> Any:
    """Ask for the cache line of table[row, column]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        array = struct_proxy(kind)(context, builder, arguments[0])
        pointer = element_pointer(context, builder, kind, array, [arguments[1], arguments[2]])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]), "llvm.prefetch.p0"
        )
        flags = [ir.Constant(number, flag) for flag in (int(will_write.literal_value), 3, 1)]  # into the nearest cache
        builder.call(function, [builder.bitcast(pointer, byte), *flags])
        return context.get_dummy_value()

    if not isinstance(will_write, types.Literal):
        return None
    return types.void(table, types.intp, types.intp, will_write), generate


@njit_inline
def prefetch_row(table: Any, row: Any) -> None:
    """Ask for a row of a table, to read it: other threads may keep theirs."""
    for column in range(0, table.shape[1], _LINE):
        _prefetch(table, row, column, False)


@njit_inline
def prefetch_row_to_write(table: Any, row: Any) -> None:
    """Ask for a row of a table for this thread alone."""
    for column in range(0, table.shape[1], _LINE):
        _prefetch(table, row, column, True)
