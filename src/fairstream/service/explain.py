"""Why the model in service did better or worse on a period than on the one before; see `evaluation.explanation`.

A workspace keeps numbers of groups, none of a person. Of each period's evaluation these are sums over known users and
over newcomers, and of each candidate how far it was ahead of the model in service, on the held-out events. So what the
new model brought is measured on the held-out events of the period before, and drift is what is left of the change.
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
    GroupPanel,
    Mix,
    Protocol,
    stack_periods,
)
from fairstream.evaluation.breakdown import N_LENGTHS, N_STRATA, VALUES
from fairstream.evaluation.by_group import difference_interval
from fairstream.evaluation.explanation import (
    FACTORS,
    LEARNING,
    factor_parts,
    is_small,
    joined_mix,
    mean_of_sums,
    mix_of_sums,
)
from fairstream.evaluation.paired import Interval, Paired
from fairstream.evaluation.resampling import Array
from fairstream.service.gate import EVERYONE, N_RESAMPLES
from fairstream.service.periods import closed_periods
from fairstream.service.records import Model, Period
from fairstream.service.registry import models
from fairstream.service.settings import Gate
from fairstream.service.workspace import Workspace

_KNOWN, _NEWCOMERS, _ALL = "known", "newcomers", "all"
_PLACES = {_KNOWN: 0, _NEWCOMERS: N_LENGTHS, _ALL: 0}
"""Where stored sums stand among the strata."""

Sums = Mapping[str, Any]


def strata(evaluation: Evaluation, names: Sequence[str], min_size: int) -> dict[str, dict[str, Any]]:
    """The sums of everyone and of each judged group, over known users and newcomers apart where both are enough."""
    test = evaluation.breakdown
    assert test is not None
    columns = _ndcg_columns(test.metrics)
    chosen = {EVERYONE: np.ones(len(test.users), np.bool_)}
    chosen |= {name: test.codes == code for code, name in enumerate(names)}
    found = {}
    for name, mine in chosen.items():
        n = int(mine.sum())
        if n < max(1, min_size):
            continue
        sums = test.sums(mine)[:, columns]
        parts = {_ALL: sums.sum(axis=0)}
        if not is_small(test, mine, min_size):
            parts = {_KNOWN: sums[:N_LENGTHS].sum(axis=0), _NEWCOMERS: sums[N_LENGTHS:].sum(axis=0)}
        found[name] = {"n_users": n, **{part: total.tolist() for part, total in parts.items()}}
    return found


def gains(before: Evaluation, after: Evaluation, names: Sequence[str], gate: Gate) -> dict[str, Any]:
    """How far a candidate (`after`) is ahead of the model in service, on the same users: [value, [low, high]]."""
    ndcg = [Protocol.named("strict").metrics["ndcg"]]
    (old, codes), (new, _) = (stack_periods([judged.tested], ndcg) for judged in (before, after))
    panel = GroupPanel(np.concatenate([old, new], axis=2), codes, len(names), gate.min_group_size)
    paired = Paired(panel, 1, N_RESAMPLES)

    def difference(statistic: str, code: int | None = None) -> list[Any]:
        observed, drawn = paired.of(statistic)
        if code is not None:
            observed, drawn = observed[code], drawn[:, code]
        found = Interval.of(observed[1] - observed[0], drawn[:, 1] - drawn[:, 0])
        return [found.value, [found.low, found.high]]

    judged, compared = panel.judged[:, 0], panel.compared[:, 0]
    return {
        "everyone": difference("mean"),
        "groups": {name: difference("by_group", code) for code, name in enumerate(names) if judged[code]},
        "gaps": {name: difference("gap", code) for code, name in enumerate(names) if compared[code]},
    }


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
    if workspace.config.learning.has_lever:
        notes.append(
            "What is done for fairness is part of the update here; `fairstream run … --explain` on the same events "
            "tells them apart."
        )
    return notes


def _explain(before: Period, after: Period, gain: Mapping[str, Any] | None) -> Explanation:
    assert before.evaluation is not None
    assert after.evaluation is not None
    old, new = before.evaluation["strata"], after.evaluation["strata"]
    names = [name for name in new if name in old and name != EVERYONE]
    levels = before.evaluation["levels"], after.evaluation["levels"]

    def level(name: str) -> tuple[float, float] | None:
        (was, ends_before), (value, ends) = levels[0][name], levels[1][name]
        return _interval(value - was, (value, *ends), (was, *ends_before))

    everyone = _change(_tables(old[EVERYONE], new[EVERYONE]), level(EVERYONE), gain, "everyone")
    groups = {name: _change(_tables(old[name], new[name]), level(name), gain, "groups", name) for name in names}
    gaps = {}
    # Both sides of a gap are told apart alike, or their parts would not be of the same kind.
    is_apart = all(_ALL not in sums[name] for name in names for sums in (old, new))
    tables = {name: np.stack(_tables(old[name], new[name], is_apart=is_apart)) for name in names}
    for name in names if len(names) > 1 else ():
        own, rest = tables[name], np.sum([tables[other] for other in names if other != name], axis=0)
        interval = _gap_levels(before, after, name)
        gaps[name] = _change((own[0], own[1]), interval, gain, "gaps", name, minus=(rest[0], rest[1]))
    mixes = {"": _mix(old[EVERYONE], new[EVERYONE])} | {name: _mix(old[name], new[name]) for name in names}
    return Explanation(everyone, groups, gaps, mixes)


def _tables(old: Sums, new: Sums, *, is_apart: bool = True) -> tuple[Array, Array]:
    """(strata, columns) of both tests; known users and newcomers apart only where both tests tell them apart."""
    is_apart = is_apart and _ALL not in old and _ALL not in new
    tables = []
    for sums in (old, new):
        table = np.zeros((N_STRATA, VALUES + 2))
        for part, place in _PLACES.items():
            if part in sums:
                table[place if is_apart else 0] += np.array(sums[part])
        tables.append(table)
    return tables[0], tables[1]


def _change(
    tables: tuple[Array, Array],
    interval: tuple[float, float] | None,
    gain: Mapping[str, Any] | None,
    kind: str,
    name: str | None = None,
    minus: tuple[Array, Array] | None = None,
) -> Change:
    before, after = (float(mean_of_sums(table)[0]) for table in tables)
    parts = factor_parts(*tables)[0]
    if minus is not None:
        before, after = (own - float(mean_of_sums(rest)[0]) for own, rest in zip((before, after), minus, strict=True))
        parts = parts - factor_parts(*minus)[0]
    # How long histories are was not kept.
    estimates = {
        factor: Estimate(float(part)) for factor, part in zip(FACTORS, parts, strict=True) if factor != "histories"
    }
    learned = _learned(gain, kind, name)
    if learned is not None:
        estimates["drift"] = Estimate(estimates["drift"].value - learned.value)
        estimates[LEARNING] = learned
    return Change(before, after, Estimate(after - before, interval), estimates)


def _learned(gain: Mapping[str, Any] | None, kind: str, name: str | None) -> Estimate | None:
    if gain is None:
        return None
    if not gain:
        return Estimate(0.0, (0.0, 0.0))
    found = gain[kind] if name is None else gain[kind].get(name)
    return None if found is None else Estimate(found[0], (found[1][0], found[1][1]))


def _gap_levels(before: Period, after: Period, name: str) -> tuple[float, float] | None:
    """The interval of how far a gap moved, where the same groups were compared in both periods."""
    found = []
    for period in (before, after):
        assert period.evaluation is not None
        metrics = period.evaluation["metrics"]
        gaps = next(score["gaps"] for metric, score in metrics.items() if metric.startswith("ndcg@"))
        found.append(gaps)
    if set(found[0]) != set(found[1]) or not all(gaps.get(name, {}).get("interval") for gaps in found):
        return None
    (was, value) = ((gaps[name]["value"], *gaps[name]["interval"]) for gaps in found)
    return _interval(value[0] - was[0], value, was)


def _interval(change: float, one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, float]:
    """Of a difference of two numbers, each with its interval, as if of different users."""
    low, high = difference_interval(np.array(change), *(tuple(map(np.array, side)) for side in (one, other)))  # type: ignore[arg-type]
    return float(low), float(high)


def _mix(old: Sums, new: Sums) -> Mix:
    sides = []
    for sums in (old, new):
        table = _tables(sums, sums)[0]
        sides.append((int(sums["n_users"]), *mix_of_sums(table, is_few=_ALL in sums)))
    return joined_mix(sides[0], sides[1])


def _ndcg_columns(metrics: Sequence[str]) -> list[int]:
    """The columns of a breakdown that are not of other metrics."""
    at = next(place for place, name in enumerate(metrics) if name.startswith("ndcg@"))
    return [*range(VALUES), VALUES + at, VALUES + len(metrics) + at]
