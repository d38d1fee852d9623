"""Who was forgotten, known by a keyed hash alone."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, select

from fairstream.service.schema import forgotten


def digests(secret: bytes, user_ids: Iterable[str]) -> Iterator[str]:
    """HMAC-SHA256 of each id: without the workspace's secret it tells nobody who it was."""
    keyed = hmac.new(secret, digestmod="sha256")
    for user_id in user_ids:
        one = keyed.copy()
        one.update(user_id.encode())
        yield one.hexdigest()


def times_forgotten(connection: Connection) -> dict[str, int]:
    """Digest of everybody who was forgotten."""
    return {row.digest: row.until for row in connection.execute(select(forgotten))}
