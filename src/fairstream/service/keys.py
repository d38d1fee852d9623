"""Keys of the HTTP interface and their scopes; only their hashes are stored."""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

from sqlalchemy import Engine, insert, select, update

from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.service.audit import record
from fairstream.service.database import now, reading, writing
from fairstream.service.schema import keys

SCOPES = ("ingest", "attributes", "read", "history", "admin")
"""`history` may read what `read` may, and lists that show what somebody has had; `admin` may do everything."""
_PREFIX, _MAX_NAME = "fs_", 64


class Key(NamedTuple):
    """A key in a list; the key itself is not stored."""

    name: str
    scope: str
    created: int
    revoked: int | None


def make_key(engine: Engine, name: str, scope: str) -> str:
    """Make a key; it is returned once and cannot be read again."""
    if scope not in SCOPES:
        raise ConfigurationError(f"scope must be one of {', '.join(SCOPES)}, got {scope!r}")
    if not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
        raise ConfigurationError(f"the name of a key must be 1 to {_MAX_NAME} printable characters")
    key = _PREFIX + secrets.token_urlsafe(32)
    with writing(engine) as connection:
        if connection.scalar(select(keys.c.name).where(keys.c.name == name)) is not None:
            raise WorkspaceError(f"there is or was a key named {name!r} already; give another name")
        connection.execute(insert(keys).values(name=name, scope=scope, digest=_digest(key), created=now()))
        record(connection, "key", {"action": "made", "name": name, "scope": scope, "digest": _digest(key)})
    return key


def revoke_key(engine: Engine, name: str) -> None:
    """Revoke a key."""
    with writing(engine) as connection:
        valid = (keys.c.name == name) & keys.c.revoked.is_(None)
        row = connection.execute(select(keys.c.scope, keys.c.digest).where(valid)).first()
        if row is None:
            raise WorkspaceError(f"there is no key named {name!r} that is still valid")
        connection.execute(update(keys).where(valid).values(revoked=now()))
        record(connection, "key", {"action": "revoked", "name": name, "scope": row.scope, "digest": row.digest})


def list_keys(engine: Engine) -> list[Key]:
    """Return all keys, also revoked ones, oldest first."""
    query = select(keys.c.name, keys.c.scope, keys.c.created, keys.c.revoked).order_by(keys.c.created, keys.c.name)
    with reading(engine) as connection:
        return [Key(*row) for row in connection.execute(query)]


def find_key(engine: Engine, key: str) -> tuple[str, str] | None:
    """Return the name and scope of a valid key; None for any other text."""
    query = select(keys.c.name, keys.c.scope).where((keys.c.digest == _digest(key)) & keys.c.revoked.is_(None))
    with reading(engine) as connection:
        row = connection.execute(query).first()
    return None if row is None else (row.name, row.scope)


def _digest(key: str) -> str:
    # A key is 256 random bits: there is nothing to guess, so a slow hash would protect nothing.
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
