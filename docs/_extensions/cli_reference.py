"""The directive `cli-reference`: every command and option of the command line, from the program itself."""

from __future__ import annotations

import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from fairstream.cli import COMMANDS, load_command

EVERYWHERE = {"--help", "--install-completion", "--show-completion"}


class CliReference(SphinxDirective):
    """A section for each panel of the help, and in it one for each command."""

    def run(self) -> list[nodes.Node]:
        panels: dict[str, nodes.section] = {}
        for name, command in COMMANDS.items():
            panel = panels.setdefault(command.panel, section(command.panel))
            panel += described(load_command(name), f"fairstream {name}", command.help)
        return list(panels.values())


def described(command: Any, path: str, summary: str) -> nodes.section:
    """A command, what it takes, and the commands below it."""
    described_command, context = section(path), command.context_class(command, info_name=path)
    described_command += paragraphs(inspect.cleandoc(command.help or summary))
    usage = re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), command.get_usage(context).removeprefix("Usage: "))
    described_command += nodes.literal_block(usage, usage, language="text")
    parts = [part for part in command.get_params(context) if not EVERYWHERE.intersection(part.opts)]
    if records := [record for part in parts if (record := part.get_help_record(context))]:
        described_command += table(records)
    for name, inner in getattr(command, "commands", {}).items():
        described_command += described(inner, f"{path} {name}", "")
    return described_command


def section(title: str) -> nodes.section:
    """An empty section that can be linked to."""
    empty = nodes.section(ids=[nodes.make_id(title)], names=[nodes.fully_normalize_name(title)])
    empty += nodes.title(title, title)
    return empty


def table(records: list[tuple[str, str]]) -> nodes.table:
    """The names of options and arguments beside what they do."""
    body = nodes.tbody()
    for names, explanation in records:
        left, right = nodes.entry(), nodes.entry()
        left += nodes.paragraph("", "", nodes.literal(names, names))
        right += paragraphs(explanation)
        body += nodes.row("", left, right)
    group = nodes.tgroup("", nodes.colspec(colwidth=35), nodes.colspec(colwidth=65), body, cols=2)
    return nodes.table("", group, classes=["options"])


def paragraphs(text: str) -> list[nodes.Node]:
    """Paragraphs with code between backticks; the help texts hold no other markup."""
    found = []
    for block in re.split(r"\n\s*\n", text.replace("\b", "")):
        paragraph = nodes.paragraph()
        for place, piece in enumerate(re.split(r"`([^`]+)`", " ".join(block.split()))):
            paragraph += nodes.literal(piece, piece) if place % 2 else nodes.Text(piece)
        found.append(paragraph)
    return found


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make the directive known."""
    app.add_directive("cli-reference", CliReference)
    return {"version": "1", "parallel_read_safe": True}
