"""The command line in this process: what it prints, how it ends, and what it leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fairstream.cli import main, progress
from fairstream.reporting import COMPILING

_DECIDE_ON_COLOURS = (
    "COLUMNS",
    "FORCE_COLOR",
    "PY_COLORS",
    "CLICOLOR_FORCE",
    "GITHUB_ACTIONS",
    "TTY_COMPATIBLE",
    "TERM",
)


class Outcome(NamedTuple):
    """How a command ended, what it printed, and the folder that it ran in."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*"))


@pytest.fixture
def command(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Run `fairstream` with these arguments in an empty folder, or in the given one."""
    for name in _DECIDE_ON_COLOURS:
        monkeypatch.delenv(name, raising=False)
    # What depends on the clock and on what was compiled before is tested on its own.
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", float("inf"))
    monkeypatch.setattr(COMPILING, "disabled", True)

    def run(*arguments: object, folder: Path | None = None) -> Outcome:
        folder = folder or tmp_path_factory.mktemp("folder")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["fairstream", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as leaving:
            main()
        out, err = capfd.readouterr()
        code = leaving.value.code
        assert isinstance(code, int | None)
        return Outcome(code or 0, out, err, folder)

    return run
