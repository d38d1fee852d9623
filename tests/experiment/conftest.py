"""A small data set that any process can read."""

from __future__ import annotations

import pytest

from fairstream.experiment.jobs import Source
from stores import source_of, write_stream


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return source_of(write_stream(tmp_path_factory.mktemp("data") / "stream"))
