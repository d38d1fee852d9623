"""The schema says everything in words and by example, and the page shows all of it without a network."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from fairstream.service.api.app import ROUTES
from fairstream.service.api.errors import CODES
from fairstream.service.api.openapi import operations_of, schema_of
from fairstream.service.keys import SCOPES
from fairstream.service.workspace import Workspace
from live_services import Running

Shared = tuple[Workspace, Running]


def test_every_property_parameter_and_body_has_a_description_and_an_example(shared: Shared) -> None:
    schema = shared[1].get("/v1/openapi.json").json()
    lacking = []
    for name, model in schema["components"]["schemas"].items():
        assert model.get("description"), name
        for field, part in model.get("properties", {}).items():
            if not part.get("description") or ("$ref" not in part and "examples" not in part):
                lacking.append(f"{name}.{field}")
    for method, path, operation in operations_of(schema):
        assert operation["description"]
        lacking += [
            f"{method} {path} {part['name']}"
            for part in operation["parameters"]
            if not part.get("description") or "examples" not in part["schema"]
        ]
        for where, body in [("body", operation.get("requestBody", {})), *operation["responses"].items()]:
            for kind, media in body.get("content", {}).items():
                if not media.get("example") and not media.get("examples"):
                    lacking.append(f"{method} {path} {where} {kind}")
    assert not lacking, "add a docstring, and for a text an example"


def test_examples_are_valid(shared: Shared) -> None:
    schema = shared[1].get("/v1/openapi.json").json()
    schemas = {"components": schema["components"]}

    def check(part: dict[str, Any], example: Any, where: str) -> None:
        errors = [error.message for error in Draft202012Validator({**part, **schemas}).iter_errors(example)]
        assert not errors, (where, errors)

    for name, model in schema["components"]["schemas"].items():
        for field, part in model.get("properties", {}).items():
            for example in part.get("examples", ()):
                check(part, example, f"{name}.{field}")
    for method, path, operation in operations_of(schema):
        for part in operation["parameters"]:
            check(part["schema"], part["schema"]["examples"][0], f"{path} {part['name']}")
        for body in (operation.get("requestBody", {}), *operation["responses"].values()):
            for media in body.get("content", {}).values():
                for example in [each["value"] for each in media.get("examples", {}).values()] or [media["example"]]:
                    check(media["schema"], example, f"{method} {path}")


def test_names_are_plain_and_errors_are_those_that_are_sent(shared: Shared) -> None:
    schema = shared[1].get("/v1/openapi.json").json()
    names = [operation["operationId"] for _, _, operation in operations_of(schema)]
    assert [name for name, n in Counter(names).items() if n > 1] == []
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) for name in names)
    assert all(re.fullmatch("([A-Z][a-z]+)+", name) for name in schema["components"]["schemas"])
    assert "HTTPValidationError" not in json.dumps(schema)
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(schema)))
    assert used <= schema["components"]["schemas"].keys()
    for _, path, operation in operations_of(schema):
        for status, answer in operation["responses"].items():
            assert "X-Request-ID" in answer["headers"]
            if status >= "400" and path != "/readyz":
                codes = re.findall("`([a-z_]+)`:", answer["description"])
                assert codes, (path, status)
                assert {CODES[code].status for code in codes} == {int(status)}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.ids, self.links, self.words = Counter[str](), set[str](), list[str](), ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids |= {value or "" for name, value in attrs if name == "id"}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_shows_every_operation_and_needs_no_key_no_script_and_no_network(shared: Shared) -> None:
    _, client = shared
    answer, schema = client.get("/docs"), client.get("/v1/openapi.json").json()
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = Page(answer.text)
    assert not page.tags & Counter(["script", "iframe", "style"])
    assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#") and link != "#main"} <= page.ids
    for link in {link for link in page.links if link.startswith("/assets/")}:
        assert client.get(link).status_code == 200
    for method, path, operation in operations_of(schema):
        assert operation["operationId"] in page.ids
        assert f"{method.upper()} {path}" in page.words
        for part in operation["parameters"]:
            assert part["description"].replace("`", "") in page.words
    for name, model in schema["components"]["schemas"].items():
        assert f"schema-{name}" in page.ids
        for part in model.get("properties", {}).values():
            assert "$ref" in part or part["description"].replace("`", "") in page.words
    for code, each in CODES.items():
        assert code in page.words
        assert each.meaning.replace("`", "") in page.words


def test_the_schema_is_made_once(shared: Shared) -> None:
    _, client = shared
    assert client.get("/v1/openapi.json").json() == json.loads(json.dumps(schema_of(ROUTES)))
    seconds = []
    for _ in range(30):
        begin = time.perf_counter()
        client.get("/v1/openapi.json")
        seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    schema_of(ROUTES)
    assert statistics.median(seconds) < (time.perf_counter() - begin) / 2


def test_the_guide_has_an_example_of_every_operation_and_every_code(shared: Shared) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "how-to" / "http.md").read_text(encoding="utf-8")
    for code, each in CODES.items():
        assert f"| `{code}` | {each.status} | {each.meaning} |" in guide
    for scope in SCOPES:
        assert f"| `{scope}` |" in guide
    for _, path, operation in operations_of(shared[1].get("/v1/openapi.json").json()):
        assert f"client.{operation['operationId']}(" in guide
        part = re.sub(r"\\{\w+\\}", "[^/ ']+", re.escape(path))
        assert re.search(f"localhost:8000{part}|`{part}`", guide), path
