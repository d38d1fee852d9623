"""The gap that is accepted: what was measured, and what the controller did to hold it."""

from __future__ import annotations

from fairstream.pages.format import number, plain
from fairstream.pages.markup import Markup, element
from fairstream.pages.tables import Cell, section
from fairstream.service.dashboard.facts import Candidate, Target
from fairstream.service.dashboard.overview import Overview
from fairstream.service.dashboard.parts import cards, folded, note, state_mark
from fairstream.service.dashboard.words import TOO_FEW, metric_name, model_link, reason_words, times_words

_TASKS = {"event": "in a list made at each event", "next": "in one list made for the whole period"}
_MEASURED_NOTE = (
    "Each update measures the model in service on the new events before it learns them, and pools that with the "
    "periods before, later ones counting more; ± is the standard error. Only a gap that is surely beyond what is "
    "accepted makes a group’s events count more; they count less again when it has come down. Nobody’s group is needed "
    "when items are recommended."
)


def overview_target(overview: Overview) -> Markup | None:
    """What the last update that made a model did about the gap that is accepted; None where no gap was named."""
    told = [model for model in overview.models if model.target is not None]
    candidates = [overview.newest, *overview.models]
    newest = next((model for model in candidates if model is not None and model.state != "failed"), None)
    if newest is None or newest.target is None:
        return None
    serving = overview.serving if newest.state != "promoted" or not newest.in_service else None
    return section(
        "The gap that is accepted",
        *_told(newest.target, f"In the update of period {newest.t}:"),
        _groups(newest.target, None if serving is None else serving.about.get("event_weights") or {}),
        note(_MEASURED_NOTE),
        folded("What each update measured and did", _updates(told)) if len(told) > 1 else None,
        id_="target",
    )


def model_target(model: Candidate) -> Markup | None:
    """What was done about the gap that was accepted when a model was made; None where no gap was named."""
    target = model.target
    if target is None:
        return None
    told = _told(target, "When it was made:")
    return section("The gap that is accepted", *told, _groups(target, None), note(_MEASURED_NOTE), id_="target")


def _told(target: Target, when: str) -> tuple[Markup, ...]:
    accepted, where = plain(target.max_disparity), _TASKS.get(target.task, target.task)
    goal = f"No group may be more than {accepted} behind the other users in {metric_name(target.metric)}, {where}."
    if not target.sentences:
        return (element("p", goal, " Nothing had to be done."),)
    # They begin with the names of groups, which stay as they are written.
    done = element("ul", *(element("li", reason_words(sentence)) for sentence in target.sentences))
    return element("p", f"{goal} {when}"), done


def _groups(target: Target, in_service: dict[str, float] | None) -> Markup:
    """Each group's gap and weight; with the weights of the model in service where that is another one."""
    columns = [("Group", ""), ("Behind the rest", "whole"), ("Accepted", "n"), ("Verdict", "")]
    columns.append(("Its events count", ""))
    if in_service is not None:
        columns.append(("In the model in service", ""))
    rows: list[list[Cell]] = []
    for name, weight in target.weights.items():
        cells: list[Cell] = [name, _gap(target, name), plain(target.max_disparity), _verdict(target, name)]
        cells.append(times_words(weight))
        if in_service is not None:
            cells.append(times_words(in_service.get(name, 1.0)))
        rows.append(cells)
    return cards("Each group beside the accepted gap", columns, rows, id_="target-table")


def _updates(models: list[Candidate]) -> Markup:
    """What each update of the page's periods measured and did, the latest first."""
    names = list(dict.fromkeys(name for model in models if model.target for name in model.target.weights))
    columns = [("Period", "n"), ("Model", ""), ("Furthest behind", ""), ("Gap", "whole"), ("Accepted", "n")]
    columns += [(f"{name} counts", "") for name in names]
    columns.append(("Decision", ""))
    rows: list[list[Cell]] = []
    for model in models:
        target = model.target
        assert target is not None
        behind = {name: gap for name, (gap, _) in target.gaps.items() if gap > 0}
        furthest = max(behind, key=lambda name: behind[name], default=None)
        row: list[Cell] = [str(model.t), model_link(model.id), furthest or "–"]
        row += ["–" if furthest is None else _gap(target, furthest), plain(target.max_disparity)]
        row += [times_words(target.weights[name]) if name in target.weights else "–" for name in names]
        rows.append([*row, state_mark(model.state, by_hand=model.is_by_hand)])
    return cards("Each update and the accepted gap", columns, rows, id_="target-updates-table")


def _gap(target: Target, name: str) -> str:
    if name not in target.gaps:
        return TOO_FEW if target.gaps else "not measured yet"
    value, se = target.gaps[name]
    return f"{number(value)} ± {number(se)}"


def _verdict(target: Target, name: str) -> str:
    """What the gap and its uncertainty say of what is accepted."""
    if name not in target.gaps:
        return "–"
    value, se = target.gaps[name]
    if value - se > target.max_disparity:
        return "more than accepted"
    if value + se < 0:
        return "ahead of the rest"
    return "within what is accepted" if value + se < target.max_disparity else "cannot be told yet"
