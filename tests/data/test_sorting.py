"""Sorting by digits gives what sorting gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fairstream.data.sorting import radix_sort

KEYS = st.integers(0, 2**63 - 1) | st.integers(0, 5) | st.integers(0, 9).map(lambda user: user << 32)


@given(arrays.arrays(np.int64, st.integers(0, 60), elements=KEYS))
def test_sorted_by_digits(keys: np.ndarray) -> None:
    expected = np.sort(keys)
    assert np.array_equal(radix_sort(keys), expected)
