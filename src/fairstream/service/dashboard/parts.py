"""What the pages are put together from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fairstream.pages.legend import legend
from fairstream.pages.markup import Markup, element, joined, script_data
from fairstream.pages.series import Styles
from fairstream.pages.tables import Cell, body, row, table
from fairstream.service.dashboard.assets import drawing, icon, look
from fairstream.service.dashboard.charts import Drawing, chart_data
from fairstream.service.dashboard.words import NOT_JUDGED, STATES, TOO_FEW

_ICONS = {"promoted": "✓", "rejected": "‖", "failed": "✕"}
_ABSENT = frozenset({TOO_FEW, NOT_JUDGED})

Columns = Sequence[tuple[str, str]]


def document(
    title: str,
    *,
    header: Sequence[str | None],
    main: Sequence[str | None],
    contents: Sequence[tuple[str, str]] = (),
    drawings: Mapping[str, Drawing] | None = None,
    is_signed_in: bool = True,
) -> str:
    """A page of the service. Without charts it needs no script."""
    head = element(
        "head",
        *_meta(title),
        element("link", rel="stylesheet", href=look().address),
        element("link", rel="icon", href=icon().address, type="image/svg+xml"),
    )
    return _whole(
        head,
        element("a", "Skip to the content", href="#main", class_="skip"),
        element("header", *header),
        _navigation(contents, is_signed_in=is_signed_in) if contents or is_signed_in else None,
        element("main", *main, id="main", tabindex="-1"),
        _scripts(drawings) if drawings else None,
    )


def single_file(title: str, style: str, *children: str | None) -> str:
    """A page in one file that leads nowhere."""
    head = element("head", *_meta(title), element("style", Markup(style)))
    return _whole(head, *children, class_="live single")


def chart(id_: str, title: str, described: str, styles: Styles | None = None) -> Markup:
    """Where a chart is drawn, and what it shows in words."""
    place = element("div", id=id_, class_="chart", role="img", aria_label=described)
    return element("div", element("h3", title), legend(styles) if styles else None, place, class_="panel")


def folded(summary: str, *children: str) -> Markup:
    """What a chart shows, as a table that can be opened."""
    return element("details", element("summary", summary), *children, class_="numbers")


def cards(caption: str, columns: Columns, rows: Iterable[Sequence[Cell]], *, id_: str) -> Markup:
    """A table, whose rows are cards where the screen is narrow."""
    written = [row(columns, [_heading(columns[0], cells[0]), *map(_marked, cells[1:])]) for cells in rows]
    return table(caption=caption, columns=columns, bodies=[body(written)], id_=id_, class_="stacks")


def facts(pairs: Iterable[tuple[str, Cell]], *, class_: str = "facts") -> Markup:
    """Names and what they are."""
    return element(
        "dl", *(element("div", element("dt", name), element("dd", value)) for name, value in pairs), class_=class_
    )


def state_mark(state: str, *, by_hand: bool = False) -> Markup:
    """What became of a candidate; the sign is for the eye alone."""
    words = f"{STATES.get(state, state)}{' by hand' if by_hand else ''}"
    sign = element("span", _ICONS.get(state, "·"), class_="icon", aria_hidden="true")
    return element("span", sign, words, class_=f"verdict state-{state if state in _ICONS else 'other'}")


def answer_mark(ok: bool) -> Markup:
    """Whether a check was passed."""
    sign = element("span", "✓" if ok else "✕", class_="icon", aria_hidden="true")
    return element(
        "span", sign, "passed" if ok else "not passed", class_=f"verdict state-{'promoted' if ok else 'failed'}"
    )


def note(*children: str) -> Markup:
    """A quieter paragraph."""
    return element("p", *children, class_="note")


def command(text: str) -> Markup:
    """Something to type."""
    return element("pre", element("code", text), tabindex="0")


def _heading(column: tuple[str, str], cell: Cell) -> Cell:
    """A number alone says little on a card, where its column has no head."""
    name, kind = column
    return joined(element("span", f"{name} ", class_="on-cards"), cell) if kind == "n" else cell


def _marked(cell: Cell) -> Cell:
    return element("span", cell, class_="none") if cell in _ABSENT else cell


def _meta(title: str) -> tuple[Markup, ...]:
    return (
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
    )


def _whole(head: Markup, *children: str | None, class_: str = "live") -> str:
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *children, class_=class_), lang='en')}\n"


def _navigation(contents: Sequence[tuple[str, str]], *, is_signed_in: bool) -> Markup:
    links = [element("li", element("a", title, href=address)) for address, title in contents]
    leave = element("form", element("button", "Sign out", type="submit"), method="post", action="/logout")
    return element(
        "nav", element("ol", *links) if links else None, leave if is_signed_in else None, aria_label="Contents"
    )


def _scripts(drawings: Mapping[str, Drawing]) -> Markup:
    data = element("script", script_data(chart_data(drawings)), id="charts", type="application/json")
    return joined(data, *(element("script", src=script.address, defer=True) for script in drawing()))
