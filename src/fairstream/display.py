"""How results show in a notebook and a terminal, and how they become tables and charts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any

import pyarrow as pa

from fairstream.errors import ConfigurationError
from fairstream.text import text_table

COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#009E73", "#E69F00", "#56B4E9", "#767676")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


@dataclass(frozen=True)
class Summary:
    """What is shown of an object."""

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    more: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]] = ()
    """Further tables: headings and rows."""
    captions: Sequence[str] = ()
    """What the tables mean, in lines below them."""

    def text(self) -> str:
        """As plain text.

        >>> print(Summary("Two groups", ["group", "ndcg@20"], [["M", "0.25"]], ["one seed"]).text())
        Two groups
        group  ndcg@20
        ──────────────
        M         0.25
        note: one seed
        """
        tables = [text_table(*table) for table in self._tables]
        lines = [*self.captions, *(f"note: {note}" for note in self.notes)]
        if not self.more:
            return "\n".join([self.title, *tables, *lines])
        return "\n\n".join([self.title, *tables, "\n".join(lines)])

    def html(self) -> str:
        """As HTML, with every word escaped.

        >>> Summary("a < b").html()
        '<div><p>a &lt; b</p></div>'
        """
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.title.splitlines())
        tables = ""
        for headings, rows in self._tables:
            head, *body = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in (headings, *rows))
            head = head.replace("<td>", "<th>").replace("</td>", "</th>")
            tables += f"<table><thead><tr>{head}</tr></thead><tbody><tr>{'</tr><tr>'.join(body)}</tr></tbody></table>"
        captions = "".join(f"<p>{escape(line)}</p>" for line in self.captions)
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"<div>{lines}{tables}{captions}{f'<ul>{notes}</ul>' if notes else ''}</div>"

    @property
    def _tables(self) -> list[tuple[Sequence[str], Sequence[Sequence[str]]]]:
        return [*([(self.headings, self.rows)] if self.rows else []), *self.more]


class Shown(ABC):
    """Shows as a `Summary`, in a terminal as text and in a notebook as HTML."""

    @abstractmethod
    def _summary(self) -> Summary:
        """Return what is shown."""

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()


class Tabular(Shown):
    """Shows itself, and becomes a table of pandas, Polars or Arrow."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """As an Arrow table."""

    def to_pandas(self) -> Any:
        """As a pandas frame, where pandas is installed."""
        needed("pandas", "to_pandas", "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """As a Polars frame, where Polars is installed."""
        return needed("polars", "to_polars", "polars").from_arrow(self.to_arrow())


def needed(module: str, what: str, install: str) -> Any:
    """Return an optional module; raise ConfigurationError where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ConfigurationError(f"{what} needs {module}; install it with: pip install '{install}'") from None


def charts() -> Any:
    """Return altair, which draws what `plot` returns."""
    return needed("altair", "plot", "fairstream[report]")


SIZE = {"width": 420, "height": 260}
"""Of a chart, in pixels: one that fits beside text."""


def colour(name: str, values: Sequence[str]) -> Any:
    """Return the colour of each value of a field, in the given order."""
    alt = charts()
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(values))]
    return alt.Color(f"{name}:N", title=None, scale=alt.Scale(domain=list(values), range=colours))
