"""What is told of one model, on its page and in its audit file alike."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairstream.evaluation.by_group import GroupScores
from fairstream.pages.format import anything, number, plain, signed
from fairstream.pages.markup import Markup, element, joined
from fairstream.pages.tables import Cell, section
from fairstream.service.dashboard.one_model import ModelStory, Relative
from fairstream.service.dashboard.parts import answer_mark, cards, command, facts, note
from fairstream.service.dashboard.words import (
    STATES,
    as_sentence,
    gap_sentence,
    iso_time,
    metric_name,
    number_or_dash,
    of_group,
    percent,
    reason_words,
    signed_percent,
    times_words,
    when,
)
from fairstream.service.gate import Check

Name = Callable[[str], Markup]
"""How another model is named: with a link on a page, without one in a file."""

_CHECKS: dict[str, tuple[str, Callable[[float], str]]] = {
    "finite": ("Its numbers are finite", number),
    "flood": ("No user floods the period", percent),
    "drift": ("The period is like the last", signed_percent),
    "performance": ("Performance has not fallen", signed_percent),
    "disparity": ("Disparity has not risen", signed),
}
"""What each check asks, and how its numbers are written: performance and drift are shares of what was."""
_SHORT = 60


def what_it_is(story: ModelStory) -> Markup:
    """The model's state in a sentence or two."""
    model, service = story.model, story.service
    made = joined("Made from period ", str(model.t), " on ", when(model.created), ", in ", f"{model.seconds:,.1f} s. ")
    if model.in_service and service is not None:
        made = joined(made, "It answers since ", when(service.since))
    else:
        became = {"promoted": "It was promoted and is no longer in service", "rejected": "It was held back"}
        made = joined(made, became.get(model.state, "It failed"))
    if model.is_by_hand:
        return joined(made, ". The gate had held it back, and it was promoted by hand: ", reason_words(model.reason))
    return joined(made, ": ", reason_words(model.reason))


def decision_section(story: ModelStory) -> Markup:
    """Every check of the gate with its numbers."""
    columns = (
        ("Check", ""),
        ("Result", ""),
        ("In words", "why"),
        ("Value", "n"),
        ("95 % interval", "n"),
        ("Limit", "n"),
    )
    rows = [_check(check) for check in story.model.checks]
    shown = cards("What the gate checked", columns, rows, id_="check-table") if rows else note("No check was recorded.")
    return section("Decision", element("p", as_sentence(story.model.reason)), shown, id_="decision")


def evaluation_section(story: ModelStory) -> Markup:
    """The candidate beside the model that was in service, on the same held-out events."""
    after, before = story.model.judged(story.metric), story.model.before(story.metric)
    metric = metric_name(story.metric)
    if after is None:
        return section("Evaluation", note("The candidate was not judged."), id_="evaluation")
    columns = ((f"{metric} of", ""), ("Model in service", "n"), ("Candidate", "n"), ("Change", "n"))
    names = list(dict.fromkeys([*after.by_group, *(before.by_group if before else ())]))
    rows = [_compared("all users", before.mean if before else None, after.mean)]
    rows += [_of_group(name, before, after) for name in names]
    rows.append(_compared("largest gap", _largest(before), _largest(after)))
    return section(
        "Evaluation",
        element("p", gap_sentence(after, story.metric)),
        cards("Before and after, on the held-out events", columns, rows, id_="evaluation-table"),
        id_="evaluation",
    )


def lineage_section(story: ModelStory, name: Name) -> Markup:
    """What it was fine-tuned from, and what was made from it."""
    children = [joined(_relative(child, name), "; " if more else "") for child, more in _and_more(story.children)]
    pairs: list[tuple[str, Cell]] = [
        (
            "Fine-tuned from",
            _relative(story.parent, name) if story.parent else story.model.parent or "nothing: made anew",
        ),
        ("Models made from it", joined(*children) if children else "none"),
    ]
    return section("Lineage", facts(pairs), id_="lineage")


def data_section(story: ModelStory) -> Markup:
    """What it has learned."""
    about = story.model.about
    data: Mapping[str, Any] = about.get("data") or {}
    pairs: list[tuple[str, Cell]] = [(_title(key), _value(key, value)) for key, value in data.items()]
    if about.get("n_learned") is not None:
        pairs.append(("Events learned", anything(about["n_learned"])))
    if story.model.target is None and (weights := about.get("event_weights")):
        pairs.append(("Events count", ", ".join(f"{name}: {times_words(weight)}" for name, weight in weights.items())))
    if story.period is not None:
        pairs.append(("Period closed", when(story.period.closed)))
    return section("Data", facts(pairs) if pairs else note("Nothing was recorded."), id_="data")


