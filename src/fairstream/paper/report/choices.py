"""How λ (γ for Adver) was chosen, what was tried, and what a choice that looks at the past only would give."""

from __future__ import annotations

from collections.abc import Sequence

from fairstream.pages.format import number, plain
from fairstream.pages.markup import Markup, element
from fairstream.pages.series import in_order
from fairstream.pages.tables import body, group_heading, row, section, table
from fairstream.paper.findings import Choice
from fairstream.paper.report.wording import dataset_name

_COLUMNS = (
    ("Data set · model · metric", "whole"),
    ("Chosen", "n"),
    ("Performance", "n"),
    ("|PD|", "n"),
    ("By the past, t = 1, 2, …", "whole"),
    ("Performance then", "n"),
    ("|PD| then", "n"),
    ("Why, and what was tried", "wide"),
)


def choice_section(choices: Sequence[Choice]) -> Markup:
    """One row per method, data set, model and metric; all values tried are a click away, and printed."""
    note = element(
        "p",
        "The paper chooses per method, data set, model and metric by the results that it then reports. "
        "The columns “by the past” show what is left when each period may use only what earlier periods have shown.",
        class_="note",
    )
    if not choices:
        return section("How λ and γ were chosen", element("p", "Nothing was chosen in these runs."), id_="choices")
    chosen = table(
        caption="Chosen values; performance and |PD| are Task-R's means over the periods",
        columns=_COLUMNS,
        bodies=[_body(method, choices) for method in in_order({choice.method for choice in choices})],
        id_="choice-table",
    )
    return section("How λ and γ were chosen", note, chosen, id_="choices")


def _body(method: str, choices: Sequence[Choice]) -> Markup:
    rows = [_row(choice) for choice in choices if choice.method == method]
    return body(rows, heading=group_heading(method, n_columns=len(_COLUMNS)))


def _row(choice: Choice) -> Markup:
    performance, disparity = choice.tried.get(choice.chosen, (None, None))
    past_performance, past_disparity = choice.past_result or (None, None)
    return row(
        _COLUMNS,
        (
            f"{dataset_name(choice.dataset)} · {choice.model} · {choice.metric}",
            f"{choice.parameter} = {plain(choice.chosen)}",
            _or_dash(performance),
            _or_dash(disparity),
            ", ".join(map(plain, choice.by_the_past)) or "–",
            _or_dash(past_performance),
            _or_dash(past_disparity),
            _tried(choice),
        ),
    )


def _tried(choice: Choice) -> Markup:
    items = [
        element(
            "li",
            element("b", f"{choice.parameter} = {plain(value)}"),
            f": {number(performance)}, |PD| {number(disparity)}",
            " (chosen)" if value == choice.chosen else "",
        )
        for value, (performance, disparity) in sorted(choice.tried.items())
    ]
    about = element("summary", f"{choice.reason} ({len(items)} tried)")
    return element("details", about, element("ul", *items))


def _or_dash(value: float | None) -> str:
    return "–" if value is None else number(value)
