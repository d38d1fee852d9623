"""Examine an installation and a workspace: what is right, what to watch, and what to mend."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from sqlalchemy import Engine, select

from fairstream._version import __version__
from fairstream.errors import FairstreamError
from fairstream.service import registry, schema, updates
from fairstream.service.database import latest_revision, now, now_of, reachable, reading, revision
from fairstream.service.forgetting import pending_requests
from fairstream.service.keys import list_keys
from fairstream.service.records import from_microseconds
from fairstream.service.settings import Every, LiveConfig
from fairstream.service.workspace import SECRET, Workspace, engine_of

_OTHER_FILES = 256  # that a serving process opens besides its connections: databases, models
_SLOW_SECONDS, _MAX_CLOCK_SECONDS = 0.02, 30.0
_MIN_FREE, _LOW_FREE = 1 << 30, 5 << 30
_PACKAGES = ("torch", "sqlalchemy", "fastapi", "uvicorn", "pyarrow")
_DAY = 86_400


class Finding(NamedTuple):
    """One line of the examination."""

    state: Literal["ok", "warning", "problem"]
    what: str
    sentence: str


def examine(folder: Path | None) -> Iterator[Finding]:
    """Yield what is found of this machine and, if a folder is given, of its workspace."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    yield Finding("ok", "versions", f"fairstream {__version__}, Python {platform.python_version()}, {versions}")
    if folder is None:
        return
    try:
        config = LiveConfig.read(folder)
        _ = config.learning  # checks the values
    except FairstreamError as error:
        yield Finding("problem", "configuration", str(error))
        return
    yield Finding("ok", "configuration", "every option is valid")
    yield from _folder(folder)
    if (most := most_connections()) < config.limits.max_connections:
        sentence = f"there are too few for more than {most} connections; raise ulimit -n or LimitNOFILE="
        yield Finding("warning", "open files", sentence)
    engine = engine_of(folder)
    try:
        with reachable(engine):
            yield from _database(engine)
        with Workspace.open(folder) as workspace, reachable(workspace.engine):
            yield Finding("ok", "secret", "it is the one that the workspace was made with")
            yield from _workspace(workspace)
    except FairstreamError as error:
        yield Finding("problem", "workspace", str(error))
    finally:
        engine.dispose()


def most_connections() -> int:
    """Return for how many connections of a process its hard limit of open files is enough."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if most == resource.RLIM_INFINITY else max(1, most - _OTHER_FILES)


def _folder(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if free < _LOW_FREE:
        sentence = f"only {free / 1e9:,.1f} GB are free; free some, or set [retention] events_days and keep_models"
        yield Finding("problem" if free < _MIN_FREE else "warning", "disk", sentence)
    else:
        yield Finding("ok", "disk", f"{free / 1e9:,.1f} GB are free")
    private = [path for path in (folder, folder / SECRET) if path.exists()]
    if not os.access(folder, os.W_OK):
        yield Finding("problem", "permissions", f"{folder} cannot be written to: lists are answered, nothing is stored")
    elif any(stat.S_IMODE(path.stat().st_mode) & 0o77 for path in private):
        yield Finding("problem", "permissions", f"others may read the folder or its secret; chmod -R go= {folder}")
    else:
        yield Finding("ok", "permissions", "only the owner may read the folder")


def _database(engine: Engine) -> Iterator[Finding]:
    with engine.connect() as connection:
        begin = time.perf_counter()
        theirs = now_of(connection)
        seconds = time.perf_counter() - begin
    sentence = f"{engine.dialect.name} answers in {seconds * 1000:.1f} ms"
    if (difference := abs(theirs - now()) / 1e6) > _MAX_CLOCK_SECONDS:
        yield Finding("problem", "clock", f"it differs from the database's by {difference:.1f} s; run NTP on both")
    if seconds > _SLOW_SECONDS:
        yield Finding("warning", "database", f"{sentence}; move the service nearer to it")
    else:
        yield Finding("ok", "database", sentence)
    current, needed = revision(engine), latest_revision()
    if current == needed:
        yield Finding("ok", "tables", f"revision {current}")
    else:
        sentence = f"revision {current or 'none'}, needed is {needed}; run `fairstream upgrade DIR`"
        yield Finding("problem", "tables", sentence)


def _workspace(workspace: Workspace) -> Iterator[Finding]:
    scopes = [key.scope for key in list_keys(workspace.engine) if key.revoked is None]
    if "admin" in scopes:
        yield Finding("ok", "keys", f"{len(scopes)} valid")
    else:
        yield Finding(
            "warning", "keys", "no valid key has the scope admin; `fairstream keys add DIR NAME --scope admin`"
        )
    yield from _models(workspace)
    yield _last_update(workspace)
    n, oldest = pending_requests(workspace.engine)
    if oldest is not None and now() - oldest > _DAY * 1e6:
        yield Finding(
            "warning", "forgetting", f"{n} requests wait, the oldest for more than a day; run `forget --pending`"
        )
    else:
        yield Finding("ok", "forgetting", f"{n} requests wait")


def _models(workspace: Workspace) -> Iterator[Finding]:
    from fairstream.recommender import load  # noqa: PLC0415 (slow to import)

    serving, kept = registry.in_service(workspace.engine), workspace.models.names()
    if serving is None:
        yield Finding("warning", "models", "there is no model yet: lists are by popularity until the first update")
        return
    with reading(workspace.engine) as connection:
        rows = connection.execute(select(schema.models.c.id, schema.models.c.folder)).all()
    damaged = dict[str, str]()
    for row in rows:
        if row.folder in kept or row.id == serving.model:
            try:
                load(workspace.models.path(row.folder), frozen=True)
            except (FairstreamError, OSError) as error:
                damaged[row.id] = f"{row.id} cannot be loaded: {error}"
    if serving.model in damaged:
        sentence = f"in service is {damaged[serving.model]}; run `fairstream rollback DIR`"
        yield Finding("problem", "models", sentence)
    elif damaged:
        yield Finding("warning", "models", "; ".join(damaged.values()))
    else:
        yield Finding("ok", "models", f"{serving.model} is in service; all {len(kept)} kept models can be loaded")


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
