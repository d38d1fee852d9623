"""Ask for memory before it is needed: rows lie all over the tables, and the machine cannot guess where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from fairstream.compiled import inlined

_LINE = 16
"""Numbers (float32) in a cache line."""

intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = extending.intrinsic
struct_proxy: Any = cgutils.create_struct_proxy
element_pointer: Any = cgutils.get_item_pointer
insert_function: Any = cgutils.get_or_insert_function


@intrinsic
def _prefetch(_typing: Any, table: Any, row: Any, column: Any) -> Any:
    """Ask for the cache line of table[row, column], to be written to."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        array = struct_proxy(kind)(context, builder, arguments[0])
        pointer = element_pointer(context, builder, kind, array, [arguments[1], arguments[2]])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]), "llvm.prefetch.p0"
        )
        flags = [ir.Constant(number, flag) for flag in (1, 3, 1)]  # for writing, into the nearest cache, data
        builder.call(function, [builder.bitcast(pointer, byte), *flags])
        return context.get_dummy_value()

    return types.void(table, types.intp, types.intp), generate


@inlined
def prefetch_row(table: Any, row: Any) -> None:
    """Ask for a row of a table."""
    for column in range(0, table.shape[1], _LINE):
        _prefetch(table, row, column)
