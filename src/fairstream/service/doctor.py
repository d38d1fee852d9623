"""Examine an installation and a workspace: what is right, what to watch, and what to mend."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from fairstream._version import __version__
from fairstream.errors import FairstreamError
from fairstream.service import registry, updates
from fairstream.service.database import now, now_of, reachable, reading
from fairstream.service.records import from_microseconds
from fairstream.service.settings import Every, LiveConfig
from fairstream.service.workspace import SECRET, Workspace

_OTHER_FILES = 256  # that a serving process opens besides its connections: databases, models
_MAX_CLOCK_SECONDS = 30.0
_MIN_FREE, _LOW_FREE = 1 << 30, 5 << 30
_PACKAGES = ("torch", "sqlalchemy", "fastapi", "uvicorn", "pyarrow")


class Finding(NamedTuple):
    """One line of the examination."""

    state: Literal["ok", "warning", "problem"]
    what: str
    sentence: str


def examine(folder: Path | None) -> Iterator[Finding]:
    """Examine this machine and, if a folder is given, its workspace; end at a problem that hides the rest."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    yield Finding("ok", "versions", f"fairstream {__version__}, Python {platform.python_version()}, {versions}")
    if folder is None:
        return
    what = "configuration"
    try:
        config = LiveConfig.read(folder)
        _ = config.learning  # checks the values
        yield Finding("ok", "configuration", "every option is valid")
        yield _disk(folder)
        yield _permissions(folder)
        if (most := most_connections()) < config.limits.max_connections:
            sentence = f"there are too few for more than {most} connections; raise ulimit -n or LimitNOFILE="
            yield Finding("warning", "open files", sentence)
        what = "workspace"
        with Workspace.open(folder) as workspace, reachable(workspace.engine):
            yield Finding("ok", "database", f"{workspace.engine.dialect.name} answers, tables and secret are right")
            yield _clock(workspace)
            yield _models(workspace)
            yield _last_update(workspace)
    except FairstreamError as error:
        yield Finding("problem", what, str(error))


def most_connections() -> int:
    """Return for how many connections of a process its hard limit of open files is enough."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if most == resource.RLIM_INFINITY else max(1, most - _OTHER_FILES)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    if free >= _LOW_FREE:
        return Finding("ok", "disk", f"{free / 1e9:,.1f} GB are free")
    sentence = f"only {free / 1e9:,.1f} GB are free; free some, or set [retention] events_days and keep_models"
    return Finding("problem" if free < _MIN_FREE else "warning", "disk", sentence)


def _permissions(folder: Path) -> Finding:
    if not os.access(folder, os.W_OK):
        return Finding(
            "problem", "permissions", f"{folder} cannot be written to: lists are answered, nothing is stored"
        )
    private = [path for path in (folder, folder / SECRET) if path.exists()]
    if any(stat.S_IMODE(path.stat().st_mode) & 0o77 for path in private):
        return Finding("problem", "permissions", f"others may read the folder or its secret; chmod -R go= {folder}")
    return Finding("ok", "permissions", "only the owner may read the folder")


def _clock(workspace: Workspace) -> Finding:
    with reading(workspace.engine) as connection:
        difference = abs(now_of(connection) - now()) / 1e6
    sentence = f"it differs from the database's by {difference:.1f} s"
    if difference > _MAX_CLOCK_SECONDS:
        return Finding("problem", "clock", f"{sentence}; run NTP on both")
    return Finding("ok", "clock", sentence)


def _models(workspace: Workspace) -> Finding:
    from fairstream.recommender import load  # noqa: PLC0415 (slow to import)

    serving, folders = registry.in_service(workspace.engine), workspace.models.names()
    if serving is None:
        return Finding("warning", "models", "there is no model yet: lists are by popularity until the first update")
    damaged = dict[str, str]()
    for row in registry.models(workspace.engine):
        if row.folder in folders or row.id == serving.model:
            try:
                load(workspace.models.path(row.folder), frozen=True)
            except (FairstreamError, OSError) as error:
                damaged[row.id] = f"{row.id} cannot be loaded: {error}"
    if serving.model in damaged:
        return Finding("problem", "models", f"in service is {damaged[serving.model]}; run `fairstream rollback DIR`")
    if damaged:
        return Finding("warning", "models", "; ".join(damaged.values()))
    return Finding("ok", "models", f"{serving.model} is in service; all {len(folders)} kept models can be loaded")


def _last_update(workspace: Workspace) -> Finding:
    rows = updates.listed(workspace.engine, before=None, limit=1)
    if not rows:
        return Finding("warning", "updates", "there was none; run `fairstream update DIR` or set `every`")
    last = rows[0]
    age = (from_microseconds(now()) - last.requested).total_seconds()
    sentence = f"the last one was {last.state} {age / 3600:.1f} hours ago"
    every = workspace.config.every and Every.parse(workspace.config.every)
    if every and every.unit == "seconds" and age > 2 * every.n:
        return Finding("warning", "updates", f"{sentence}, although one is due every {every.n} s; does `serve` run?")
    if last.state == "failed":
        return Finding("warning", "updates", f"{sentence}: {last.reason}")
    return Finding("ok", "updates", sentence)
