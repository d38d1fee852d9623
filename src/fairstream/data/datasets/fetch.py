"""Fetching one file over HTTP: streamed, never more than asked for, whole or not at all."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from fairstream._version import __version__
from fairstream.errors import ConfigurationError, DataError

OnProgress = Callable[[int, int | None], None]
"""Called with the bytes that are there and, where the server says so, those that there will be."""

LARGEST = 1 << 30
"""No data set that we know comes near it (bytes); what goes on beyond it is something else."""
_AT_ONCE = 1 << 16
_PATIENCE_S = 30.0


def fetch(url: str, path: Path, *, on_progress: OnProgress = lambda done, total: None) -> None:
    """Write what is at `url` to the new file `path`; whatever fails, no such file is left behind."""
    _need_web_address(url)
    with path.open("xb") as file:
        try:
            with _opener().open(_request(url), timeout=_PATIENCE_S) as response:
                _copy(response, file, on_progress)
        except (OSError, http.client.HTTPException) as error:
            path.unlink()
            if isinstance(error, HTTPError):
                error.close()
            raise DataError(f"{url} could not be fetched: {_reason(error)}") from None
        except BaseException:
            path.unlink()
            raise


def _copy(response: Any, file: IO[bytes], on_progress: OnProgress) -> None:
    told = response.headers.get("Content-Length", "")
    total = int(told) if told.isdigit() else None
    done = 0
    on_progress(done, total)
    while piece := response.read(_AT_ONCE):
        done += len(piece)
        if done > LARGEST:
            raise OSError(f"it is larger than {LARGEST:,} bytes")
        file.write(piece)
        on_progress(done, total)
    if total is not None and done != total:
        raise OSError(f"the connection ended after {done:,} of {total:,} bytes")


class _OnTheWeb(HTTPRedirectHandler):
    """Follows a redirect to the same scheme or from http to https, and no other."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        if urlsplit(newurl).scheme not in (req.type, "https"):
            fp.close()
            raise URLError(f"it redirects to {newurl}, and from {req.type} only {req.type} and https are followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> OpenerDirector:
    """One that knows nothing but the web: urllib's own would read files and FTP servers too."""
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, _OnTheWeb, HTTPErrorProcessor, HTTPDefaultErrorHandler):
        opener.add_handler(handler())
    return opener


def _request(url: str) -> Request:
    return Request(url, headers={"User-Agent": f"fairstream/{__version__}"})  # noqa: S310 (the scheme was checked)


def _need_web_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    is_good &= url.isascii() and url.isprintable() and " " not in url
    if not is_good:
        raise ConfigurationError(f"an address must begin with http:// or https:// and name a server, got {url!r}")


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"the server answers {error.code} ({' '.join(str(error.reason).splitlines()[:1])})"
    if isinstance(error, URLError):
        return _reason(error.reason) if isinstance(error.reason, Exception) else str(error.reason)
    if isinstance(error, TimeoutError):
        return f"nothing came for {_PATIENCE_S:.0f} seconds"
    if isinstance(error, http.client.HTTPException):
        return f"the server's answer is not whole ({type(error).__name__})"
    return (isinstance(error, OSError) and error.strerror) or str(error)
