"""The directive `http-reference`: every request of the service, from its own schema."""

from __future__ import annotations

from cli_reference import paragraphs, section, table
from docutils import nodes
from fastapi import FastAPI
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from fairstream.service.api.app import ROUTERS
from fairstream.service.api.openapi import schema_of

METHODS = ("get", "put", "post", "delete")


class HttpReference(SphinxDirective):
    """A section for each request."""

    def run(self) -> list[nodes.Node]:
        app = FastAPI()
        for router in ROUTERS:
            app.include_router(router)
        paths = schema_of(app)["paths"]
        return [
            described(f"{method.upper()} {path}", requests[method])
            for path, requests in paths.items()
            for method in METHODS
            if method in requests
        ]


def described(title: str, request: dict) -> nodes.section:
    """A request, its parameters, and the codes that it answers with."""
    described_request = section(title)
    described_request += paragraphs(request.get("description", ""))
    records = [
        (parameter["name"], f"In the {parameter['in']}. {parameter.get('description', '')}")
        for parameter in request.get("parameters", ())
    ]
    codes = [(code, answer["description"]) for code, answer in sorted(request["responses"].items())]
    described_request += table([*records, *codes])
    return described_request


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make the directive known."""
    app.add_directive("http-reference", HttpReference)
    return {"version": "1", "parallel_read_safe": True}
