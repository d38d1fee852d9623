"""The pages over HTTP: who may see them, what they say, and that nothing of it is taken for markup."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import product
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Cookies, Response
from made_up import BEGINS, DAY, METRIC, add_model, add_period, filled, model_id

from fairstream.pages.format import number
from fairstream.service.dashboard import router
from fairstream.service.dashboard.overview import read_overview
from fairstream.service.dashboard.routes import COOKIE
from fairstream.service.dashboard.sessions import LASTS, Sessions
from fairstream.service.database import writing
from fairstream.service.keys import make_key, revoke_key
from fairstream.service.workspace import Workspace

pytestmark = pytest.mark.sqlite_only
Maker = Callable[..., Workspace]
HOSTILE = "<script>alert('x')</script>&\"'"
SHORT_HOSTILE = "<img src=x onerror=alert(1)>"
PRIVATE = ("/", f"/models/{model_id(3)}", f"/models/{model_id(3)}/audit.html", f"/models/{model_id(3)}/audit.json")


class Reader(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.headings: list[int] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.tags[tag] += 1
        self.attributes.append((tag, told))
        if told.get("id"):
            self.ids[str(told["id"])] += 1
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


class Client:
    """A browser's requests, one at a time."""

    def __init__(self, app: FastAPI, address: str) -> None:
        self._client = AsyncClient(transport=ASGITransport(app), base_url=address)

    @property
    def cookies(self) -> Cookies:
        return self._client.cookies

    def get(self, path: str, **options: Any) -> Response:
        return asyncio.run(self._client.get(path, **options))

    def post(self, path: str, **options: Any) -> Response:
        return asyncio.run(self._client.post(path, **options))


def client_of(
    workspace: Workspace, *, https: bool = False, health: Callable[[], dict[str, Any]] | None = None
) -> Client:
    app = FastAPI()
    app.include_router(router(workspace, health))
    return Client(app, f"{'https' if https else 'http'}://fairstream.test")


def signed_in(workspace: Workspace, **options: Any) -> Client:
    client = client_of(workspace, **options)
    assert sign_in(client, make_key(workspace.engine, "reader", "read")).status_code == 303
    return client


def sign_in(client: Client, key: str, **more: str) -> Response:
    return client.post("/login", data={"key": key, **more})


def test_without_a_key_every_page_asks_for_one(new_workspace: Maker) -> None:
    client = client_of(filled(new_workspace()))
    for path, cookies in product(PRIVATE, ({}, {COOKIE: "x" * 43}, {COOKIE: ""})):
        client.cookies.clear()
        client.cookies.update(cookies)
        answer = client.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login")
        assert answer.content == b""


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["read", "admin"])
def test_a_key_opens_the_pages_until_it_is_revoked(new_workspace: Maker, scope: str) -> None:
    workspace = filled(new_workspace())
    client, key = client_of(workspace), make_key(workspace.engine, "mine", scope)
    answer = sign_in(client, f" {key}\n")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert key not in answer.headers["set-cookie"]
    assert all(client.get(path).status_code == 200 for path in PRIVATE)
    revoke_key(workspace.engine, "mine")
    assert client.get("/").status_code == 303


@pytest.mark.parametrize("https", [True, False])
def test_the_cookie_is_kept_from_scripts_and_other_sites(new_workspace: Maker, https: bool) -> None:
    workspace = new_workspace()
    answer = sign_in(client_of(workspace, https=https), make_key(workspace.engine, "a", "read"))
    told = answer.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", f"max-age={LASTS}", "path=/"} <= set(told.split("; "))
    assert ("secure" in told.split("; ")) == https


def test_a_wrong_key_is_refused_with_a_sentence(new_workspace: Maker) -> None:
    client = client_of(new_workspace())
    for key in ("", "fs_wrong", "ü", "\0", "x" * 5000, "fs_" + "a" * 43):
        answer = sign_in(client, key)
        assert answer.status_code in (400, 401), key
        assert 'role="alert"' in answer.text
        assert "set-cookie" not in answer.headers


def test_a_key_to_ingest_does_not_open_the_pages(new_workspace: Maker) -> None:
    workspace = new_workspace()
    answer = sign_in(client_of(workspace), make_key(workspace.engine, "sensor", "ingest"))
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_broken_form_is_refused(new_workspace: Maker) -> None:
    client = client_of(new_workspace())
    for body in (b"", b"\xff\xfe", b"key", b"&&&=", b"key=%ff%fe", b"a=1&" * 50):
        assert client.post("/login", content=body).status_code in (400, 401), body


def test_a_form_of_another_site_is_refused(new_workspace: Maker) -> None:
    workspace = new_workspace()
    client, key = client_of(workspace), make_key(workspace.engine, "a", "read")
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert client.post("/login", data={"key": key}, headers=foreign).status_code == 400
    sign_in(client, key)
    client.post("/logout", headers=foreign)
    token = client.cookies.get(COOKIE)
    assert token is None or client.get("/").status_code == 200


