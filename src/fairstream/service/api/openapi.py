"""The OpenAPI schema, with a description and an example for every property, and its page `/docs`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from fairstream._version import __version__
from fairstream.service.api.errors import CODES
from fairstream.service.api.ingest import Impressions
from fairstream.service.api.recommendations import Question
from fairstream.service.api.schemas import JSON, JSON_LINES, REF, EventBatch, ItemChange, UserGroup
from fairstream.service.dashboard.web import PageRoute, html, render, root_of

Schema = dict[str, Any]
SCHEMA_PATH, PAGE_PATH = "/v1/openapi.json", "/docs"
_ROOT = "ROOT-OF-THIS-SERVICE"
_ABOUT = (
    "Recommendations that keep up with new data and stay fair to groups of users. Every request carries "
    "`Authorization: Bearer KEY`, except those of the schema, of this page and of the two probes. The answer to a "
    "refused request is `{detail, code}`. Every answer has an `X-Request-ID`, the client's own if it sent one; lines "
    "of the log have it, too."
)
_REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "description": "An id of this request, for the log: 1 to 64 letters, digits and any of ._:-",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,64}$", "examples": ["checkout-81f3"]},
}
_SENT_ID = {"description": "The id of the request.", "schema": _REQUEST_ID["schema"]}
_EXAMPLES = {"integer": 3, "number": 0.5, "boolean": True, "object": {}, "date-time": "2026-11-16T09:30:00Z"}
"""Of types, for parts whose fields have none."""
_BODIES = (
    EventBatch,
    Impressions,
    ItemChange,
    Question,
    UserGroup,
)  # which threads parse, so that FastAPI does not know of them


def routes(described: Sequence[BaseRoute]) -> list[BaseRoute]:
    """Return the routes of the schema and its page, which are rendered now so that no request waits for them."""
    schema = schema_of(described)
    content, page = json.dumps(schema, ensure_ascii=False, separators=(",", ":")), page_of(schema)

    async def send_schema(request: Request) -> Response:
        root = root_of(request.scope)
        own = json.dumps({**schema, "servers": [{"url": root}]}, ensure_ascii=False) if root else content
        return Response(own, media_type=JSON)

    async def send_page(request: Request) -> Response:
        return html(page.replace(_ROOT, root_of(request.scope)))

    return [PageRoute(SCHEMA_PATH, send_schema), PageRoute(PAGE_PATH, send_page)]


def schema_of(routes: Sequence[BaseRoute]) -> Schema:
    """Return the schema of routes."""
    schema = get_openapi(title="fairstream", version=__version__, description=_ABOUT, routes=routes)
    _, bodies = models_json_schema([(model, "validation") for model in _BODIES], ref_template=f"{REF}{{model}}")
    schemas: dict[str, Schema] = schema["components"]["schemas"]
    schemas.update(bodies["$defs"])
    for each in schemas.values():
        for part in each.get("properties", {}).values():
            if "$ref" not in part:
                part.setdefault("examples", [example_of(part, schema)])
    schema = json.loads(re.sub(r"Page_(\w+?)_(?=\W)", r"\1Page", json.dumps(schema)))  # UpdatePage for Page[Update]
    for _, _, operation in operations_of(schema):
        _complete(operation, schema)
    return schema


def _complete(operation: Schema, schema: Schema) -> None:
    """Add examples of parameters, bodies and answers, and the request's id."""
    parameters, answers = operation.setdefault("parameters", []), operation["responses"].values()
    for parameter in parameters:
        parameter["schema"].setdefault("examples", [example_of(parameter["schema"], schema)])
    parameters.append(_REQUEST_ID)
    for body in (operation.get("requestBody", {}), *answers):
        content = body.get("content", {})
        for media in content.values():
            media.setdefault("example", example_of(media.get("schema", {}), schema))
        if JSON_LINES in content:
            lines = content[JSON]["example"]
            content[JSON_LINES]["example"] = "\n".join(json.dumps(each, ensure_ascii=False) for each in lines)
    for answer in answers:
        answer.setdefault("headers", {})["X-Request-ID"] = _SENT_ID
        if codes := [code for code in CODES if f"`{code}`" in answer["description"]]:
            media = answer["content"][JSON]
            del media["example"]
            media["examples"] = {code: {"value": {"detail": CODES[code].meaning, "code": code}} for code in codes}


def operations_of(schema: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield the method, path and description of every operation."""
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def example_of(part: Schema, schema: Schema) -> Any:
    """Return an example of a part of the schema: its own, its default, that of its parts, or one of its type."""
    own = [*part.get("examples", ()), part.get("default")][0]
    if own is not None:
        return own
    if "$ref" in part:
        return example_of(schema["components"]["schemas"][part["$ref"].rpartition("/")[2]], schema)
    if choices := _choices(part):
        return example_of(choices[0], schema)
    if part.get("type") == "array":
        return [example_of(part["items"], schema)]
    if "properties" in part:
        return {name: example_of(each, schema) for name, each in part["properties"].items()}
    of_type = _EXAMPLES.get(str(part.get("format", part.get("type"))))
    return part.get("const") or part.get("enum", [of_type])[0]


def _choices(part: Schema) -> list[Schema]:
    return part.get("anyOf") or part.get("oneOf") or part.get("allOf") or []


# ── the page ─────────────────────────────────────────────────────────────────────────────


def page_of(schema: Schema) -> str:
    """Return the page: every operation by its tag, then the schemas and the codes of errors."""
    groups: dict[str, list[Schema]] = {}
    for method, path, operation in operations_of(schema):
        scopes = [scope for each in operation.get("security", ()) for scopes in each.values() for scope in scopes]
        row = {**operation, "method": method.upper(), "path": path, "scope": scopes[0] if scopes else None}
        row["curl"] = _curl(row)
        groups.setdefault(operation["tags"][0], []).append(row)
    return render(
        "docs.html",
        schema=schema,
        groups=groups,
        codes=CODES,
        type_of=type_of,
        phrase_of=lambda status: HTTPStatus(int(status)).phrase,
        name="fairstream",
        root=_ROOT,
    )


def _curl(row: Schema) -> str:
    path = row["path"]
    for parameter in row["parameters"]:
        path = path.replace(f"{{{parameter['name']}}}", str(parameter["schema"]["examples"][0]))
    lines = [f"curl -X {row['method']} 'http://localhost:8000{path}'"]
    if row["scope"]:
        lines.append('-H "Authorization: Bearer $KEY"')
    if body := row.get("requestBody"):
        lines += [f"-H 'Content-Type: {JSON}'", f"-d '{json.dumps(body['content'][JSON]['example'])}'"]
    return " \\\n  ".join(lines)


def type_of(part: Schema) -> str:
    """Return the type of a part of the schema, in words."""
    if "$ref" in part:
        return str(part["$ref"].rpartition("/")[2])
    if choices := _choices(part):
        return " or ".join(dict.fromkeys(type_of(choice) for choice in choices))
    if part.get("type") == "array":
        return f"list of {type_of(part.get('items', {}))}"
    if "const" in part or "enum" in part:
        return " or ".join(json.dumps(value) for value in part.get("enum", [part.get("const")]))
    return str(part.get("format") or part.get("type", "any value"))
