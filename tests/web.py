"""A real web server on this machine, with everything that can go wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple


class Redirect(NamedTuple):
    """The content is elsewhere."""

    to: str
    code: int = 302


class Cut(NamedTuple):
    """The connection is dropped after the content, of which there should have been more."""

    content: bytes
    told: int | None
    """The size that was announced; None: sent in chunks, the last of which is missing."""


class Unsized(NamedTuple):
    """Sent without a word on its size."""

    content: bytes


Page = bytes | Redirect | Cut | Unsized


class Web:
    """The pages of a server that is running, by their paths, and the paths that it was asked for."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.pages: dict[str, Page] = {}
        self.asked: list[str] = []

    def serve(self, path: str, page: Page) -> str:
        """Put a page there, and say where that is."""
        self.pages[path] = page
        return self.address + path


@contextmanager
def running() -> Iterator[Web]:
    """A server on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            web.asked.append(self.path)
            page = web.pages.get(self.path)
            match page:
                case None:
                    self.send_error(404)
                case Redirect():
                    self._head(page.code, {"Location": page.to, "Content-Length": "0"})
                case Unsized():
                    self._head(200, {"Connection": "close"}, page.content)
                case Cut(content, None):
                    chunk = f"{len(content) + 9:x}\r\n".encode() + content
                    self._head(200, {"Transfer-Encoding": "chunked"}, chunk)
                    self.close_connection = True
                case Cut(content, told):
                    self._head(200, {"Content-Length": str(told)}, content)
                    self.close_connection = True
                case bytes():
                    self._head(200, {"Content-Length": str(len(page))}, page)

        def _head(self, code: int, headers: dict[str, str], content: bytes = b"") -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web = Web(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def address_without_server() -> str:
    """Where nobody listens: the port of a server that has gone."""
    with running() as web:
        return web.address
