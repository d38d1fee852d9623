"""Why the model in service did better or worse on a period than on the one before; see `evaluation.explanation`.

A workspace keeps sums of everyone, over known users and over newcomers; of groups the means that may be published, see
`privacy`; and of each candidate how far it was ahead of the model in service, on the held-out events. So what the new
model brought is measured on the held-out events of the period before, and drift is what is left of the change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.evaluation import (
    Change,
    Estimate,
    Evaluation,
    Explained,
    Explanation,
    Mix,
)
from fairstream.evaluation.breakdown import N_LENGTHS, N_STRATA, VALUES
from fairstream.evaluation.by_group import difference_interval
from fairstream.evaluation.explanation import (
    FACTORS,
    LEARNING,
    factor_parts,
    joined_mix,
    mix_of_sums,
)
from fairstream.evaluation.resampling import Array
from fairstream.service.gaps import noise_words
from fairstream.service.periods import closed_periods
from fairstream.service.privacy import EVERYONE
from fairstream.service.records import Model, Period
from fairstream.service.registry import models
from fairstream.service.workspace import Workspace

_KNOWN, _NEWCOMERS = "known", "newcomers"
_PLACES = {_KNOWN: 0, _NEWCOMERS: N_LENGTHS, "all": 0}
"""Where stored sums stand among the strata."""

Sums = Mapping[str, Any]


def strata(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """The sums of everyone, over known users and newcomers apart."""
    test = evaluation.breakdown
    assert test is not None
    sums = test.sums(np.ones(len(test.users), np.bool_))[:, _ndcg_columns(test.metrics)]
    parts = {_KNOWN: sums[:N_LENGTHS].sum(axis=0), _NEWCOMERS: sums[N_LENGTHS:].sum(axis=0)}
    return {EVERYONE: {"n_users": len(test.users), **{part: total.tolist() for part, total in parts.items()}}}


def explain_workspace(workspace: Workspace, *, t: int | None = None) -> Explained:
    """Read why the model in service did better or worse than on the period before.

    Parameters
    ----------
    workspace
        An open workspace.
    t
        The later period; by default the last.

    Returns
    -------
    Explained
        Everything that there is to tell.

    Raises
    ------
    WorkspaceError
        If fewer than two periods in a row have judged a model.
    ConfigurationError
        If there is no such period.

    """
    periods = {period.t: period for period in closed_periods(workspace.engine) if _is_judged(period)}
    made = {row.t: row for row in models(workspace.engine)}
    pairs = {at: (periods[at - 1], periods[at]) for at in sorted(periods) if at - 1 in periods}
    if not pairs:
        raise WorkspaceError(
            f"{workspace.folder} has {len(periods)} periods that judged a model and kept what an explanation needs; "
            f"two in a row are needed: the first period has no model to judge, so run `fairstream update` until there "
            f"are three"
        )
    t = max(pairs) if t is None else t
    if t not in pairs:
        raise ConfigurationError(f"period must be one of {', '.join(map(str, pairs))}, got {t}")
    explained = {at: _explain(*pair, _gain(made, at)) for at, pair in pairs.items()}
    return Explained(
        name=workspace.folder.resolve().name,
        group=workspace.config.group,
        metric=f"ndcg@{workspace.config.gate.k}",
        task="next",
        t=t,
        tested=(f"the model in service on period {t - 1}", f"the model in service on period {t}"),
        periods=explained,
        notes=tuple(_notes(workspace, made, t, explained[t])),
    )


def _is_judged(period: Period) -> bool:
    return bool(period.evaluation and period.evaluation.get("strata", {}).get(EVERYONE))


def _gain(made: Mapping[int, Model], t: int) -> Mapping[str, Any] | None:
    """What the model that period t judged brought against the one that period t − 1 judged; None: not measured."""
    before, after = (made[at].parent if at in made else None for at in (t - 1, t))
    if after is not None and after == before:
        return {}
    if after is not None and after == made[t - 1].id:
        return made[t - 1].about.get("gains")
    return None


def _notes(workspace: Workspace, made: Mapping[int, Model], t: int, shown: Explanation) -> list[str]:
    notes = []
    if LEARNING not in shown.everyone.parts:
        notes.append(
            "The model in service was changed by hand between these periods, or nothing was kept of its candidate: "
            "what it brought was not measured, and is part of the drift."
        )
    elif not _gain(made, t):
        notes.append("The same model was in service in both periods, so no update has a part in the change.")
    else:
        notes.append(
            f"What the update brought was measured on the held-out events of period {t - 1}; what it did otherwise on "
            f"period {t} is part of the drift."
        )
    if shown.groups and (noise := noise_words(workspace.config.privacy.epsilon)) is not None:
        notes.append(noise)
    if workspace.config.learning.has_lever:
        notes.append(
            "What is done for fairness is part of the update here; `fairstream run … --explain` on the same events "
            "tells them apart."
        )
    return notes


def _explain(before: Period, after: Period, gain: Mapping[str, Any] | None) -> Explanation:
    assert before.evaluation is not None
    assert after.evaluation is not None
    levels = before.evaluation["levels"], after.evaluation["levels"]
    gaps = _gaps(before.evaluation), _gaps(after.evaluation)
    old, new = before.evaluation["strata"][EVERYONE], after.evaluation["strata"][EVERYONE]
    everyone = _moved(levels[0][EVERYONE], levels[1][EVERYONE], _learned(gain, "everyone", None), _factors(old, new))
    return Explanation(
        everyone,
        {
            name: _moved(was, levels[1][name], _learned(gain, "groups", name))
            for name, was in levels[0].items()
            if name in levels[1] and name != EVERYONE
        },
        {
            name: _moved(was, gaps[1][name], _learned(gain, "gaps", name))
            for name, was in gaps[0].items()
            if set(gaps[0]) == set(gaps[1])
        },
        {"": _mix(old, new)},
    )


def _gaps(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Each group's gap: [value, [low, high]]."""
    gaps = next(score["gaps"] for metric, score in evaluation["metrics"].items() if metric.startswith("ndcg@"))
    return {name: [gap["value"], gap["interval"]] for name, gap in gaps.items() if gap["interval"] is not None}


