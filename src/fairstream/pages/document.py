"""A whole page in one file that needs nothing else, not even a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fairstream.pages.markup import Markup, element, joined, script_data
from fairstream.pages.series import CONFIG
from fairstream.pages.vega import own, vega


@dataclass
class Charts:
    """The charts of a page by the id of the element that each is drawn in."""

    specs: list[dict[str, Any]] = field(default_factory=list)
    drawn: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, spec: dict[str, Any]) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1


def whole_page(
    title: str,
    *,
    header: Markup,
    contents: Iterable[tuple[str, str]],
    main: Markup,
    charts: Charts,
    script: str = "",
    class_: str | None = None,
) -> str:
    """The page as text.

    Parameters
    ----------
    title
        Of the window.
    header, main
        What stands at the top, and everything else.
    contents
        Ids of the sections and their names.
    charts
        What is drawn in the elements of `main`.
    script
        JavaScript of the page's own.
    class_
        Of the body, for styles.

    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(own("page.css"))),
    )
    skip = element("a", "Skip to the content", href="#main", class_="skip")
    links = [element("li", element("a", name, href=f"#{id_}")) for id_, name in contents]
    navigation = element("nav", element("ol", *links), aria_label="Contents")
    body = element("body", skip, header, navigation, main, _scripts(charts, script), class_=class_)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _scripts(charts: Charts, script: str) -> Markup:
    data = script_data({"config": CONFIG, "specs": charts.specs, "drawn": charts.drawn})
    return joined(
        element("script", data, id="charts", type="application/json"),
        element("script", Markup(vega())),
        element("script", Markup(own("charts.js") + script)),
    )
