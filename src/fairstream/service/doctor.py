"""Examine an installation and a workspace: what is right, what to watch, and what to mend."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import statistics
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from sqlalchemy import Engine, select

from fairstream._version import __version__
from fairstream.errors import FairstreamError
from fairstream.service import registry, schema, updates
from fairstream.service.database import latest_revision, now, reachable, reading, revision
from fairstream.service.forgetting import pending_requests
from fairstream.service.keys import list_keys
from fairstream.service.records import from_microseconds
from fairstream.service.settings import Every, LiveConfig
from fairstream.service.workspace import SECRET, Workspace, engine_of

OTHER_FILES = 256
"""Files that a serving process opens besides its connections: databases, models, child processes."""
_SLOW_SECONDS, _CLOCK_SECONDS, _MAX_CLOCK_SECONDS = 0.02, 2.0, 30.0
_MIN_FREE, _LOW_FREE = 1 << 30, 5 << 30
_DAY = 86_400


class Finding(NamedTuple):
    """One line of the examination."""

    state: Literal["ok", "warning", "problem"]
    what: str
    sentence: str


def examine(folder: Path | None) -> Iterator[Finding]:
    """Yield what is found of this machine and, if a folder is given, of its workspace."""
    yield from _machine()
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
    yield _open_files(config.limits.max_connections)
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


def _machine() -> Iterator[Finding]:
    names = ("torch", "sqlalchemy", "fastapi", "uvicorn", "pyarrow")
    try:
        versions = ", ".join(f"{name} {version(name)}" for name in names)
    except PackageNotFoundError as error:
        yield Finding("problem", "versions", f"{error.name} is not installed; pip install 'fairstream[live]'")
        return
    yield Finding("ok", "versions", f"fairstream {__version__}, Python {platform.python_version()}, {versions}")
    threads, n_cores = os.environ.get("OMP_NUM_THREADS"), len(os.sched_getaffinity(0))
    yield Finding("ok", "cores", f"{n_cores}, OMP_NUM_THREADS is {threads or 'not set: updates use all of them'}")


def _folder(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    state: Literal["ok", "warning", "problem"] = "problem" if free < _MIN_FREE else "ok"
    if _MIN_FREE <= free < _LOW_FREE:
        state = "warning"
    advice = "" if state == "ok" else "; free some, or set [retention] events_days and a smaller keep_models"
    yield Finding(state, "disk", f"{free / 1e9:,.1f} GB are free{advice}")
    if not os.access(folder, os.W_OK):
        yield Finding("problem", "permissions", f"{folder} cannot be written to: lists are answered, nothing is stored")
        return
    loose = [
        path.name for path in (folder, folder / SECRET) if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o77
    ]
    if loose:
        yield Finding("problem", "permissions", f"others may read {' and '.join(loose)}; chmod -R go= {folder}")
    else:
        yield Finding("ok", "permissions", "only the owner may read the folder")


def _open_files(max_connections: int) -> Finding:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most in (resource.RLIM_INFINITY, -1) or most >= max_connections + OTHER_FILES:
        return Finding("ok", "open files", f"{most} are enough for {max_connections} connections")
    sentence = f"{most} are too few for {max_connections} connections; raise ulimit -n or LimitNOFILE="
    return Finding("warning", "open files", sentence)


def _database(engine: Engine) -> Iterator[Finding]:
    seconds = []
    with engine.connect() as connection:
        for _ in range(5):
            begin = time.perf_counter()
            connection.exec_driver_sql("SELECT 1").scalar()
            seconds.append(time.perf_counter() - begin)
        latency, kind = statistics.median(seconds), engine.dialect.name
        state: Literal["ok", "warning"] = "warning" if latency > _SLOW_SECONDS else "ok"
        advice = "; move the service nearer to it" if state == "warning" else ""
        yield Finding(state, "database", f"{kind} answers in {latency * 1000:.1f} ms{advice}")
        if kind == "postgresql":
            theirs = float(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())
            yield _clock(abs(theirs - time.time()))
    current, needed = revision(engine), latest_revision()
    if current == needed:
        yield Finding("ok", "tables", f"revision {current}")
    else:
        sentence = f"revision {current or 'none'}, needed is {needed}; run `fairstream upgrade DIR`"
        yield Finding("problem", "tables", sentence)


def _clock(difference: float) -> Finding:
    sentence = f"it differs from the database's by {difference:.1f} s"
    if difference <= _CLOCK_SECONDS:
        return Finding("ok", "clock", sentence)
    return Finding("problem" if difference > _MAX_CLOCK_SECONDS else "warning", "clock", f"{sentence}; run NTP on both")


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
    damaged = []
    for row in rows:
        if row.folder in kept or row.id == serving.model:
            try:
                load(workspace.models.path(row.folder), device="cpu")
            except (FairstreamError, OSError) as error:
                damaged.append(f"{row.id} ({error})")
                if row.id == serving.model:
                    sentence = (
                        f"{row.id}, which is in service, cannot be loaded: {error}; run `fairstream rollback DIR`"
                    )
                    yield Finding("problem", "models", sentence)
    if damaged:
        yield Finding("warning", "models", f"damaged: {'; '.join(damaged)}")
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
