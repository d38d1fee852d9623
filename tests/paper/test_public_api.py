"""The study of the paper uses documented names of public modules, and the toolkit of the pages."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairstream.paper

PUBLIC = (
    "fairstream",
    "fairstream.experiments",
    "fairstream.evaluation",
    "fairstream.objectives",
    "fairstream.data.datasets",
    "fairstream.distributed",
)
TOOLKIT = ("fairstream.files", "fairstream.pages", "fairstream.plotting", "fairstream.text")
EXTENSIONS = {"adver.py", "protocol.py", "recovery.py", "rerank.py", "run.py", "surrogates.py", "theory.py"}
"""They extend the inner classes of the library, which is not public."""
FILES = sorted(path for path in Path(fairstream.paper.__file__).parent.rglob("*.py") if path.name not in EXTENSIONS)


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that a file imports from fairstream."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fairstream":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "fairstream")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_public_names_are_imported(path: Path) -> None:
    outside = {(module, name) for module, name in imports(path) if not module.startswith("fairstream.paper")}
    private = {
        (module, name)
        for module, name in outside
        if not module.startswith(TOOLKIT)
        if module not in PUBLIC or name not in importlib.import_module(module).__all__
    }
    assert private == set()


def test_there_is_something_to_look_at() -> None:
    assert {module for path in FILES for module, _ in imports(path)} >= set(PUBLIC[:3])
