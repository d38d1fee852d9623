"""Tables in boxes of their own, which scroll where the screen is too narrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairstream.pages.format import NOT_GIVEN, NOT_RUN, number
from fairstream.pages.markup import Markup, element, joined

_WITHOUT_A_VALUE = frozenset({NOT_GIVEN, NOT_RUN, "–"})

Cell = str | Markup


def table(
    *,
    caption: str,
    columns: Sequence[tuple[str, str]],
    bodies: Iterable[Markup],
    id_: str,
    class_: str = "",
) -> Markup:
    """A table with a caption; of each column its title and its class (`n` for numbers)."""
    title = element("caption", element("span", caption), id=f"{id_}-caption")
    head = element("thead", element("tr", *(_column(name, kind) for name, kind in columns), role="row"))
    inside = element("table", title, head, *bodies, id=id_, class_=class_ or None, role="table")
    return element("div", inside, class_="scroll", tabindex="0", role="region", aria_labelledby=f"{id_}-caption")


def body(rows: Iterable[Markup], *, heading: Markup | None = None) -> Markup:
    """Rows that belong together, under a heading of their own if there is one."""
    return element("tbody", heading, *rows, role="rowgroup")


def group_heading(text: str, *, n_columns: int, id_: str | None = None) -> Markup:
    """A row that says what the rows below it are about."""
    cell = element("th", text, colspan=str(n_columns), scope="rowgroup", role="rowheader")
    return element("tr", cell, class_="group", id=id_, role="row")


def row(columns: Sequence[tuple[str, str]], cells: Sequence[Cell], **attributes: str | bool | None) -> Markup:
    """One row; its first cell is its heading, and each cell knows its column for screens where rows are stacked."""
    written = []
    for position, ((name, kind), cell) in enumerate(zip(columns, cells, strict=True)):
        classes = " ".join(part for part in (kind, "none" if cell in _WITHOUT_A_VALUE else "") if part) or None
        if position == 0:
            written.append(element("th", cell, scope="row", class_=classes, role="rowheader"))
        else:
            written.append(element("td", cell, class_=classes, data_label=name, role="cell"))
    return element("tr", *written, role="row", **attributes)


def given(value: float | None) -> str:
    """A number of the paper."""
    return NOT_GIVEN if value is None else number(value)


def measured(value: float | None) -> str:
    """A number of ours."""
    return NOT_RUN if value is None else number(value)


def section(title: str, *children: str | None, id_: str, level: int = 2) -> Markup:
    """A part of the page with a heading that links to itself."""
    return element("section", element(f"h{level}", title), joined(*children), id=id_)


def _column(name: str, kind: str) -> Markup:
    return element("th", name, scope="col", class_=kind or None, role="columnheader")
