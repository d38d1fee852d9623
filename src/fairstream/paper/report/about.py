"""What a reader needs to trust the numbers and to make them again: data, versions, the command, the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairstream.pages.format import anything, plain
from fairstream.pages.markup import Markup, element
from fairstream.pages.tables import body, row, section, table
from fairstream.paper.findings import Findings
from fairstream.paper.report.wording import dataset_name

_GLOSSARY = (
    ("Task-R", "After a period, the model is tested on everything that remains: all later interactions."),
    ("Task-N", "After a period, the model is tested on the next period alone."),
    (
        "NDCG@20",
        "How near the top of a list of 20 the items are that the user went on to choose; 1 is best. Under the "
        "protocol “paper” it is taken over the best order of what was found, so that one hit at the first rank "
        "scores 1; under “strict” over the best possible list.",
    ),
    ("F1@20", "The harmonic mean of precision (hits among 20) and recall (hits among all that there were to find)."),
    (
        "PD, |PD|",
        "Performance disparity: the advantaged group's mean score less the disadvantaged group's. |PD| is its size.",
    ),
    (
        "λ, τ, μ",
        "The weight of FADE's fairness loss, the temperature of Differentiable Hit, how many negatives the loss has.",
    ),
    ("seed sd", "The standard deviation between runs that differ in nothing but the random seed."),
)


def recovery_section(recovery: Sequence[Mapping[str, Any]]) -> Markup:
    """How well a classifier that never saw the training recovers the group from the users' embeddings."""
    note = element(
        "p",
        "Adver tries to remove the group from what a model knows of a user. A fresh classifier is trained to find it "
        "there again: a balanced accuracy of 0.5 is guessing between two groups.",
        class_="note",
    )
    shown = _records(recovery, caption="Recovering the group", id_="recovery-table")
    return section("What Adver leaves of the group", note, shown, id_="recovery")


def about_section(findings: Findings) -> Markup:
    """Where everything comes from."""
    data = [{**about, "name": dataset_name(str(about.get("name", "")))} for about in findings.data]
    versions = [{"what": name, "version": version} for name, version in sorted(findings.versions.items())]
    notes = element("ul", *(element("li", note) for note in findings.notes)) if findings.notes else None
    return section(
        "Where this comes from",
        element("p", "To run it again:"),
        element("pre", element("code", findings.command), tabindex="0"),
        _records(data, caption="Data sets", id_="data-table"),
        _records(versions, caption="Versions", id_="version-table"),
        element("h3", "Notes") if notes else None,
        notes,
        id_="about",
    )


def glossary_section() -> Markup:
    """The few words that one must know."""
    entries = [part for word, meaning in _GLOSSARY for part in (element("dt", word), element("dd", meaning))]
    return section("Words", element("dl", *entries), id_="words")


def _records(records: Sequence[Mapping[str, Any]], *, caption: str, id_: str) -> Markup:
    """Open records as a table: one column for each key that any of them has."""
    if not records:
        return element("p", f"{caption}: none in the store.", class_="note")
    keys = list(dict.fromkeys(key for record in records for key in record))
    columns = [(key.replace("_", " ").removeprefix("n "), _kind(records, key)) for key in keys]
    rows = [row(columns, [_cell(key, record.get(key)) for key in keys]) for record in records]
    return table(caption=caption, columns=columns, bodies=[body(rows)], id_=id_)


def _cell(key: str, value: Any) -> Markup | str:
    if key == "sha256":
        return element("code", str(value), class_="fingerprint")
    if key == "weight" and isinstance(value, int | float):
        return plain(value)
    return dataset_name(str(value)) if key == "dataset" else anything(value)


def _kind(records: Sequence[Mapping[str, Any]], key: str) -> str:
    return "n" if all(isinstance(record.get(key), int | float) for record in records) else ""
