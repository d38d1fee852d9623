"""Threads share work out completely, and what goes wrong in one of them is told."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.compiled import share


@given(st.integers(0, 40), st.integers(1, 6))
def test_every_row_is_somebodys_and_nobody_elses(n: int, n_threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: n_threads)
        parts = share(n, range)
    assert [row for part in parts for row in part] == list(range(n))
    assert len(parts) <= n_threads


@pytest.mark.parametrize("bad", [0, 9])
def test_an_error_in_a_part_is_an_error(bad: int) -> None:
    def work(begin: int, end: int) -> None:
        if bad in range(begin, end):
            raise ValueError("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 3)
        with pytest.raises(ValueError, match="no"):
            share(10, work)