def test_signing_out_ends_the_session(new_workspace: Maker) -> None:
    client = signed_in(new_workspace())
    token = client.cookies[COOKIE]
    assert client.get("/").status_code == 200
    assert client.post("/logout").headers["location"] == "/login"
    client.cookies.set(COOKIE, token)
    assert client.get("/").status_code == 303


GONE_TO = [
    (f"/models/{model_id(3)}", f"/models/{model_id(3)}"),
    ("//evil.example", "/"),
    ("https://evil.example/", "/"),
    ("/models/..\\evil", "/"),
    ("/models/a/../../b", "/"),
    ("javascript:alert(1)", "/"),
    ("/models/a\r\nSet-Cookie: x=1", "/"),
]


def test_after_signing_in_only_own_pages_are_gone_to(new_workspace: Maker) -> None:
    workspace = new_workspace()
    key = make_key(workspace.engine, "a", "read")
    for to, gone_to in GONE_TO:
        assert sign_in(client_of(workspace), key, to=to).headers["location"] == gone_to, to


def test_sessions_end_after_half_a_day_and_their_number_is_bounded() -> None:
    time = 0.0
    sessions = Sessions(lambda: time)
    token = sessions.begin("a")
    time = LASTS - 1.0
    assert sessions.of(token) is not None
    time = LASTS + 1.0
    assert sessions.of(token) is None
    sessions.begin("b")
    assert len(sessions) == 1
    for _ in range(10_010):
        last = sessions.begin("c")
    assert len(sessions) <= 10_000
    assert sessions.of(last) is not None


def test_every_answer_is_guarded(new_workspace: Maker) -> None:
    client = signed_in(filled(new_workspace()))
    for path in (*PRIVATE, "/login", "/models/nobody", "/assets/nothing.js"):
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy, path
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        if answer.headers.get("content-type", "").startswith("text/html") and "attachment" not in str(answer.headers):
            assert "<style" not in answer.text
            assert not re.search(r"\son\w+=|\sstyle=", answer.text)


def test_the_overview_holds_what_was_read(new_workspace: Maker) -> None:
    workspace = filled(new_workspace())
    page = signed_in(workspace, health=lambda: {"requests": 4711, "p99_seconds": 0.0031, "new_one": 5}).get("/").text
    read, overview = Reader(page), read_overview(workspace)
    text = "".join(read.texts)
    for model in overview.models:
        assert model.id in text
        assert model.reason[1:] in text
        scores = model.judged(METRIC)
        assert scores is None or scores.mean is None or number(scores.mean) in text
    for period in overview.judged:
        assert period.scores is not None
        assert period.largest_gap is not None
        shown = [
            period.largest_gap.value,
            *(period.largest_gap.interval or ()),
            period.largest_gap.null_mean,
            period.limit,
        ]
        shown += [*period.scores.by_group.values(), period.scores.mean]
        for value in shown:
            assert value is None or number(value) in text
        assert f"{period.n_events:,}" in text
    assert "4,711" in text
    assert "3.10 ms" in text
    assert "New one" in text


def test_every_picture_has_a_sentence_and_every_page_its_order(new_workspace: Maker) -> None:
    client = signed_in(filled(new_workspace()))
    for path in ("/", f"/models/{model_id(5)}", "/login", "/models/nobody"):
        read = Reader(client.get(path).text)
        assert read.headings[0] == 1
        assert read.headings.count(1) == 1
        assert all(below <= above + 1 for above, below in zip(read.headings, read.headings[1:], strict=False))
        assert not [id_ for id_, n in read.ids.items() if n > 1]
        for tag, told in read.attributes:
            if told.get("class") == "chart":
                assert told["role"] == "img"
                assert str(told["aria-label"]).endswith(".")
            if tag == "a" and str(told.get("href", "")).startswith("#"):
                assert str(told["href"])[1:] in read.ids
        assert read.tags["main"] == read.tags["html"] == 1
    read = Reader(client.get("/").text)
    assert sum(told.get("class") == "chart" for _, told in read.attributes) == 9
    assert read.tags["details"] >= 3


def test_what_others_wrote_stays_text(new_workspace: Maker) -> None:
    workspace = new_workspace(group=HOSTILE)
    scores = {
        "mean": 0.2,
        "by_group": {HOSTILE: 0.3, "other": 0.1},
        "gaps": {HOSTILE: {"value": 0.2, "interval": [0.1, 0.3]}},
        "largest_gap": {"group": HOSTILE, "value": 0.2, "p_value": 0.01, "null_mean": 0.01},
    }
    decision = {
        "promote": False,
        "reason": HOSTILE,
        "checks": [{"name": HOSTILE, "ok": False, "sentence": HOSTILE, "group": HOSTILE}],
    }
    about = {
        "configuration": {HOSTILE: HOSTILE},
        "versions": {HOSTILE: HOSTILE},
        "data": {"sha256": HOSTILE, HOSTILE: HOSTILE},
        "evaluation": {"metrics": {METRIC: scores}},
    }
    with writing(workspace.engine) as connection:
        add_period(connection, 0, evaluation={"metrics": {METRIC: scores}})
        add_model(connection, SHORT_HOSTILE, 0, decision=decision, about=about, state="<b>odd</b>")
    client = signed_in(workspace, health=lambda: {HOSTILE: HOSTILE})
    listed = client.get("/")
    (link,) = {
        str(told["href"])
        for tag, told in Reader(listed.text).attributes
        if str(told.get("href")).startswith("/models/")
    }
    for answer in (listed, client.get(link), client.get(f"{link}/audit.html")):
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert "<img" not in answer.text
        assert "<b>odd" not in answer.text
        assert html.escape(HOSTILE, quote=False) in answer.text
    document = client.get(f"{link}/audit.json").json()
    assert document["model"]["decision"]["reason"] == HOSTILE


