"""Threads share out work completely and report errors; machine code is cached where that is possible."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fairstream
from fairstream.compiled import _Compiled, njit, parallel_ranges

KERNELS = "from fairstream.compiled import njit\n\n@njit\ndef twice(x):\n    return 2 * x\n"


@given(st.integers(0, 40), st.integers(1, 6))
def test_every_row_belongs_to_one_part(n: int, n_threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: n_threads)
        parts = parallel_ranges(n, range)
    assert [row for part in parts for row in part] == list(range(n))
    assert len(parts) <= n_threads


@pytest.mark.parametrize("bad", [0, 9])
def test_an_error_in_a_part_is_raised(bad: int) -> None:
    def work(begin: int, end: int) -> None:
        if bad in range(begin, end):
            raise ValueError("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 3)
        with pytest.raises(ValueError, match="no"):
            parallel_ranges(10, work)


def test_threads_can_call_a_function_for_the_first_time_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    namespace: dict[str, Any] = {"njit": njit}
    exec(
        "def one(x):\n    return x + 1\none = njit(one)\ndef two(x):\n    return one(one(x))\ntwo = njit(two)",
        namespace,
    )
    assert parallel_ranges(4, lambda begin, end: namespace["two"](begin)) == [2, 3, 4, 5]


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A process that compiles the function of `folder / "kernels.py"`."""
    path = os.pathsep.join([str(folder), *(part for part in sys.path if part)])
    command = [sys.executable, "-c", "import kernels; print(kernels.twice(21))"]
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


@pytest.mark.slow
def test_two_processes_can_compile_at_once_and_share_a_cache(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    cache = tmp_path / "cache"
    processes = [start(tmp_path, NUMBA_CACHE_DIR=str(cache)) for _ in range(2)]
    assert [process.communicate()[0] for process in processes] == ["42\n", "42\n"]
    assert list(cache.rglob("kernels.twice*.nbc"))


@pytest.mark.slow
def test_code_is_compiled_without_a_cache_where_nothing_can_be_written(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "kernels.py").write_text(KERNELS)
    (package / "__pycache__").write_text("")  # a file in the place of the folder: root could write to a closed one
    (tmp_path / "home").write_text("")
    home = str(tmp_path / "home")
    process = start(package, HOME=home, XDG_CACHE_HOME=home, NUMBA_CACHE_DIR=home)
    out, error = process.communicate()
    assert (out, error) == ("42\n", "")


def test_compiled_functions_call_only_compiled_functions_of_their_own_file() -> None:
    """Numba's cache does not notice that a function in another file has changed."""
    foreign = set()
    for module in pkgutil.walk_packages(fairstream.__path__, "fairstream."):
        source = Path(getattr(module.module_finder, "path", ""), f"{module.name.rpartition('.')[2]}.py")
        if source.exists() and "import njit" in source.read_text():
            functions = vars(importlib.import_module(module.name)).values()
            foreign |= {f.__name__ for f in functions if isinstance(f, _Compiled) and f.__module__ != module.name}
    assert foreign == {"uniform_at"}  # the draws of a seed never change
