"""The gate decides whether a candidate goes into service.

It judges the candidate and the model in service on the same held-out events, which neither has learned. A change
breaks its limit if its value does and its 95 % interval excludes 0. The numbers of groups carry noise for privacy, so a
group's change must also break its limit by more than noise does in 999 of 1,000 cases (`noise_margin`). If the standard
error of the noise exceeds the limit for everyone, the group is not tested, and the check says so. Nor is it where the
lists of too few users held what they chose. The intervals of the groups hold together: with more groups each is wider.

Drift comes first. If the model in service does far worse on the period than on the last period that was learned from,
the events have changed: poisoned, or a new world. Then the candidate must be no worse than recent popularity and
significantly better than the model in service. After `drift_patience` rejections in a row it is enough not to be worse
than the model in service.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fairstream.evaluation.private_groups import Normal, noise_margin
from fairstream.evaluation.resampling import Array
from fairstream.service.gaps import TOO_NOISY, with_margin
from fairstream.service.privacy import EVERYONE, KNOWN, Comparison
from fairstream.service.settings import Gate

_ALL = (EVERYONE, KNOWN)
_MIN_HITS = 10  # users whose lists held what they chose: the intervals of fewer are too narrow


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    ok: bool
    sentence: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    limit: float | None = None
    group: str | None = None
    accepted: bool = False  # it exceeds its limit but passes; the sentence gives the reason
    is_tested: bool = True  # whether noise allowed a test; a check that is not tested rejects nothing


@dataclass(frozen=True)
class Decision:
    """The gate's decision and its reasons."""

    checks: tuple[Check, ...]

    @property
    def promote(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def reason(self) -> str:
        if self.promote:
            accepted = dict.fromkeys(check.sentence for check in self.checks if check.accepted)
            untested = [check for check in self.checks if not check.is_tested]
            names = [check.group for check in untested if check.group is not None]
            why = [f"not tested: {', '.join(names)}, {untested[0].sentence.partition(': ')[2]}"] if names else []
            return "; ".join(("all checks passed", *accepted, *why))
        failed = [check for check in self.checks if not check.ok]
        if any(check.name == "drift" and check.group is None for check in failed):  # then groups say the same
            failed = [check for check in failed if check.name != "drift" or check.group is None]
        return "; ".join(check.sentence for check in failed)

    def to_dict(self) -> dict[str, Any]:
        return {"promote": self.promote, "reason": self.reason, "checks": [asdict(check) for check in self.checks]}


def rejects_drift(decision: Mapping[str, Any]) -> bool:
    """Whether a stored decision rejected a candidate because the events had changed."""
    return any(not check["ok"] for check in decision["checks"] if check["name"] == "drift")


def finite(reason: str | None) -> Check:
    """Whether training ended with finite numbers; `reason` says why not."""
    return Check("finite", reason is None, reason or "every number of the candidate is finite")


def drift(
    now: Mapping[str, Any], before: Mapping[str, Any], gate: Gate, noise: Mapping[str, tuple[float, float]]
) -> Iterator[Check]:
    """Compare the levels of the model in service on this period and on the last one learned from.

    `noise` holds the noise's standard errors of the groups' levels now and before. Users known before stand for
    everyone if there are enough.
    """
    names = [name for name in now if name in before and before[name][0] > 0]
    for name in names:
        if name == EVERYONE and KNOWN in names:
            continue
        (value, ends), (was, ends_before) = now[name], before[name]
        fall, (noise_now, noise_before) = 1 - value / was, noise.get(name, (0.0, 0.0))
        margin = noise_margin(math.hypot(noise_now, (1 - fall) * noise_before)) / was
        ok = not (fall - margin > gate.max_drift and ends[1] < ends_before[0])
        levels, group = f"{value:.4f} after {was:.4f}", None
        if name not in _ALL:
            levels, group = f"{with_margin(value, ends)} after {with_margin(was, ends_before)}", name
        sentence = f"the model in service does for {name} as it did ({levels})"
        if not ok:
            sentence = (
                f"on this period's events the model in service does {fall:.0%} worse for {name} than on the last "
                f"period's ({levels}, limit {gate.max_drift:.0%}): the events themselves have changed"
            )
        yield Check("drift", ok, sentence, fall, None, gate.max_drift, group)


def attainable(drifted: Check, comparison: Comparison, reference: Array, n_rejected: int, gate: Gate) -> Check:
    """Pass a failed check of drift if the candidate reaches what is attainable now.

    `reference` are the users' values under recent popularity; `n_rejected` candidates in a row were rejected for
    drift before.
    """
    before, after = comparison.before, comparison.after
    change = comparison.groups_change.means.get(drifted.group or "", Normal.mean(after - before))
    is_attained = Normal.mean(after - reference).interval[1] >= 0 and change.interval[0] > 0
    ok = change.interval[1] >= 0 and (is_attained or n_rejected >= gate.drift_patience)
    if not ok:
        why = f"{drifted.sentence}, and the candidate does not reach what is attainable now"
    elif is_attained:
        why = "the events have changed, and the candidate reaches what is attainable now"
    else:
        why = f"the events have changed, and the candidate is no worse, after {n_rejected} such rejections in a row"
    sentence = (
        f"{why}: on the held-out events the candidate reaches {after.mean():.4f}, the model in service "
        f"{before.mean():.4f}, recent popularity {reference.mean():.4f}"
    )
    return replace(drifted, ok=bool(ok), accepted=bool(ok), sentence=sentence)


def compared(comparison: Comparison, gate: Gate, metric: str) -> Iterator[Check]:
    """Compare the candidate with the model in service, on the same users; `metric` is its name in sentences."""
    old, change = comparison.before, comparison.after - comparison.before
    n_hit = int(np.count_nonzero((old > 0) | (comparison.after > 0)))
    if n_hit < _MIN_HITS:
        why = f"the lists of {n_hit} users held what they chose, {_MIN_HITS} are needed"
        sentence = f"{metric} for {comparison.who} is not tested: {why}"
        yield Check("performance", True, sentence, None, None, gate.max_fall, is_tested=False)
        return
    level = float(old.mean())
    ratio = float(change.mean()) / level if level > 0 else 0.0
    deviations = change - ratio * old  # a ratio of means varies as this does, over its denominator
    error = Normal.mean(deviations).se / level if level > 0 else 0.0
    yield _performance(metric, comparison.who, level, Normal(ratio, error), gate.max_fall)
    names, variance = list(comparison.groups_before.sizes), float(deviations.var())
    for name in names:
        if comparison.groups_before.sizes[name] * n_hit < _MIN_HITS * len(old):  # as many hits as its size lets expect
            sentence = f"{metric} for {name} is not tested: too few of its lists held what people chose"
            yield Check("performance", True, sentence, None, None, gate.max_group_fall, name, is_tested=False)
        else:
            yield _performance_of_group(metric, name, comparison, variance, gate)
    if len(names) > 1:
        yield _disparity(comparison, gate)
    elif comparison.groups_before.n_groups > 1:
        yield _not_tested("performance", f"{metric} of groups", comparison, gate.max_group_fall)


def _performance_of_group(metric: str, name: str, comparison: Comparison, variance: float, gate: Gate) -> Check:
    sizes, own = comparison.groups_before.sizes, comparison.groups_before.means[name]
    moved = comparison.groups_change.means[name]
    level = max(own.value, 1e-9)
    ratio = moved.value / level
    noise = math.hypot(moved.noise, ratio * own.noise) / level
    change = Normal(ratio, math.hypot(math.sqrt(variance / sizes[name]) / level, noise), noise)
    if not change.can_test(gate.max_fall):  # noise would hide so large a fall
        return _not_tested("performance", f"{metric} for {name}", comparison, gate.max_group_fall, name)
    return _performance(metric, name, own.value, change, gate.max_group_fall, len(sizes))


def _not_tested(check: str, what: str, comparison: Comparison, limit: float, group: str | None = None) -> Check:
    sentence = f"{what} is not tested: {TOO_NOISY if comparison.groups_before.sizes else comparison.groups_before.why}"
    return Check(check, True, sentence, None, None, limit, group, is_tested=False)


def _performance(metric: str, name: str, level: float, change: Normal, limit: float, n_tests: int = 1) -> Check:
    """Whether the fall of everyone or of one of `n_tests` groups exceeds its limit."""
    group = None if name in _ALL else name
    if level <= 0:
        sentence = f"the model in service finds nothing for {name}"
        return Check("performance", True, sentence, None, None, limit, group)
    value, (low, high) = change.published(n_tests)
    ok = not (value + noise_margin(change.noise) < -limit and high < 0)
    sentence = (
        f"{metric} for {name} {'rises' if value > 0 else 'falls'} by {abs(value):.1%} "
        f"({low:+.1%} to {high:+.1%}, limit −{limit:.0%})"
    ) + (", which may be chance" if ok and value < -limit else "")
    return Check("performance", ok, sentence, value, (low, high), limit, group)


def _disparity(comparison: Comparison, gate: Gate) -> Check:
    changes = comparison.groups_change.gaps()
    gaps = {name: gap for name, gap in comparison.groups_after.gaps().items() if changes[name].can_test(gate.max_rise)}
    what = "the largest gap between a group and the rest"
    if not gaps:
        return _not_tested("disparity", what, comparison, gate.max_rise)
    largest = max(gaps, key=lambda name: abs(gaps[name].value))
    before = max(abs(gap.value) for gap in comparison.groups_before.gaps().values())
    value, (low, high) = Normal(abs(gaps[largest].value) - before, *changes[largest][1:]).published()
    ok = not (value - noise_margin(changes[largest].noise) > gate.max_rise and low > 0)
    sentence = (
        f"{what} {'widens' if value > 0 else 'narrows'} by {abs(value):.3f} to {abs(gaps[largest].value):.3f} "
        f"({largest} {'behind' if gaps[largest].value < 0 else 'ahead'}; {low:+.3f} to {high:+.3f}, "
        f"limit +{gate.max_rise:g})"
    )
    return Check("disparity", ok, sentence, value, (low, high), gate.max_rise)
