"""The workspace's secret: made once, and compared with a check value in the database at every open."""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path

from sqlalchemy import Connection, Engine, insert, inspect, select

from fairstream.errors import WorkspaceError
from fairstream.service.audit import is_last_entry_of
from fairstream.service.schema import secret_check

_N_BYTES = 32


def make_secret() -> bytes:
    """Return a new secret."""
    return secrets.token_bytes(_N_BYTES)


def check_secret(engine: Engine, secret: bytes, path: Path) -> None:
    """Raise a `WorkspaceError` where a secret is not the one that the database was made with; nothing is written.

    Where an earlier version left no check value the secret must fit the audit record.
    """
    with engine.connect() as connection:
        digest = _stored(connection)
        fits = is_last_entry_of(connection, secret) if digest is None else hmac.compare_digest(digest, _digest(secret))
    if not fits or len(secret) < _N_BYTES:
        raise WorkspaceError(
            f"{path} must hold the secret that this workspace was made with, and holds another one of {len(secret)} "
            f"bytes; restore it from a backup or copy it from another machine of this workspace"
        )


def store_check(connection: Connection, secret: bytes) -> None:
    """Store the check value of a secret where there is none."""
    if _stored(connection) is None:
        connection.execute(insert(secret_check).values(id=1, digest=_digest(secret)))


def _stored(connection: Connection) -> str | None:
    if not inspect(connection).has_table(secret_check.name):
        return None
    return connection.scalar(select(secret_check.c.digest))


def _digest(secret: bytes) -> str:
    return hmac.digest(secret, b"check value", "sha256").hex()
