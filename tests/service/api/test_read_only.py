"""A file system that cannot be written to: lists are answered, and what would be stored is refused."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairstream.service.api.limits import Bucket
from fairstream.service.settings import Limits
from fairstream.service.workspace import Workspace
from live_services import add_model, make_keys, running

EVENT = {"user_id": "new", "item_id": "i1", "time": 1}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory, which may be mounted again to be read only."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.sqlite_only
def test_lists_are_answered_from_a_read_only_disk(new_workspace: Callable[..., Workspace], disk: Path) -> None:
    source = new_workspace()
    add_model(source)
    keys = make_keys(source)
    source.close()
    shutil.copytree(source.folder, disk / "shop")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with Workspace.open(disk / "shop") as workspace, running(workspace, keys) as client:
        workspace.check_files()
        client.wait_until_ready()
        answer = client.get("/v1/users/u1/recommendations", headers=keys.read)
        assert (answer.status_code, answer.json()["source"]) == (200, "model")
        refused = client.post("/v1/events", json=EVENT, headers=keys.ingest)
        assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
        assert client.post("/v1/updates", headers=keys.admin).status_code == 503
        assert client.get("/v1/users/u1/recommendations", headers=keys.read).status_code == 200


def test_the_default_rate_is_above_what_a_process_answers() -> None:
    bucket = Bucket(Limits().requests_per_second)
    assert all(bucket.take() == 0 for _ in range(12_000))