def _moved(
    before: Sequence[Any], after: Sequence[Any], learned: Estimate | None, factors: Mapping[str, float] | None = None
) -> Change:
    """The change of a number, each side [value, [low, high]]; what no factor and no update accounts for is drift.

    Of groups nothing but their means is kept, so that there are no factors of theirs.
    """
    (was, ends_before), (value, ends) = before, after
    change = Estimate(value - was, _interval(value - was, (value, *ends), (was, *ends_before)))
    parts = {name: Estimate(part) for name, part in (factors or {}).items()}
    if learned is not None:
        parts[LEARNING] = learned
    drift = change.value - sum(part.value for part in parts.values())
    interval = None if factors else change.interval
    if interval is not None and learned is not None and learned.interval is not None:
        interval = _interval(drift, (change.value, *interval), (learned.value, *learned.interval))
    parts["drift"] = Estimate(drift, interval)
    return Change(was, value, change, parts, margins=(ends_before[1] - was, ends[1] - value))


def _factors(old: Sums, new: Sums) -> dict[str, float]:
    """What newcomers and new items account for; how long histories are was not kept."""
    parts = dict(zip(FACTORS, factor_parts(_table(old), _table(new))[0], strict=True))
    return {name: float(parts[name]) for name in ("new_people", "new_items")}


def _table(sums: Sums) -> Array:
    """(strata, columns) of a test."""
    table = np.zeros((N_STRATA, VALUES + 2))
    for part, place in _PLACES.items():
        if part in sums:
            table[place] += np.array(sums[part])
    return table


def _learned(gain: Mapping[str, Any] | None, kind: str, name: str | None) -> Estimate | None:
    if gain is None:
        return None
    if not gain:
        return Estimate(0.0, (0.0, 0.0))
    found = gain[kind] if name is None else gain[kind].get(name)
    return None if found is None else Estimate(found[0], (found[1][0], found[1][1]))


def _interval(change: float, one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, float]:
    """Of a difference of two numbers, each with its interval, as if of different users."""
    low, high = difference_interval(np.array(change), *(tuple(map(np.array, side)) for side in (one, other)))  # type: ignore[arg-type]
    return float(low), float(high)


def _mix(old: Sums, new: Sums) -> Mix:
    sides = [(int(sums["n_users"]), *mix_of_sums(_table(sums), is_few=False)) for sums in (old, new)]
    return joined_mix(sides[0], sides[1])


def _ndcg_columns(metrics: Sequence[str]) -> list[int]:
    """The columns of a breakdown that are not of other metrics."""
    at = next(place for place, name in enumerate(metrics) if name.startswith("ndcg@"))
    return [*range(VALUES), VALUES + at, VALUES + len(metrics) + at]
