"""Tables of plain text: what results print as, in a terminal, a notebook or a log."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: the first column on the left, the others on the right.

    Parameters
    ----------
    headings
        One for each column.
    rows
        The cells of each row.

    Examples
    --------
    >>> print(text_table(["group", "ndcg@20"], [["M", "0.25"], ["F", "0.1"]]))
    group  ndcg@20
    ──────────────
    M         0.25
    F          0.1

    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([line(headings), rule, *map(line, rows)])


def number(value: float | None) -> str:
    """Four decimals, or a dash where there is nothing to show."""
    return "–" if value is None else f"{value:.4f}"


def signed(value: float | None) -> str:
    """The same with its sign."""
    return "–" if value is None else f"{value:+.4f}"


def percent(share: float | None) -> str:
    """Return a share as a percentage; one that is neither 0 nor 1 is never shown as if it were.

    >>> percent(0.5), percent(0.00001), percent(1.0), percent(0.0)
    ('50.0 %', '<0.1 %', '100.0 %', '0.0 %')
    """
    if share is None:
        return "–"
    if 0 < share < 0.001:
        return "<0.1 %"
    return ">99.9 %" if 0.999 < share < 1 else f"{100 * share:.1f} %"
