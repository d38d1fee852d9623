"""The directive `http-reference`: every operation of the service, from its own schema."""

from __future__ import annotations

from cli_reference import paragraphs, section, table
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from fairstream.service.api.app import ROUTES
from fairstream.service.api.openapi import operations_of, schema_of


class HttpReference(SphinxDirective):
    """A section for each operation."""

    def run(self) -> list[nodes.Node]:
        operations = operations_of(schema_of(ROUTES))
        return [described(f"{method.upper()} {path}", operation) for method, path, operation in operations]


def described(title: str, operation: dict) -> nodes.section:
    """Describe an operation, its parameters, and the statuses of its answers."""
    described_operation = section(title)
    described_operation += paragraphs(operation.get("description", ""))
    records = [
        (parameter["name"], f"In the {parameter['in']}. {parameter.get('description', '')}")
        for parameter in operation.get("parameters", ())
    ]
    codes = [(code, answer["description"]) for code, answer in sorted(operation["responses"].items())]
    described_operation += table([*records, *codes])
    return described_operation


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("http-reference", HttpReference)
    return {"version": "1", "parallel_read_safe": True}
