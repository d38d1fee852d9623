"""A small data set that any process can read."""

from __future__ import annotations

import pytest

from fairstream.experiment.jobs import Source
from stores import LONG, source_of, write_stream


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return source_of(write_stream(tmp_path_factory.mktemp("data") / "stream"))


@pytest.fixture(scope="session")
def long_source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Enough for the paper's own settings."""
    return source_of(write_stream(tmp_path_factory.mktemp("data") / "long", **LONG))
