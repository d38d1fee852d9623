"""What many tests stand on: a small stream, its log, and the paper's data where it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import fairstream
from fairstream.experiments.jobs import Source
from stores import LONG, source_of, write_stream
from web import Web, running

settings.register_profile("fast", deadline=None, max_examples=15, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=100, derandomize=True)
settings.load_profile("fast")  # `make slow` takes --hypothesis-profile=thorough
torch.set_num_threads(1)


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
    with pytest.MonkeyPatch.context() as patch, running() as server:
        patch.setenv("no_proxy", "127.0.0.1")
        yield server


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return source_of(write_stream(tmp_path_factory.mktemp("data") / "stream"))


@pytest.fixture(scope="session")
def long_source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Enough for the paper's own settings."""
    return source_of(write_stream(tmp_path_factory.mktemp("data") / "long", **LONG))
