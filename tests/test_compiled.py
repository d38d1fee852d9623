"""Threads share work out completely, and what goes wrong in one of them is told."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fairstream.compiled
from fairstream.compiled import _cache_folder, njit, parallel_ranges


@given(st.integers(0, 40), st.integers(1, 6))
def test_every_row_is_somebodys_and_nobody_elses(n: int, n_threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: n_threads)
        parts = parallel_ranges(n, range)
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
            parallel_ranges(10, work)


def test_threads_that_call_a_function_at_once_give_it_to_numba_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given, give = [], fairstream.compiled._given_to_numba

    def listed(function: Any, options: Any) -> Any:
        time.sleep(0.05)
        given.append(function)
        return give(function, options)

    monkeypatch.setattr(fairstream.compiled, "_given_to_numba", listed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    namespace: dict[str, Any] = {"njit": njit}
    exec(
        "def one(x):\n    return x + 1\none = njit(one)\ndef two(x):\n    return one(one(x))\ntwo = njit(two)",
        namespace,
    )
    assert parallel_ranges(4, lambda begin, end: namespace["two"](begin)) == [2, 3, 4, 5]
    assert [function.__name__ for function in given] == ["two", "one"]  # the other when the first is compiled


def test_machine_code_is_kept_where_there_is_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    find = _cache_folder.__wrapped__
    assert find(str(tmp_path / "asked")).parent == tmp_path / "asked"
    package = Path(fairstream.compiled.__file__).parent
    assert find("").parent == package / "__pycache__"
    assert [path.name for path in tmp_path.iterdir()] == ["asked"]  # nothing is left where one happens to be
    monkeypatch.setattr(os, "access", lambda folder, mode: not Path(folder).is_relative_to(package))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find("").is_relative_to(tmp_path / "home")
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    assert find("") is None  # then it is compiled at every start


def test_machine_code_is_named_by_the_source_of_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name in ("compiled", "caller", "callee", "other"):
        (package / f"{name}.py").write_text("from fairstream.compiled import compiled" if "call" in name else "")
    monkeypatch.setattr(fairstream.compiled, "__file__", str(package / "compiled.py"))
    find, names = _cache_folder.__wrapped__, []
    for changed in ("other", "callee", "compiled"):
        names.append(find("").name)
        (package / f"{changed}.py").write_text((package / f"{changed}.py").read_text() + "\nx = 1")
    names.append(find("").name)
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert [folder.name for folder in (package / "__pycache__").iterdir()] == names[-1:]  # older ones are gone
