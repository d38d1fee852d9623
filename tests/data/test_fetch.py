"""Fetching from a real server: what comes is what was there, and what is not whole does not come."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import ConfigurationError, DataError
from fairstream.data.datasets import fetch as fetching
from fairstream.data.datasets.fetch import fetch
from web import Cut, Page, Redirect, Unsized, Web, address_without_server


@given(content=st.binary(max_size=200_000) | st.integers(0, 9).map(lambda n: b"x" * n * 65_536), is_sized=st.booleans())
def test_what_is_there_is_what_comes(web: Web, content: bytes, is_sized: bool) -> None:
    url = web.serve("/any", content if is_sized else Unsized(content))
    told: list[tuple[int, int | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        fetch(url, path, on_progress=lambda *at: told.append(at))
        assert path.read_bytes() == content
    assert told[0][0] == 0
    assert told[-1][0] == len(content)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {len(content) if is_sized else None}


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_on_the_web_is_followed(web: Web, code: int, tmp_path: Path) -> None:
    web.serve("/there", b"content")
    fetch(web.serve("/here", Redirect("/there", code)), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"content"


CANNOT: dict[str, tuple[Page | None, str]] = {
    "missing": (None, r"answers 404 \(Not Found\)"),
    "cut": (Cut(b"half", told=8), "ended after 4 of 8 bytes"),
    "nothing of it": (Cut(b"", told=8), "ended after 0 of 8 bytes"),
    "cut in a chunk": (Cut(b"half", told=None), "not whole"),
    "to a file": (Redirect("file:///etc/hostname"), "file:///etc/hostname' is not allowed"),
    "to FTP": (
        Redirect("ftp://127.0.0.1/file"),
        "redirects to ftp://127.0.0.1/file, and from http only http and https",
    ),
    "in a circle": (Redirect("/in a circle"), "answers 302"),
    "to what is missing": (Redirect("/nowhere"), "answers 404"),
    "to nowhere": (Redirect("https://127.0.0.1:1/"), "refused"),
}


@pytest.mark.parametrize(("page", "named"), CANNOT.values(), ids=CANNOT)
def test_what_cannot_be_fetched_is_one_sentence_and_leaves_nothing(
    web: Web, page: Page | None, named: str, tmp_path: Path
) -> None:
    web.pages = {} if page is None else {"/page": page, "/in%20a%20circle": page}
    with pytest.raises(DataError, match=rf"\A{web.address}/page could not be fetched: [^\n]*{named}[^\n]*\Z"):
        fetch(f"{web.address}/page", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_from_https_to_http_is_a_step_down() -> None:
    """Without a certificate there is no https server here, so the rule is asked by itself."""
    handler = fetching._OnTheWeb()
    request = fetching._request("https://example.org/file")
    headers = fetching.http.client.HTTPMessage()
    with (
        tempfile.TemporaryFile() as answer,
        pytest.raises(OSError, match=r"redirects to http://\S+, and from https only"),
    ):
        handler.redirect_request(request, answer, 302, "Found", headers, "http://example.org/file")


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="could not be fetched: Connection refused"):
        fetch(address_without_server() + "/file", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x", "/etc/hostname", "ml-1m.zip", "", "http://"),
        *("http://[::1", "http://127.0.0.1:port/x", "http://127.0.0.1/a b", "http://127.0.0.1/a\nb", "http://h/é"),
    ],
)
def test_only_the_web_is_fetched_from(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\Aan address must begin with http:// or https://[^\n]*\Z"):
        fetch(url, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("page", [b"x" * 1001, Unsized(b"x" * 1001)], ids=["sized", "unsized"])
def test_there_is_an_end_to_what_is_fetched(
    web: Web, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LARGEST", 1000)
    with pytest.raises(DataError, match="larger than 1,000 bytes"):
        fetch(web.serve("/large", page), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_says_nothing_more_is_given_up(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(DataError, match="nothing came for"):
            fetch(url, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing(web: Web, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done:
            assert (tmp_path / "file").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(web.serve("/any", b"x" * 500_000), tmp_path / "file", on_progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_touched(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        fetch(web.serve("/any", b"content"), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
