"""The gate: may a candidate go into service?

The candidate and the model in service are judged on the same held-out events, which neither has
learned, so that what is hard for both cancels. A change counts as beyond its limit if its value
is, and its 95 % interval leaves out "no change": a limit that noise alone could break would stop
everything, one that only certainty could break would stop nothing.

Before that the period itself is looked at. If the model in service does far worse on it than on
the last period that was learned from, it is the events that have changed: somebody may have poisoned them, or
the world is another one. So the candidate must reach what is attainable now: be no worse than recent
popularity, and surely better than the model in service. Where it does not, the world must have stayed as it is for
some periods (`drift_patience`); then it only must not be worse than the model in service.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fairstream.evaluation.resampling import Array
from fairstream.service.privacy import EVERYONE, Comparison, Normal
from fairstream.service.settings import Gate

_OF_THE_INPUT = frozenset({"flood", "finite"})
_OF_THE_CHANGE = frozenset({"performance", "disparity"})


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    sentence: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    limit: float | None = None
    group: str | None = None
    accepted: bool = False
    """Beyond its limit and passed all the same, as the sentence says."""


@dataclass(frozen=True)
class Decision:
    """What the gate says of a candidate, and why."""

    checks: tuple[Check, ...]

    @property
    def promote(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def reason(self) -> str:
        if self.promote:
            accepted = dict.fromkeys(check.sentence for check in self.checks if check.accepted)
            return "; ".join(("all checks passed", *accepted))
        failed = [check for check in self.checks if not check.ok]
        if any(check.name == "drift" and check.group is None for check in failed):  # then groups say the same
            failed = [check for check in failed if check.name != "drift" or check.group is None]
        return "; ".join(check.sentence for check in failed)

    def to_dict(self) -> dict[str, Any]:
        return {"promote": self.promote, "reason": self.reason, "checks": [asdict(check) for check in self.checks]}


def rejects_level(decision: Mapping[str, Any]) -> bool:
    """Whether a stored decision rejected a candidate for how well users are served: its events were no flood."""
    return all(check["ok"] for check in decision["checks"] if check["name"] in _OF_THE_INPUT)


def rejects_drift(decision: Mapping[str, Any]) -> bool:
    """Whether a stored decision rejected a candidate because the events had changed, and were no flood."""
    drifted = any(not check["ok"] for check in decision["checks"] if check["name"] == "drift")
    return drifted and rejects_level(decision)


def rejects_change(decision: Mapping[str, Any]) -> bool:
    """Whether a stored decision rejected a candidate for what it does otherwise than the model in service.

    Not for the events of its period (flood, drift), nor for numbers that are none.
    """
    return any(not check["ok"] and check["name"] in _OF_THE_CHANGE for check in decision["checks"])


def flood(largest_share: float, gate: Gate) -> Check:
    """Whether one user makes up too much of the period."""
    ok = largest_share <= gate.max_user_share
    sentence = f"the busiest user made {largest_share:.1%} of the period's events (limit {gate.max_user_share:.0%})"
    return Check("flood", ok, sentence, largest_share, None, gate.max_user_share)


def finite(reason: str | None) -> Check:
    """Whether learning came to its end with numbers that are numbers; `reason` says why not."""
    return Check("finite", reason is None, reason or "every number of the candidate is finite")


def drift(now: Mapping[str, Any], before: Mapping[str, Any], gate: Gate) -> Iterator[Check]:
    """Whether the model in service does as it did: the levels of this period and of the last one learned from."""
    for name in (name for name in now if name in before):
        (value, (_, high)), (was, (low, _)) = now[name], before[name]
        fall = 1 - value / was if was > 0 else 0.0
        sentence = (
            f"on this period's events the model in service does {fall:.0%} worse for {name} than on the last period's "
            f"({value:.4f} after {was:.4f}, limit {gate.max_drift:.0%}): the events themselves have changed"
        )
        ok = not (fall > gate.max_drift and high < low)
        if ok:
            sentence = f"the model in service does for {name} as it did ({value:.4f} after {was:.4f})"
        yield Check("drift", ok, sentence, fall, None, gate.max_drift, None if name == EVERYONE else name)


def attainable(drifted: Check, comparison: Comparison, reference: Array, n_rejected: int, gate: Gate) -> Check:
    """A drift that was found, looked at again: passed where the candidate reaches what is attainable now.

    `reference` are the users' values under recent popularity; `n_rejected` candidates in a row were rejected for
    drift before.
    """
    before, after = comparison.before, comparison.after
    moved = comparison.groups_change.means.get(drifted.group or "", Normal.mean(after - before))
    to_reference = Normal.mean(after - reference)
    is_attained = to_reference.interval[1] >= 0 and moved.interval[0] > 0
    ok = moved.interval[1] >= 0 and (is_attained or n_rejected >= gate.drift_patience)
    levels = (
        f"on the held-out events the candidate reaches {after.mean():.4f}, the model in service "
        f"{before.mean():.4f}, recent popularity {reference.mean():.4f}"
    )
    if ok:
        why = (
            "does what can be done now"
            if is_attained
            else f"is no worse, after {n_rejected} rejected in a row for the same"
        )
        sentence = f"the events have changed, and the candidate {why}: {levels}"
    else:
        sentence = f"{drifted.sentence}, and the candidate does not do what can be done now: {levels}"
    return replace(drifted, ok=ok, accepted=ok, sentence=sentence)


def compared(comparison: Comparison, gate: Gate) -> Iterator[Check]:
    """The candidate beside the model in service, on the same users."""
    old, change = comparison.before, comparison.after - comparison.before
    level = float(old.mean())
    ratio = float(change.mean()) / level if level > 0 else 0.0
    deviations = change - ratio * old  # a ratio of means varies as this does, over its denominator
    yield _performance(EVERYONE, level, Normal(ratio, Normal.mean(deviations).se / level if level > 0 else 0.0), gate)
    variance = float(deviations.var())
    for name, own in comparison.groups_before.means.items():
        moved, size = comparison.groups_change.means[name], comparison.groups_before.sizes[name]
        ratio = moved.value / own.value if own.value > 0 else 0.0
        # Of the standard errors, only what noise has added is left beside how the ratio itself varies.
        noise = math.hypot(_noise(moved, change, size), ratio * _noise(own, old, size))
        error = math.hypot(math.sqrt(variance / size), noise)
        yield _performance(name, own.value, Normal(ratio, error / own.value if own.value > 0 else 0.0), gate)
    if gaps := comparison.groups_after.gaps():
        yield _disparity(comparison, gaps, gate)


def _noise(mean: Normal, values: Array, size: float) -> float:
    """The part of a group's standard error that noise has added."""
    return math.sqrt(max(0.0, mean.se**2 - float(values.var()) / size))


