"""The OpenAPI schema, with an example for every property, and its page `/docs`: made once, served as bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from fairstream.service.api.errors import CODES
from fairstream.service.api.fields import ABOUT
from fairstream.service.api.recommendations import Question
from fairstream.service.api.schemas import JSON, JSON_LINES, REF, EventBatch, ItemChange, UserGroup
from fairstream.service.dashboard.web import PageRoute, html, render, root_of

Schema = dict[str, Any]
SCHEMA_PATH, PAGE_PATH = "/v1/openapi.json", "/docs"
_ROOT = "ROOT-OF-THIS-SERVICE"
_ABOUT = (
    "Recommendations that keep up with new data and stay fair to groups of users. Every request but the schema, this "
    "page and the two probes carries `Authorization: Bearer KEY`. A refused request is answered with "
    "`{detail, code}`. Every answer has an `X-Request-ID`, the client's if it sent one; the log has it, too."
)
_REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "description": "An id of this request, for the log: 1 to 64 letters, digits and any of ._:-",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,64}$", "examples": ["checkout-81f3"]},
}
_INVALID = {
    "description": f"`invalid`: {CODES['invalid'].meaning}",
    "content": {JSON: {"schema": {"$ref": f"{REF}Problem"}}},
}


def routes(app: FastAPI) -> list[BaseRoute]:
    """Return the routes of the schema and its page, made now so that no request waits for them."""
    schema = schema_of(app)
    content, page = json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode(), page_of(schema)

    async def send_schema(request: Request) -> Response:
        root = root_of(request.scope)
        own = content if not root else json.dumps({**schema, "servers": [{"url": root}]}, ensure_ascii=False)
        return Response(own, media_type="application/json")

    async def send_page(request: Request) -> Response:
        return html(page.replace(_ROOT, root_of(request.scope)))

    return [PageRoute(SCHEMA_PATH, send_schema), PageRoute(PAGE_PATH, send_page)]


def schema_of(app: FastAPI) -> Schema:
    """Return the schema of an application's API routes."""
    schema = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    schemas: dict[str, Schema] = schema["components"]["schemas"]
    # Bodies that threads parse, or that are read column by column.
    more = models_json_schema(
        [(model, "validation") for model in (EventBatch, ItemChange, Question, UserGroup)],
        ref_template=f"{REF}{{model}}",
    )
    schemas.update(more[1].get("$defs", {}))
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name, each in schemas.items():
        each.setdefault("description", "A part of a long list.")  # of a generic model, whose docstring is not taken
        for field, part in each.get("properties", {}).items():
            part.setdefault("description", _describe(field, part, name))
    for each in schemas.values():
        for part in each.get("properties", {}).values():
            if "examples" not in part and "$ref" not in part and REF in json.dumps(part):
                part["examples"] = [example_of(part, schema)]
    schema = json.loads(re.sub(r"Page_(\w+?)_(?=\W)", r"\1Page", json.dumps(schema)))
    for _, _, operation in operations_of(schema):
        _complete(operation, schema)
    return schema


def _complete(operation: Schema, schema: Schema) -> None:
    """Add descriptions and examples of parameters, bodies and answers, and the request's id."""
    for parameter in operation.setdefault("parameters", []):
        about = _describe(parameter["name"], parameter["schema"])
        parameter.setdefault("description", about)
    operation["parameters"].append(_REQUEST_ID)
    if "HTTPValidationError" in json.dumps(operation["responses"].get("422")):  # `errors` answers instead
        operation["responses"]["422"] = deepcopy(_INVALID)
    for body in (operation.get("requestBody", {}), *operation["responses"].values()):
        content = body.get("content", {})
        for media in content.values():
            media.setdefault("example", example_of(media.get("schema", {}), schema))
        if JSON_LINES in content:
            lines = content[JSON]["example"]
            content[JSON_LINES]["example"] = "\n".join(json.dumps(each, ensure_ascii=False) for each in lines)
    for answer in operation["responses"].values():
        answer.setdefault("headers", {})["X-Request-ID"] = {
            "description": "The id of the request.",
            "schema": _REQUEST_ID["schema"],
        }
        if codes := [code for code in CODES if f"`{code}`" in answer["description"]]:
            media = answer["content"][JSON]
            del media["example"]
            values = ({"detail": CODES[code].meaning, "code": code} for code in codes)
            media["examples"] = {code: {"value": value} for code, value in zip(codes, values, strict=True)}


