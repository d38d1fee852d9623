"""The gap between groups on the periods that a recommender has replayed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairstream.errors import DataError
from fairstream.evaluation import Composition, Estimate, GapExplanation, GroupOutlook, Trial
from fairstream.evaluation.gap import in_words, kitagawa
from fairstream.models import Level
from fairstream.models.levels import ALONE
from fairstream.strategies import PeriodReplay, PooledReplay, past_regret


def explain_replays(
    periods: Sequence[PeriodReplay], served: Level, *, metric: str, task: str, attribute: str
) -> GapExplanation:
    """Explain the gap at a level over replayed periods, the latest last.

    Users are no longer known, so intervals come from the stored standard errors, and the composition has none.
    """
    pooled = PooledReplay.of(periods)
    if pooled is None:
        raise DataError(
            "no gap can be explained yet: no period with two groups of enough tested users was replayed; each `update` "
            "with a target replays one"
        )
    regrets = past_regret(periods, served)
    now = pooled.levels.index(served) if served in pooled.levels else 0
    last = int(np.argmax(pooled.gaps[:, now]))
    behind, n = pooled.names[last], np.delete(pooled.n_users, last)
    values = {key: np.array([getattr(regrets[name], key) for name in pooled.names]) for key in ("served", "attainable")}
    gap, inherent = (
        float(n @ np.delete(means, last) / n.sum() - means[last]) for means in (values["served"], values["attainable"])
    )
    best = pooled.value.argmax(axis=1)
    others = [name for name in pooled.names if name != behind]
    groups = {}
    for name in [behind, *others]:
        g, past = pooled.names.index(name), regrets[name]
        alone = Level(name, ALONE)
        own = [Trial("alone", name, *_change(pooled, g, alone, now))] if alone in pooled.levels else []
        envied = [
            Trial("best for", other, *_change(pooled, g, pooled.levels[best[pooled.names.index(other)]], now))
            for other in pooled.names
            if other != name and best[pooled.names.index(other)] != now
        ]
        level = None if best[g] == now else pooled.levels[best[g]]
        groups[name] = GroupOutlook(
            round(pooled.n_users[g]),
            past.served,
            past.attainable,
            Estimate(past.regret, past.interval),
            str(level or "as served"),
            in_words(level),
            (*own, *envied),
        )
    half = 1.96 * float(pooled.gap_se[last])
    return GapExplanation(
        metric,
        behind,
        others[0] if len(others) == 1 else "the rest",
        Estimate(gap, (gap - half, gap + half)),
        inherent,
        Estimate(gap - inherent),
        groups,
        _compose(periods, behind),
        attribute,
        task,
        str(served),
        (f"on {len(periods)} replayed period{'s' * (len(periods) > 1)}; users: the mean of a period",),
    )


def _change(pooled: PooledReplay, g: int, level: Level, now: int) -> tuple[str, Estimate]:
    """The change of a group at a level, compared with the level in force."""
    at = pooled.levels.index(level)
    value = float(pooled.change[g, at] - pooled.change[g, now])
    half = 1.96 * float(np.hypot(pooled.se[g, at], pooled.se[g, now])) * (at != now)
    return str(level), Estimate(value, (value - half, value + half))


def _compose(periods: Sequence[PeriodReplay], behind: str) -> Composition | None:
    """The composition of the gap without a level, averaged over the periods; None if histories were not stored."""
    parts = []
    for period in periods:
        if behind not in period.groups or len(period.groups) < 2:
            continue
        if not all(group.strata for group in period.groups.values()):
            return None
        size = 1 + max(stratum for group in period.groups.values() for stratum, _, _ in group.strata)
        n, sums = np.zeros((2, size)), np.zeros((2, size))  # the rest, and the group behind
        for name, group in period.groups.items():
            for stratum, users, mean in group.strata:
                n[int(name == behind), stratum] += users
                sums[int(name == behind), stratum] += users * mean
        means = sums / np.maximum(n, 1)
        parts.append(kitagawa(n[0], means[0], n[1], means[1]))
    return Composition(*(Estimate(float(np.mean(column))) for column in zip(*parts, strict=True))) if parts else None
