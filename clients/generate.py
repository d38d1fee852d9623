"""Write the typed Python client from the service's OpenAPI schema: `python clients/generate.py`."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairstream.service.api.app import ROUTES
from fairstream.service.api.openapi import operations_of, schema_of

Schema = dict[str, Any]
TARGET = Path(__file__).parent / "python" / "src" / "fairstream_client" / "api.py"
_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_HEAD = '''"""The operations of the service and their types. `clients/generate.py` writes this file; do not edit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NotRequired, TypedDict

from fairstream_client.transport import Transport
'''
_CLIENT = '''

class Client(Transport):
    """A client of one service, with a method for each operation.

    >>> client = Client("http://localhost:8000", "fs_…")  # doctest: +SKIP
    >>> client.recommend("ann", k=5)["items"]  # doctest: +SKIP
    """
'''


def source_of(schema: Schema) -> str:
    """Return the source of the module."""
    types = "".join("".join(_type_lines(name, part)) for name, part in sorted(schema["components"]["schemas"].items()))
    methods = "".join(
        "".join(_method_lines(method, path, operation, schema)) for method, path, operation in operations_of(schema)
    )
    return _HEAD + types + _CLIENT + methods


def type_of(part: Schema) -> str:
    """Return the Python type of a part of the schema."""
    if "$ref" in part:
        return str(part["$ref"].rpartition("/")[2])
    if choices := part.get("anyOf") or part.get("oneOf"):
        return " | ".join(dict.fromkeys(type_of(choice) for choice in choices))
    if values := part.get("enum", [part["const"]] if "const" in part else None):
        return f"Literal[{', '.join(json.dumps(value) for value in values)}]"
    if part.get("type") == "array":
        return f"list[{type_of(part.get('items', {}))}]"
    if part.get("type") == "object":
        more = part.get("additionalProperties")
        return f"dict[str, {type_of(more) if isinstance(more, dict) else 'Any'}]"
    return _NAMES.get(part.get("type", ""), "Any")


def _type_lines(name: str, part: Schema) -> Iterator[str]:
    if part.get("additionalProperties") is True:  # properties that the shop declares
        yield f"\n{name} = dict[str, Any]\n" + _quoted(part.get("description", name), "")
        return
    yield f"\n\nclass {name}(TypedDict):\n" + _quoted(part["description"], "    ") + "\n"
    required = part.get("required", ())
    for field, each in part.get("properties", {}).items():
        kind = type_of(each)
        yield f"    {field}: {kind if field in required else f'NotRequired[{kind}]'}\n"
        yield _quoted(each.get("description", ""), "    ") if each.get("description") else ""


def _method_lines(method: str, path: str, operation: Schema, schema: Schema) -> Iterator[str]:
    name, parameters = operation["operationId"], operation["parameters"]
    in_path = [each["name"] for each in parameters if each["in"] == "path"]
    query = [each for each in parameters if each["in"] == "query"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    statuses = {status: _schema(answer) for status, answer in operation["responses"].items()}
    kinds = {status: part for status, part in statuses.items() if part.get("$ref", "").rpartition("/")[2] != "Problem"}
    kind = " | ".join(dict.fromkeys(type_of(part) for part in kinds.values()))
    options = [f"{each['name']}: {_optional(each)}" for each in query]
    arguments = ["self", *(f"{each}: str" for each in in_path), *([f"body: {type_of(body['schema'])}"] if body else [])]
    signature = ", ".join([*arguments, *(["*", *options] if options else [])])
    yield f"\n    def {name}({signature}) -> {kind}:\n"
    yield _quoted(_about(operation, query), "        ")
    sent = [
        json.dumps(method.upper()),
        "f" + json.dumps(re.sub(r"{(\w+)}", r"{self.quote(\1)}", path)) if in_path else json.dumps(path),
    ]
    if query:
        values = ", ".join(f'"{each["name"]}": {each["name"]}' for each in query)
        sent.append(f"query={{{values}}}")
    sent += ["body=body"] if body else []
    if more := [int(status) for status in kinds if int(status) >= 400]:
        sent.append(f"answers={tuple(more)}")
    yield f"        answer: {kind} = self.request({', '.join(sent)})\n        return answer\n"
    page = schema["components"]["schemas"].get(type_of(statuses.get("200", {})), {}).get("properties", {})
    if any(each["name"] == "cursor" for each in query) and "data" in page:
        entry = type_of(page["data"]["items"])
        rest = [each for each in query if each["name"] != "cursor"]
        others = ", ".join(f"{each['name']}: {_optional(each)}" for each in rest)
        passed = ", ".join(["cursor=cursor", *(f"{each['name']}={each['name']}" for each in rest)])
        yield f"\n    def iterate_{name.partition('_')[2]}(self, *, {others}) -> Iterator[{entry}]:\n"
        yield f'        """Yield the entries of all pages of `{name}`."""\n'
        yield f"        return self.iterate(lambda cursor: self.{name}({passed}))\n"


def _schema(answer: Schema) -> Schema:
    content = answer.get("content", {})
    if "application/json" not in content:
        return {"type": "string"}
    return content["application/json"]["schema"]  # type: ignore[no-any-return]


def _optional(parameter: Schema) -> str:
    kind = type_of(parameter["schema"])
    if parameter.get("required"):
        return kind
    return f"{kind} = None" if "None" in kind else f"{kind} | None = None"


def _about(operation: Schema, query: list[Schema]) -> str:
    scopes = [scope for each in operation.get("security", ()) for scopes in each.values() for scope in scopes]
    scope = f"The key needs the scope {scopes[0]}." if scopes else "Needs no key."
    options = [f"{each['name']}\n    {each['description']}" for each in query]
    description = re.sub(r"(?<!\n)\n(?!\n)", " ", operation["description"])
    parts = [description, scope, *(["Parameters\n----------\n" + "\n".join(options)] if options else [])]
    return "\n\n".join(parts)


def _quoted(text: str, indent: str) -> str:
    """Return a docstring, wrapped."""
    lines = [
        part
        for line in text.replace("\\", "\\\\").split("\n")
        for part in (textwrap.wrap(line, 112 - len(indent), subsequent_indent=re.match(" *", line)[0]) or [""])  # type: ignore[index]
    ]
    body = "\n".join(f"{indent}{line}".rstrip() for line in lines).lstrip()
    end = f"\n{indent}" if len(lines) > 1 else ""
    return f'{indent}"""{body}{end}"""\n'


if __name__ == "__main__":
    TARGET.write_text(source_of(schema_of(ROUTES)), encoding="utf-8")
    subprocess.run(["ruff", "format", "--quiet", TARGET], check=True)  # noqa: S603, S607
    print(f"wrote {TARGET}")