def test_the_data_of_the_charts_cannot_end_their_element(new_workspace: Maker) -> None:
    workspace = new_workspace()
    name = "</script><script>alert(1)</script>"
    scores = {"mean": 0.2, "by_group": {name: 0.3}, "largest_gap": {"group": name, "value": 0.2}}
    with writing(workspace.engine) as connection:
        add_period(connection, 0, evaluation={"metrics": {METRIC: scores}})
    page = signed_in(workspace).get("/").text
    (data,) = re.findall(r'<script id="charts" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert name in [row.get("name") for row in json.loads(data)["drawn"]["chart-groups"]["rows"]]


def test_audit_reports_are_files_to_keep(new_workspace: Maker) -> None:
    client = signed_in(filled(new_workspace()))
    for suffix, kind in (("html", "text/html"), ("json", "application/json")):
        answer = client.get(f"/models/{model_id(9)}/audit.{suffix}")
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-disposition"].startswith("attachment")
        assert f"audit-{model_id(9)}.{suffix}" in answer.headers["content-disposition"]


def test_there_is_no_such_model(new_workspace: Maker) -> None:
    client = signed_in(new_workspace())
    for id_ in ("nobody", "%00", "%ff", "a%0Ab", "%F0%9F%92%A5", "x" * 500, "%25", "..%5c"):
        for path in (f"/models/{id_}", f"/models/{id_}/audit.html", f"/models/{id_}/audit.json"):
            assert client.get(path).status_code == 404, path


def test_any_page_can_be_asked_for(new_workspace: Maker) -> None:
    client = signed_in(filled(new_workspace()))
    for before in ("", "x", "-1", "0", "5", "9" * 40, "٣", "1e3", "\0"):
        assert client.get("/", params={"before": before}).status_code == 200, before


def test_assets_are_named_by_their_content_and_kept(new_workspace: Maker) -> None:
    client = signed_in(filled(new_workspace()))
    addresses = set(re.findall(r'"(/assets/[^"]+)"', client.get("/").text))
    assert len(addresses) == 4
    client.cookies.clear()  # the page that asks for a key needs them, too
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        plain = client.get(address, headers={"Accept-Encoding": "identity"})
        assert plain.content == answer.content
        assert "content-encoding" not in plain.headers
    assert client.get("/assets/look.0.css").status_code == 404
    assert client.get("/assets/..%2froutes.py").status_code == 404


def test_a_database_that_is_away_is_said_in_a_sentence(new_workspace: Maker) -> None:
    workspace = filled(new_workspace())
    client = signed_in(workspace)
    from sqlalchemy import event
    from sqlalchemy.exc import OperationalError

    @event.listens_for(workspace.engine, "before_cursor_execute")
    def _away(*_: object) -> None:
        raise OperationalError("select", {}, Exception("gone"))

    for path in ("/", f"/models/{model_id(1)}"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers
        assert "Traceback" not in answer.text
    event.remove(workspace.engine, "before_cursor_execute", _away)
    assert client.get("/").status_code == 200


def test_odd_states_of_the_database_still_have_a_page(new_workspace: Maker) -> None:
    """Everything is missing that may be missing."""
    workspace = new_workspace()
    scores = {"mean": None, "by_group": {"a": None}, "largest_gap": None, "disparity": None}
    with writing(workspace.engine) as connection:
        add_period(connection, 0, n_events=0, n_late=0)
        add_period(connection, 1, evaluation={"metrics": {METRIC: scores}, "n_tested_users": 0, "n_cold_users": 0})
        add_period(connection, 2, evaluation={"metrics": {}})
        add_model(connection, "empty", 1, decision={}, about={})
        add_model(
            connection, "less", 2, decision={"checks": None, "reason": None}, about={"evaluation": None}, state="failed"
        )
        add_model(connection, "late", 2, parent="gone", created=BEGINS + 9 * DAY)
    client = signed_in(workspace)
    assert client.get("/").status_code == 200
    for id_ in ("empty", "less", "late"):
        for path in (f"/models/{id_}", f"/models/{id_}/audit.html", f"/models/{id_}/audit.json"):
            assert client.get(path).status_code == 200
