"""Files and folders are written whole or not at all."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairstream.errors import ConfigurationError
from fairstream.files import new_folder, replace_file, write_file


def inside(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("there", [None, {}, {"old": "1", "kept": "2"}], ids=["nothing", "empty", "full"])
def test_a_folder_gives_way_to_a_new_one(there: dict[str, str] | None, tmp_path: Path) -> None:
    path = tmp_path / "folder"
    if there is not None:
        path.mkdir()
        for name, text in there.items():
            (path / name).write_text(text)
    with new_folder(path, replacing=True) as being_written:
        (being_written / "kept").write_text("3")
    assert inside(tmp_path) == {"folder/kept": "3"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_whatever_fails_the_old_folder_stays(failure: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("1")
    with pytest.raises(failure), new_folder(path, replacing=True):
        raise failure
    assert inside(tmp_path) == {"folder/old": "1"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_nothing_gives_way_unasked(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("1")
    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "folder") as being_written:
        (being_written / "new").write_text("2")
    assert inside(tmp_path) == {"folder/old": "1"}


def test_a_device_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigurationError, match="it is a device or a pipe"):
        write_file(pipe, b"result")
    assert pipe.is_fifo()


def test_threads_that_write_one_file_never_mix_their_bytes(tmp_path: Path) -> None:
    """Every writer succeeds, and whoever reads meanwhile sees the content of one of them."""
    path, contents = tmp_path / "file", [bytes([65 + n]) * 300_000 for n in range(8)]
    replace_file(path, contents[0])
    with ThreadPoolExecutor(8) as pool:
        writes = [pool.submit(replace_file, path, content) for content in contents * 8]
        while not all(write.done() for write in writes):
            assert path.read_bytes() in contents
        for write in writes:
            write.result()
    assert path.read_bytes() in contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_replaced_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    replace_file(tmp_path / "file", b"content")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "file")]
    assert modes[0] == modes[1]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(tmp_path / "file", b"old")

    def fail(handle: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk is full"):
        replace_file(tmp_path / "file", b"new")
    assert inside(tmp_path) == {"file": "old"}
