"""Files ingested on Ray give the log that one process makes of them, byte for byte, also where a worker is killed."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import fairstream as fs
from cluster_processes import though_one_is_killed
from fairstream import ConfigurationError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
STREAM = fs.synthetic_stream(n_users=300, n_items=200, n_events=20_000, seed=0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty files that are not in order, with ids that are text and with repeated events."""
    folder = tmp_path_factory.mktemp("events")
    names = pc.binary_join_element_wise("user", STREAM.events["user_id"].cast(pa.string()), "-")
    events = STREAM.events.set_column(0, "user_id", names)
    for number in range(20):
        part = events.slice(((number * 7) % 20) * 1000, 1100)
        pq.write_table(part, folder / f"part-{number:02}.parquet")
    people = pc.binary_join_element_wise("user", STREAM.users["user_id"].cast(pa.string()), "-")
    pq.write_table(STREAM.users.set_column(0, "user_id", people), folder.parent / "users.parquet")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_log_is_that_of_one_process_though_a_worker_is_killed(ray_here: Any, files: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"users": files.parent / "users.parquet", "group": "community"}
    here = fs.ingest(files, tmp_path / "here", **options)
    folders = (tmp_path / f"there-{number}" for number in count())
    source = f"file://{files}/part-*.parquet"  # an address
    logs = though_one_is_killed(lambda: fs.ingest(source, next(folders), cluster="local", **options), b"ray::_run_task")
    assert any("sorted by time" in note for note in here.notes)
    assert {log.fingerprint() for log in logs} == {here.fingerprint()}
    assert all(content(folder) == content(tmp_path / "here") for folder in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 1 + len(logs)


def test_files_that_workers_cannot_see(ray_here: Any, files: Path, tmp_path: Path) -> None:
    folder = os.open(files, os.O_RDONLY)  # /proc/self/fd is each process's own
    try:
        with pytest.raises(ConfigurationError, match=r"cannot read /proc/self/fd/.*storage that all nodes share"):
            fs.ingest(f"/proc/self/fd/{folder}", tmp_path / "log", cluster="local")
    finally:
        os.close(folder)
    assert not list(tmp_path.iterdir())