def configuration_section(story: ModelStory) -> Markup:
    """With which options and which software."""
    about = story.model.about
    options = [[element("code", name), _plainly(value)] for name, value in _flat(about.get("configuration") or {})]
    versions = [[name, str(version)] for name, version in (about.get("versions") or {}).items()]
    columns, of_versions = (("Option", ""), ("Value", "wide")), (("Software", ""), ("Version", ""))
    return section(
        "Configuration",
        cards("Configuration", columns, options, id_="configuration-table") if options else note("None was recorded."),
        cards("Versions", of_versions, versions, id_="version-table") if versions else None,
        id_="configuration",
    )


def command_section(story: ModelStory) -> Markup:
    """What to type to change which model answers."""
    id_ = shlex.quote(story.model.id)
    if story.model.in_service:
        words, typed = "To go back to the model that it was made from", "fairstream rollback DIR"
    else:
        words, typed = "To let this model answer", f"fairstream promote DIR {id_}"
    return section(
        "Commands",
        element("p", f"{words}, type this, with the workspace's folder for DIR:"),
        command(typed),
        note("The decision and who made it are recorded. The same is done over HTTP with a key of scope admin."),
        id_="commands",
    )


def record_section(story: ModelStory) -> Markup:
    """What the record says of the model, entry by entry."""
    columns = (("Entry", "n"), ("When", "whole"), ("What", "whole"), ("Body", "wide"), ("Hash", ""))
    rows: list[list[Cell]] = [
        [
            str(entry.seq),
            element("time", iso_time(entry.time), datetime=iso_time(entry.time)),
            entry.kind,
            _body(entry.body),
            element("code", entry.hash, class_="fingerprint"),
        ]
        for entry in story.entries
    ]
    shown = cards("Entries that name this model", columns, rows, id_="record-table")
    return section("Record", shown if rows else note("No entry names this model."), id_="record")


def _check(check: Check) -> list[Cell]:
    name, write = _CHECKS.get(check.name, (check.name, number))
    interval = None if check.interval is None else f"{write(check.interval[0])} to {write(check.interval[1])}"
    value, limit = check.value, check.limit
    if check.name == "drift" and value is not None:
        value = -value  # kept as a fall
    if check.name in ("drift", "performance") and limit is not None:
        limit = -limit  # how far it may fall is kept as a size
    return [
        f"{name}, group “{check.group}”" if check.group else name,
        answer_mark(check.ok),
        as_sentence(check.sentence) if check.sentence else "–",
        "–" if value is None else write(value),
        interval or "–",
        "–" if limit is None else write(limit),
    ]


def _of_group(name: str, before: GroupScores | None, after: GroupScores) -> list[Cell]:
    was, is_ = (before.by_group.get(name) if before else None), after.by_group.get(name)
    change = signed(is_ - was) if is_ is not None and was is not None else "–"
    return [f"group “{name}”", of_group(was) if before else "–", of_group(is_), change]


def _compared(name: str, was: float | None, is_: float | None) -> list[Cell]:
    change = signed(is_ - was) if is_ is not None and was is not None else "–"
    return [name, number_or_dash(was), number_or_dash(is_), change]


def _largest(scores: GroupScores | None) -> float | None:
    return scores.largest_gap.value if scores and scores.largest_gap else None


def _relative(relative: Relative, name: Name) -> Markup:
    return joined(name(relative.id), f" (period {relative.t}, {STATES.get(relative.state, relative.state)})")


def _and_more(children: tuple[Relative, ...]) -> Iterator[tuple[Relative, bool]]:
    for position, child in enumerate(children, start=1):
        yield child, position < len(children)


def _title(key: str) -> str:
    return "SHA-256" if key == "sha256" else key.replace("_", " ").removeprefix("n ").capitalize()


def _value(key: str, value: Any) -> Cell:
    return element("code", str(value), class_="fingerprint") if key == "sha256" else anything(value)


def _flat(options: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _plainly(value: Any) -> str:
    """An option as it was set: never rounded."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(value) if isinstance(value, float) and float(f"{value:g}") == value else anything(value)


def _body(body: str) -> Markup:
    shown = json.dumps(json.loads(body), ensure_ascii=False, indent=1, sort_keys=True)
    code = element("pre", element("code", shown), class_="body", tabindex="0")
    return code if len(shown) <= _SHORT else element("details", element("summary", "Show"), code)
