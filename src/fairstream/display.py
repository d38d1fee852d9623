"""Tables for terminals, notebooks and pages, and objects that print as tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fairstream.errors import ConfigurationError
from fairstream.text import text_table

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True)
class Table:
    """Headings and rows. `console.print` of Rich prints it; pages render it with the macro `table`."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]  # the cells of each row; an empty row is a rule
    title: str = ""
    caption: str = ""
    align: str = "l"  # a letter for each column, `l` or `r`; a capital may wrap. Further columns are `r`.

    def text(self) -> str:
        """Return headings and rows as plain text."""
        return text_table(self.headings, self.rows)

    def html(self) -> str:
        """Return headings and rows as HTML; every cell is escaped."""
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.headings)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows if row)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def is_number(self, column: int) -> bool:
        """Return whether a column is aligned to the right."""
        return self.align[column : column + 1] in ("", "r", "R")

    def __rich__(self) -> rich.table.Table:
        from rich import box, table, text  # noqa: PLC0415 (slow to import, and only terminals need it)

        # `Text`: Rich would read the name of a group such as "[b]" as markup.
        rich_table = table.Table(
            title=text.Text(self.title),
            caption=text.Text(self.caption) if self.caption else None,
            box=box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for position, heading in enumerate(self.headings):
            may_wrap = self.align[position : position + 1].isupper()
            rich_table.add_column(text.Text(heading), no_wrap=not may_wrap, min_width=1)
            rich_table.columns[-1].justify = "right" if self.is_number(position) else "left"
        for row in self.rows:
            if row:
                rich_table.add_row(*map(text.Text, row))
            else:
                rich_table.add_section()
        return rich_table


@dataclass(frozen=True)
class Summary:
    """The text of an object: a title, tables, captions, notes."""

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    more: Sequence[Table] = ()  # further tables
    captions: Sequence[str] = ()  # lines below the tables

    def text(self) -> str:
        """Return plain text.

        >>> print(Summary("Two groups", ["group", "ndcg@20"], [["M", "0.25"]], ["one seed"]).text())
        Two groups
        group  ndcg@20
        ──────────────
        M         0.25
        note: one seed
        """
        tables = [table.text() for table in self._tables]
        lines = [*self.captions, *(f"note: {note}" for note in self.notes)]
        if not self.more:
            return "\n".join([self.title, *tables, *lines])
        return "\n\n".join([self.title, *tables, "\n".join(lines)])

    def html(self) -> str:
        """Return HTML; every word is escaped.

        >>> Summary("a < b").html()
        '<div><p>a &lt; b</p></div>'
        """
        lines, captions = (
            "".join(f"<p>{escape(line)}</p>" for line in part) for part in (self.title.splitlines(), self.captions)
        )
        tables = "".join(table.html() for table in self._tables)
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"<div>{lines}{tables}{captions}{f'<ul>{notes}</ul>' if notes else ''}</div>"

    @property
    def _tables(self) -> list[Table]:
        return [*([Table(self.headings, self.rows)] if self.rows else []), *self.more]


class ReprMixin(ABC):
    """Prints as a `Summary`: text in a terminal, HTML in a notebook."""

    @abstractmethod
    def _summary(self) -> Summary:
        """Return the text of the object."""

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()


class Tabular(ReprMixin):
    """Converts to a table of pandas, Polars or Arrow."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return an Arrow table."""

    def to_pandas(self) -> Any:
        """Return a pandas frame; needs pandas."""
        import_optional("pandas", "to_pandas", "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return a Polars frame; needs Polars."""
        return import_optional("polars", "to_polars", "polars").from_arrow(self.to_arrow())


def import_optional(module: str, feature: str, package: str) -> Any:
    """Return an optional module, or raise ConfigurationError with the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ConfigurationError(f"{feature} needs {module}; install it with: pip install '{package}'") from None
