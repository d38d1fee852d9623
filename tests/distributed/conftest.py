"""One small Ray on this machine for each module that asks for it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairstream.experiments.jobs import Source
from stores import source_of, write_stream

OBJECT_STORE = 100 << 20


@pytest.fixture(scope="module")
def ray_here() -> Iterator[Any]:
    """Ray with two CPUs, whose workers import what this process does."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address="local",
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                logging_level="ERROR",
                log_to_driver=False,
                configure_logging=False,
            )
        try:
            yield ray
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return source_of(write_stream(Path(tmp_path_factory.mktemp("data")) / "stream"))
