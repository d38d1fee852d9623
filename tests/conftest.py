"""What many tests stand on: a small stream, its log, and the paper's data where it is."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Two processes run the tests on two cores. Said before PyTorch is loaded, which the process that only hands out
# the tests never needs.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # a test that asks for more threads leaves the cores to other tests

import pytest
from hypothesis import settings

import fairstream

if TYPE_CHECKING:
    from fairstream.experiments.jobs import Source
    from web import Web

settings.register_profile("fast", deadline=None, max_examples=6, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=100, derandomize=True)
settings.load_profile("fast")  # `make slow` takes --hypothesis-profile=thorough


def pytest_sessionstart() -> None:
    """Look for no garbage among what is imported and collected, all of which stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the modules be collected at exit: nanobind, which DuckDB is built with, prints what is left over."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)  # before -m leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make slow tests of those parameters that a test marked `few` leaves to them."""
    of_function = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("few")
        if mark is not None and hasattr(item, "callspec") and item.get_closest_marker("slow") is None:
            of_function[item.parent, item.originalname, *mark.args].append(item)
    for (_, _, *n), tests in of_function.items():
        kept = _covering(tests)
        if n and n[0] < len(kept):
            kept = [kept[i * (len(kept) - 1) // max(1, n[0] - 1)] for i in range(n[0])]
        for test in tests:
            if test not in kept:
                test.add_marker("slow")


def _covering(tests: list[pytest.Function]) -> list[pytest.Function]:
    """Tests that together have every value of every parameter, each the one with the most values still missing."""
    values = {test: {(name, id(value)) for name, value in test.callspec.params.items()} for test in tests}
    missing, chosen = set.union(*values.values()), list[pytest.Function]()
    while missing:
        chosen.append(max(tests, key=lambda test: len(values[test] & missing)))
        missing -= values[chosen[-1]]
    return chosen


@pytest.fixture(scope="session")
def stream() -> fairstream.SyntheticStream:
    return fairstream.synthetic_stream(n_users=150, n_items=80, n_events=4000, seed=3)


@pytest.fixture(scope="session")
def log(stream: fairstream.SyntheticStream) -> fairstream.EventLog:
    return fairstream.read_events(stream.events, users=stream.users, group="community", advantaged="majority")


@pytest.fixture(scope="session")
def paper_data() -> Path:
    """The folder with movielens-1m and modcloth; tests that need it skip where it is not."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FAIRSTREAM_DATA", beside))
    if not (folder / "movielens-1m").is_dir():
        pytest.skip("the paper's data sets are not on this machine")
    return folder


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    """A web server on this machine, with no proxy before it."""
    from web import running

    with pytest.MonkeyPatch.context() as patch, running() as server:
        patch.setenv("no_proxy", "127.0.0.1")
        yield server


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    from stores import source_of, write_stream

    return source_of(write_stream(tmp_path_factory.mktemp("data") / "stream"))


@pytest.fixture(scope="session")
def long_source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Enough for the paper's own settings."""
    from stores import LONG, source_of, write_stream

    return source_of(write_stream(tmp_path_factory.mktemp("data") / "long", **LONG))
