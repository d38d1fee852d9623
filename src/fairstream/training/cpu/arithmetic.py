"""Exponentials that the compiler can take sixteen at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairstream.compiled import njit

_LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts: the first has few enough bits that k · ln 2 is exact.
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOWEST = np.float32(-87.0)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_C3, _C4, _C5, _C6, _C7 = (np.float32(1.0 / f) for f in (6, 24, 120, 720, 5040))


@njit
def exp_negative(x: Any) -> Any:
    """e^x for x ≤ 0 in float32, to one unit in the last place or two; e^−87 for anything below.

    e^x = 2^k e^f with |f| ≤ ½ ln 2, and e^f by its series, whose next term is below 5e−9.
    """
    x = max(x, _LOWEST)
    k = np.floor(x * _LOG2_E + _HALF)
    f = x - k * _LN_2_HIGH - k * _LN_2_LOW
    series = _C7
    series = series * f + _C6
    series = series * f + _C5
    series = series * f + _C4
    series = series * f + _C3
    series = series * f + _HALF
    series = series * f * f + f + _ONE
    return series * np.int32((np.int32(k) + 127) << 23).view(np.float32)  # 2^k by its bits