def operations_of(schema: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield the method, path and description of every operation."""
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def _describe(name: str, part: Schema, model: str = "") -> str:
    """Add an example to a field or parameter; return its description."""
    about, example = ABOUT.get(f"{model}.{name}") or ABOUT.get(name, ("", ...))
    if example is not ... and "$ref" not in part:
        part.setdefault("examples", [example])
    return about


def example_of(part: Schema, schema: Schema) -> Any:
    """Return an example of a part of the schema, put together from those of its properties."""
    if "examples" in part:
        return part["examples"][0]
    if "$ref" in part:
        return example_of(schema["components"]["schemas"][part["$ref"].rpartition("/")[2]], schema)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in part:
            return example_of(part[choice][0], schema)
    if part.get("type") == "array":
        return [example_of(part.get("items", {}), schema)]
    if "const" in part or "enum" in part:
        return part.get("const", part.get("enum", [None])[0])
    return {name: example_of(each, schema) for name, each in part.get("properties", {}).items()}


# ── the page ─────────────────────────────────────────────────────────────────────────────


def page_of(schema: Schema) -> str:
    """Return the page: every operation by its tag, then the schemas and the codes of errors."""
    groups: dict[str, list[Schema]] = {}
    for method, path, operation in operations_of(schema):
        row = {"method": method.upper(), "path": path, **operation, "scope": _scope_of(operation)}
        row["body"] = operation.get("requestBody", {}).get("content", {})
        row["curl"] = _curl(method.upper(), path, operation)
        row["answers"] = [_answer(status, answer) for status, answer in operation["responses"].items()]
        groups.setdefault(operation["tags"][0], []).append(row)
    return render(
        "docs.html", schema=schema, groups=groups, codes=CODES, type_of=type_of, name="fairstream", root=_ROOT
    )


def _answer(status: str, answer: Schema) -> Schema:
    content: Schema = next(iter(answer.get("content", {}).values()), {})
    return {
        "status": status,
        "name": HTTPStatus(int(status)).phrase,
        "about": answer["description"],
        "type": type_of(content.get("schema", {})),
        "example": content.get("example"),
    }


def _scope_of(operation: Schema) -> str | None:
    return next((scope for each in operation.get("security", ()) for scopes in each.values() for scope in scopes), None)


def _curl(method: str, path: str, operation: Schema) -> str:
    query = []
    for parameter in operation["parameters"]:
        example = parameter["schema"].get("examples", [""])[0]
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", str(example))
        elif parameter.get("required"):
            query.append(f"{parameter['name']}={example}")
    lines = [f"curl -X {method} 'http://localhost:8000{path}{'?' if query else ''}{'&'.join(query)}'"]
    if operation.get("security"):
        lines.append('-H "Authorization: Bearer $KEY"')
    for kind, media in list(operation.get("requestBody", {}).get("content", {}).items())[:1]:
        lines += [f"-H 'Content-Type: {kind}'", f"-d '{json.dumps(media['example'], ensure_ascii=False)}'"]
    return " \\\n  ".join(lines)


def type_of(part: Schema) -> str:
    """Return the type of a part of the schema, in words."""
    if "$ref" in part:
        return str(part["$ref"].rpartition("/")[2])
    if choices := part.get("anyOf") or part.get("oneOf") or part.get("allOf"):
        return " or ".join(dict.fromkeys(type_of(choice) for choice in choices))
    if part.get("type") == "array":
        return f"list of {type_of(part.get('items', {}))}"
    if "enum" in part:
        return " or ".join(json.dumps(value) for value in part["enum"])
    if "const" in part:
        return json.dumps(part["const"])
    return str(part.get("format") or part.get("type", "any value"))
