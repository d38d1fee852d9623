"""One line of JSON for each request and each event of the service's life, to stderr."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any, TextIO

_FLUSH_SECONDS = 0.2
_MOST_WAITING = 100_000


class Logs:
    """Lines are written by a thread of their own: whoever reads them slowly keeps no request waiting."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=_MOST_WAITING)
        self._n_said = self._n_written = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def say(self, event: str, **about: Any) -> None:
        """An event of the service's life."""
        self._add(json.dumps({"time": _now(), "event": event, **about}, ensure_ascii=False, default=str))

    def request(self, method: str, route: str, status: int, seconds: float, key: str | None) -> None:
        """A request: the route as it is declared, because a path names users."""
        # Made by hand, because it is made for every request: all but the key's name is known to need no escapes.
        name = "null" if key is None else json.dumps(key)
        self._add(
            f'{{"time":"{_now()}","event":"request","method":"{method}","route":"{route}","status":{status},'
            f'"milliseconds":{seconds * 1000:.3f},"key":{name}}}'
        )

    def _add(self, line: str) -> None:
        self._n_said += 1
        self._lines.append(line)

    def _run(self) -> None:
        while not self._stop.wait(_FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        lines: list[str] = []
        while self._lines:
            lines.append(self._lines.popleft())
        self._n_written += len(lines)
        if (n_lost := self._n_said - self._n_written - len(self._lines)) > 0:
            self._n_written += n_lost
            lines.append(json.dumps({"time": _now(), "event": "lines lost", "n": n_lost}))
        if lines:
            stream = self._stream or sys.stderr
            stream.write("\n".join(lines) + "\n")
            stream.flush()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
