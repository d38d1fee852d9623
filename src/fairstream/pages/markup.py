"""HTML from nested function calls; what is not markup already is escaped."""

from __future__ import annotations

import html
import json
from typing import Any

_WITHOUT_END = frozenset({"br", "col", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML already. Everything else that goes into an element is escaped."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: str | bool | None) -> Markup:
    """`<name attributes>children</name>`; `class_` is class, `data_x` is data-x, False and None are left out.

    >>> element("p", "a < b", element("b", "!"), class_="note")
    '<p class="note">a &lt; b<b>!</b></p>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _WITHOUT_END:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: str | None) -> Markup:
    """The children one after another."""
    return Markup("".join(_escaped(child) for child in children if child is not None))


def script_data(value: Any) -> Markup:
    """JSON that can stand inside a script element: no `<` is left that could end it."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(written.replace("<", "\\u003c"))


def _escaped(child: str) -> str:
    return child if isinstance(child, Markup) else html.escape(child, quote=False)


def _attribute(key: str, value: str | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(value)}"'
