"""The gate: may a candidate go into service?

The candidate and the model in service are judged on the same held-out events, which neither has
learned, so that what is hard for both cancels. A change counts as beyond its limit if its value
is, and its 95 % interval leaves out "no change": a limit that noise alone could break would stop
everything, one that only certainty could break would stop nothing.

Before that the period itself is looked at. If the model in service does far worse on it than on
the last period that was learned from, it is the events that have changed, and a model that learns
them is not judged fairly by them: that holds, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairstream.evaluation import Evaluation, GroupPanel, Protocol, stack_periods
from fairstream.evaluation.paired import Interval, Paired
from fairstream.service.settings import Gate

N_RESAMPLES = 1000
EVERYONE = "all users"
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
            return "all checks passed"
        return "; ".join(check.sentence for check in self.checks if not check.ok)

    def to_dict(self) -> dict[str, Any]:
        return {"promote": self.promote, "reason": self.reason, "checks": [asdict(check) for check in self.checks]}


def rejects_change(decision: Mapping[str, Any]) -> bool:
    """Whether a stored decision held a candidate for what it does otherwise than the model in service.

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
    """Whether the model in service does as it did: `group_levels` of this period and of the last one learned from."""
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


def compared(before: Evaluation, after: Evaluation, names: Sequence[str], gate: Gate, seed: int = 0) -> Iterator[Check]:
    """The candidate (`after`) beside the model in service (`before`), on the same users."""
    ndcg = [Protocol.named("strict").metrics["ndcg"]]
    (old, codes), (new, _) = (stack_periods([judged.tested], ndcg) for judged in (before, after))
    panel = GroupPanel(np.concatenate([old, new], axis=2), codes, len(names), gate.min_group_size)
    paired = Paired(panel, 1, N_RESAMPLES)
    overall, by_group, largest = (paired.of(name) for name in ("mean", "by_group", "largest"))
    yield _performance(EVERYONE, *overall, gate)
    for code, name in enumerate(names):
        if panel.judged[code, 0]:
            yield _performance(name, by_group[0][code], by_group[1][:, code], gate)
    if panel.judged[:, 0].sum() >= 2:
        yield _disparity(*largest, gate)


def _performance(name: str, found: Any, drawn: Any, gate: Gate) -> Check:
    """The change, as a share of what the model in service reaches."""
    if not found[0] > 0:
        return Check("performance", True, f"the model in service finds nothing for {name}", None, None, gate.max_fall)
    change = Interval.of(found[1] / found[0] - 1, drawn[:, 1] / np.maximum(drawn[:, 0], 1e-12) - 1)
    ok = not (change.value < -gate.max_fall and change.high < 0)
    sentence = (
        f"NDCG@{gate.k} for {name} {_moved(change.value)} {abs(change.value):.1%} "
        f"({change.low:+.1%} to {change.high:+.1%}, limit −{gate.max_fall:.0%})"
    )
    group = None if name == EVERYONE else name
    return Check("performance", ok, sentence, change.value, (change.low, change.high), gate.max_fall, group)


def _disparity(found: Any, drawn: Any, gate: Gate) -> Check:
    rise = Interval.of(found[1] - found[0], drawn[:, 1] - drawn[:, 0])
    ok = not (rise.value > gate.max_rise and rise.low > 0)
    sentence = (
        f"the largest gap between a group and the rest {_moved(rise.value)} {abs(rise.value):.4f} to {found[1]:.4f} "
        f"({rise.low:+.4f} to {rise.high:+.4f}, limit +{gate.max_rise:g})"
    )
    return Check("disparity", ok, sentence, rise.value, (rise.low, rise.high), gate.max_rise)


def _moved(change: float) -> str:
    return "rises by" if change > 0 else "falls by"


def group_levels(evaluation: Evaluation, names: Sequence[str], gate: Gate) -> dict[str, Any]:
    """How well everyone and each judged group is served: [value, [low, high]] by name."""
    ndcg = [Protocol.named("strict").metrics["ndcg"]]
    values, codes = stack_periods([evaluation.tested], ndcg)
    panel = GroupPanel(values, codes, len(names), gate.min_group_size)
    paired = Paired(panel, 1, N_RESAMPLES)
    (overall, overall_drawn), (by_group, by_group_drawn) = paired.of("mean"), paired.of("by_group")
    found = {EVERYONE: Interval.of(overall[0], overall_drawn[:, 0])}
    for code, name in enumerate(names):
        if panel.judged[code, 0]:
            found[name] = Interval.of(by_group[code, 0], by_group_drawn[:, code, 0])
    return {name: [level.value, [level.low, level.high]] for name, level in found.items()}
