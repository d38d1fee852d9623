"""Requests as bytes: good ones, and every kind of bad one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal
from urllib.parse import quote, quote_from_bytes

from malformed import BAD_IDS, MARK, ODD_TEXTS, bad_event, bad_json, event, scratched, text

JSON, LINES = "application/json", "application/x-ndjson"
Expected = Literal["stored", "answered", "refused", "either"]
"""A bad request may turn out to be a good one where its bytes were changed at random: then it tells what it stored."""
FORM = "application/x-www-form-urlencoded"
PAGES = ("/", "/models/", "/login", "/logout", "/assets/")


@dataclass(frozen=True)
class Shot:
    """A request, and what should become of it."""

    kind: str
    content: bytes
    expected: Expected = "refused"
    events: list[dict[str, Any]] = field(default_factory=list)
    is_cut_off: bool = False
    """It ends before it is complete."""

    @property
    def is_page(self) -> bool:
        """Whether it asks the dashboard, which answers with pages."""
        path = [*self.content.split(b" ", 2), b"", b""][1].decode("latin-1")
        return path == "/" or path.startswith(("/?", *PAGES[1:]))


def http(method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> bytes:
    """A request that is well formed as far as HTTP goes."""
    sent = {"Host": "localhost", "Connection": "close", **(headers or {})}
    if body is not None and "Transfer-Encoding" not in sent:
        sent.setdefault("Content-Length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1", "replace") + (body or b"")


def escaped(value: str) -> str:
    return quote_from_bytes(value.encode("utf-8", "surrogatepass"), safe="")


class Gun:
    """Makes requests of all kinds; the same seed makes the same ones."""

    def __init__(self, seed: int, keys: Any, cookie: str, max_body_bytes: int) -> None:
        self._cookie = cookie
        self._rng, self._keys, self._max, self._n = Random(seed), keys, max_body_bytes, 0
        self._kinds: list[tuple[Callable[[], Shot], int]] = [
            (self._good_events, 3),
            (self._good_question, 2),
            (self._bad_events, 4),
            (self._bad_json, 3),
            (self._scratched_json, 2),
            (self._bad_people, 3),
            (self._bad_question, 3),
            (self._bad_questions, 2),
            (self._bad_management, 3),
            (self._bad_key, 4),
            (self._bad_headers, 3),
            (self._bad_method, 2),
            (self._bad_page, 3),
            (self._bad_login, 3),
            (self._bad_http, 4),
            (self._bad_body, 2),
        ]

    def shot(self) -> Shot:
        self._n += 1
        make, weight = zip(*self._kinds, strict=True)
        return self._rng.choices(make, weight)[0]()  # type: ignore[no-any-return]

    def _post(
        self, kind: str, body: bytes, content_type: str = JSON, expected: Expected = "refused", **more: Any
    ) -> Shot:
        sent = http("POST", "/v1/events", {**self._keys.admin, "Content-Type": content_type}, body)
        return Shot(kind, sent, expected, **more)

    def _good_events(self) -> Shot:
        events = [event(self._rng, self._n * 100 + i) for i in range(self._rng.randrange(1, 5))]
        way = self._rng.randrange(3)
        if way == 0:
            return self._post("good events", text(events), expected="stored", events=events)
        if way == 1:
            body = b"\n".join(map(text, events))
            return self._post("good events", body, LINES, expected="stored", events=events)
        body = b"".join(b"%x\r\n%s\r\n" % (1, bytes([byte])) for byte in text(events)) + b"0\r\n\r\n"
        headers = {**self._keys.admin, "Content-Type": JSON, "Transfer-Encoding": "chunked"}
        return Shot("good events", http("POST", "/v1/events", headers, body), "stored", events)

    def _good_question(self) -> Shot:
        user = escaped(self._rng.choice(["u1", "u2", MARK, "ä/ö", "a b", "'; DROP TABLE events; --"]))
        query = self._rng.choice([f"?k={self._rng.randrange(1, 11)}", "", "?more=1"])
        path = f"/v1/users/{user}/recommendations{query}"
        return Shot("good question", http("GET", path, self._keys.read), "answered")

    def _bad_events(self) -> Shot:
        events = [event(self._rng, self._n) for _ in range(self._rng.randrange(3))] + [bad_event(self._rng, self._n)]
        self._rng.shuffle(events)
        if self._rng.random() < 0.3:
            return self._post("bad events", b"\n".join(map(text, events)), LINES)
        return self._post("bad events", text(self._rng.choice([events, {"events": events}])))

    def _bad_json(self) -> Shot:
        body = bad_json(self._rng)
        is_nothing = not body.strip()  # no line is no event
        content_type = JSON if is_nothing else self._rng.choice([JSON, LINES])
        return self._post("bad JSON", body, content_type, "either" if content_type == LINES else "refused")

    def _scratched_json(self) -> Shot:
        body = scratched(self._rng, text([event(self._rng, self._n) for _ in range(3)]))
        return self._post("scratched JSON", body, self._rng.choice([JSON, LINES]), "either")

    def _bad_people(self) -> Shot:
        rng = self._rng
        good = [{"user_id": f"{MARK}{n}", "group": "a"} for n in range(rng.randrange(3))]
        bad: dict[str, Any] = {"user_id": MARK, "group": "a"}
        way = rng.randrange(4)
        if way == 0:
            del bad[rng.choice(["user_id", "group"])]
        elif way == 1:
            bad[rng.choice(["user_id", "group"])] = rng.choice(BAD_IDS)
        elif way == 2:
            bad["value"] = "a"
        body = text([*good, bad])
        if way == 3:
            body = bad_json(rng)
            body = body if body.strip() else b"{"
        sent = http("PUT", "/v1/users", {**self._keys.attributes, "Content-Type": JSON}, body)
        return Shot("bad people", sent)

    def _bad_question(self) -> Shot:
        rng = self._rng
        if rng.random() < 0.5:
            k = rng.choice(["0", "-1", "11", str(10**30), "ten", "", "1e1", "0x1", "9" * 5000, "\x00", "None"])
            path = f"/v1/users/u1/recommendations?k={escaped(k)}"
            return Shot("bad k", http("GET", path, self._keys.read))
        odd = rng.choice(ODD_TEXTS)
        shown = escaped(odd) if rng.random() < 0.8 else odd.translate({10: "", 13: "", 32: "", 0: ""})
        return Shot("odd user", http("GET", f"/v1/users/{shown}/recommendations", self._keys.read), "either")

    def _bad_questions(self) -> Shot:
        rng = self._rng
        asked = rng.choice(
            [
                {}, [], None, 3, {"users": "u1"}, {"users": None}, {"users": ["u1"] * 21}, {"k": 3}, {"users": {}},
                {"users": [[]]},
                {"users": ["u1"], "more": 1}, {"users": ["u1"], "k": rng.choice([0, -1, 11, 10**30, "ten", "3",
                1.5, True, []])},
                {"users": [rng.choice(BAD_IDS)]},
            ]
        )  # fmt: skip
        headers = {**self._keys.read, "Content-Type": JSON}
        return Shot("bad questions", http("POST", "/v1/recommendations", headers, text(asked)))

    def _bad_management(self) -> Shot:
        rng = self._rng
        odd = escaped(rng.choice(ODD_TEXTS))
        method, path = rng.choice(
            [
                ("GET", f"/v1/models/{odd}"),
                ("POST", f"/v1/models/{odd}/promote"),
                ("POST", "/v1/rollback"),
                ("GET", f"/v1/audit?cursor={rng.choice(['-1', 'x', '1.5', '9' * 30, '%00', ''])}"),
                ("GET", f"/v1/{odd}"),
                ("GET", f"/{odd}x"),
                ("DELETE", f"/v1/models/{odd}"),
            ]
        )
        expected: Expected = "either" if path in ("/v1/models/", "/v1/models/.", "/v1/models/..") else "refused"
        return Shot("bad management", http(method, path, self._keys.admin), expected)

    def _bad_key(self) -> Shot:
        rng = self._rng
        method, path, scope = rng.choice(
            [
                ("POST", "/v1/events", "ingest"), ("PUT", "/v1/users", "attributes"), ("GET",
                "/v1/users/u1/recommendations", "read"),
                ("POST", "/v1/recommendations", "read"), ("GET", "/v1/periods", "read"), ("GET", "/v1/models", "read"),
                ("GET", "/metrics", "read"), ("POST", "/v1/updates", "admin"), ("POST", "/v1/rollback", "admin"),
                ("GET", "/v1/audit", "admin"), ("POST", "/v1/models/model0/promote", "admin"),
            ]
        )  # fmt: skip
        right = getattr(self._keys, scope)["Authorization"]
        wrong = {"ingest", "attributes", "read"} - {scope}
        others = [getattr(self._keys, other)["Authorization"] for other in sorted(wrong)]
        value = rng.choice(
            [
                None, "", "Bearer", "Bearer ", "Basic YTpi", right[:-1], right + "x", right.replace("fs_", "fs-"),
                "Bearer fs_" + "x" * 43,
                right[7:], right.replace(" ", "\t"), "Bearer " + "é" * 46, "Bearer fs_" + "'" * 43,
                right + ", " + right, "x" * 5000,
                *others, *others,
            ]
        )  # fmt: skip
        headers = {"Content-Type": JSON} if value is None else {"Content-Type": JSON, "Authorization": value}
        headers["Cookie"] = rng.choice(
            ["", f"fairstream_session={right[7:]}", "fairstream_session=" + "x" * 43, ";;;=", "é"]
        )
        body = text([event(rng, self._n)]) if method != "GET" else None
        return Shot("bad key", http(method, path, headers, body))

    def _bad_headers(self) -> Shot:
        rng = self._rng
        body = text([event(rng, self._n)])
        headers = {**self._keys.admin, "Content-Type": JSON}
        headers |= rng.choice(
            [
                {"Content-Type": ""}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json2"},
                {"Content-Type": "é"},
                {"Content-Type": "multipart/form-data; boundary=x"}, {"Content-Type": FORM},
                {"Content-Type": "a" * 5000},
                {"Content-Encoding": "gzip"}, {"Content-Encoding": "identity, gzip"}, {"Content-Encoding": "\x01"},
                {"Content-Length": "-1"}, {"Content-Length": "x"}, {"Content-Length": "9" * 30},
                {"Content-Length": "1e3"},
                {"Content-Length": str(self._max + 1)}, {"Transfer-Encoding": "gzip"},
                {"Transfer-Encoding": "chunked, chunked"},
                {"Content-Length": str(len(body) - 1)}, {"Content-Length": "+5"}, {"Content-Length": "0"},
            ]
        )  # fmt: skip
        return Shot("bad headers", http("POST", "/v1/events", headers, body), is_cut_off="Content-Length" in headers)

    def _bad_method(self) -> Shot:
        method = self._rng.choice(
            ["DELETE", "PATCH", "TRACE", "HEAD", "OPTIONS", "PROPFIND", "BREW", "get", "CONNECT", "PRI", "", "G\x00T"]
        )
        path = self._rng.choice(
            ["/v1/events", "/v1/users", "/v1/periods", "/v1/models/x", "/healthz", "/metrics", "/", "*"]
        )
        return Shot("bad method", http(method, path, self._keys.admin), "either", is_cut_off=True)

    def _bad_page(self) -> Shot:
        rng = self._rng
        odd = escaped(rng.choice(ODD_TEXTS))
        path = rng.choice(
            [
                f"/?before={odd}", f"/models/{odd}",
                f"/assets/{odd}",
                f"/login?to={odd}", "/assets/..%2f..%2fsecret", "/assets/vega.0.js", "/models/",
                f"/login?to=https://{odd}",
            ]
        )  # fmt: skip
        cookie = rng.choice(
            [self._cookie] * 6
            + ["", "fairstream_session=", "fairstream_session=" + "x" * 43, "é=ü", "a" * 5000, "=;=;"]
        )
        headers = {"Cookie": cookie, "Host": rng.choice(["localhost", "[", "a b", "", "x" * 1000, "evil:99999999"])}
        return Shot("bad page", http("GET", path, headers), "either")

    def _bad_login(self) -> Shot:
        rng = self._rng
        key = rng.choice([self._keys.ingest, self._keys.read])["Authorization"][7:]
        body = rng.choice(
            [
                b"", b"key=", b"key=%00", b"key=%ff", b"key=" + b"x" * 5000, b"=&=&=", b"&" * 100, b"key=\xff\xfe",
                b"{}",
                b"key=fs_" + b"x" * 43, b"to=//evil.example&key=x", f"key={quote(key)}&to=//evil.example".encode(),
                f"key={quote(key)}&to=%0d%0aX-Injected:1".encode(), f"key={quote(key)}".encode(), b"key=a&" * 20,
            ]
        )  # fmt: skip
        headers = {"Content-Type": rng.choice([FORM, JSON, "", "multipart/form-data"])}
        headers["Host"] = rng.choice(["localhost", "localhost", "[", "é", ""])
        if rng.random() < 0.3:
            headers["Sec-Fetch-Site"] = rng.choice(["cross-site", "", "é"])
        path = rng.choice(["/login", "/login", "/logout"])
        return Shot("bad login", http("POST", path, headers, body), "either")

    def _bad_http(self) -> Shot:
        rng = self._rng
        good = http("POST", "/v1/events", {**self._keys.admin, "Content-Type": JSON}, text([bad_event(rng, self._n)]))
        key = self._keys.read["Authorization"]
        content = rng.choice(
            [
                b"\r\n\r\n", b"\x00" * 50, b"GET", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n",
                b"\x16\x03\x01\x02\x00\x01",
                b"GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n", b"GET /healthz HTTP/1.1\r\n: x\r\n\r\n",
                b"GET /%ff%fe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                b"GET http://[/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 300_000 + b"\r\nConnection: close\r\n\r\n",
                b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"Connection: close\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
                b"GET /v1/models HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade, close\r\n\r\n",
                f"GET /v1/models HTTP/1.1\r\nAuthorization: {key}\r\n folded: x\r\nConnection: close\r\n\r\n".encode(),
                good[: rng.randrange(len(good))], scratched(rng, good),
                bytes(rng.randrange(256) for _ in range(rng.randrange(300))),
            ]
        )  # fmt: skip
        return Shot("bad HTTP", content, "either", is_cut_off=True)

    def _bad_body(self) -> Shot:
        rng = self._rng
        body = text([event(rng, self._n)])
        chunked = {**self._keys.admin, "Content-Type": JSON, "Transfer-Encoding": "chunked"}
        plain = {**self._keys.admin, "Content-Type": JSON}
        large = b"1000\r\n%s\r\n" % (b" " * 4096) * (self._max // 4096 + 1) + b"0\r\n\r\n"
        big = b"[" + b" " * self._max + b"]"
        content = rng.choice(
            [
                http("POST", "/v1/events", chunked, b"zz\r\n" + body + b"\r\n0\r\n\r\n"),
                http("POST", "/v1/events", chunked, b"%x\r\n%s\r\n" % (len(body), body)),
                http("POST", "/v1/events", chunked, b"%x\r\n%s" % (len(body) + 50, body)),
                http("POST", "/v1/events", chunked, b"ffffffffffffffffff\r\n" + body),
                http("POST", "/v1/events", chunked, large),
                http("POST", "/v1/events", {**chunked, "Content-Length": "5"}, b"%x\r\n%s\r\n" % (len(body), body)),
                http("POST", "/v1/events", {**plain, "Content-Length": str(len(body) + 10)}, body),
                http("POST", "/v1/events", plain, big),
                http("PUT", "/v1/users", plain, big),
                http("POST", "/login", {"Content-Type": FORM}, big),
            ]
        )  # fmt: skip
        return Shot("bad body", content, is_cut_off=True)