def _performance(name: str, level: float, change: Normal, gate: Gate) -> Check:
    """The change, as a share of what the model in service reaches."""
    if level <= 0:
        return Check("performance", True, f"the model in service finds nothing for {name}", None, None, gate.max_fall)
    value, (low, high) = change.published
    ok = not (value < -gate.max_fall and high < 0)
    sentence = (
        f"NDCG@{gate.k} for {name} {_moved(value)} {abs(value):.1%} "
        f"({low:+.1%} to {high:+.1%}, limit −{gate.max_fall:.0%})"
    )
    group = None if name == EVERYONE else name
    return Check("performance", ok, sentence, value, (low, high), gate.max_fall, group)


def _disparity(comparison: Comparison, gaps: Mapping[str, Normal], gate: Gate) -> Check:
    largest = max(gaps, key=lambda name: abs(gaps[name].value))
    before = max(abs(gap.value) for gap in comparison.groups_before.gaps().values())
    rise = Normal(abs(gaps[largest].value) - before, comparison.groups_change.gaps()[largest].se)
    value, (low, high) = rise.published
    ok = not (value > gate.max_rise and low > 0)
    sentence = (
        f"the largest gap between a group and the rest {_moved(value)} {abs(value):.3f} to "
        f"{abs(gaps[largest].value):.3f} ({low:+.3f} to {high:+.3f}, limit +{gate.max_rise:g})"
    )
    return Check("disparity", ok, sentence, value, (low, high), gate.max_rise)


def _moved(change: float) -> str:
    return "rises by" if change > 0 else "falls by"
