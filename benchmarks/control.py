"""How targets behave on streams that change: `python -m benchmarks.control [SEEDS]`.

A world of two groups, 40 periods of 1,200 events by people who come once, and the model recent popularity: a list for
everyone, which follows the larger group. The smaller group likes other items best, s places along the larger group's
order of preference. s is 0 throughout (noise only), jumps to 40 in period 10 (step), rises to 40 from period 5 to 35
(slow drift), or is 40 while the smaller group stays away from period 15 to 25 (vanishing group). Each stream is run
without a target, with `MaxGap` at half of the gap that opens up (noise only: at .02), and with `LeastRegret`; printed
are means over seeds of what was measured on the period that followed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import numpy as np
import pyarrow as pa

import fairstream as fs

N_PERIODS, N_EVENTS, N_USERS, N_ITEMS, SHARE = 40, 1_200, 400, 120, 0.2
STREAMS: dict[str, Callable[[int], float]] = {
    "noise only": lambda t: 0.0,
    "step": lambda t: 40.0 if t >= 10 else 0.0,
    "slow drift": lambda t: 40.0 * min(max((t - 5) / 30, 0.0), 1.0),
    "vanishing group": lambda t: 40.0,
}


def is_away(name: str, t: int) -> bool:
    """Whether the smaller group stays away in a period."""
    return name == "vanishing group" and 15 <= t < 25


def stream(name: str, seed: int) -> tuple[fs.EventLog, int]:
    """The events, and how many of them lie before the first period."""
    rng = np.random.default_rng(seed)
    appeal = np.linspace(4.0, 0.0, N_ITEMS)
    users, items, groups = [], [], []
    for t in range(-4, N_PERIODS + 1):
        own = np.roll(appeal, round(STREAMS[name](max(t, 0))))
        is_few = (rng.random(N_USERS) < SHARE) & (not is_away(name, t))
        taste = np.where(is_few[:, None], own, appeal)
        ranked = np.argsort(-(taste + rng.gumbel(size=taste.shape)), axis=1)[:, : N_EVENTS // N_USERS]
        first = N_USERS * (t + 4)
        users.append(np.repeat(first + np.arange(N_USERS), ranked.shape[1]))
        items.append(ranked.ravel())
        groups.append(is_few)
    events = pa.table({"user_id": np.concatenate(users), "item_id": np.concatenate(items)})
    events = events.append_column("time", pa.array(np.arange(len(events))))
    names = np.where(np.concatenate(groups), "few", "many")
    people = pa.table({"user_id": np.arange(len(names)), "group": names})
    return fs.read_events(events, users=people, group="group", advantaged="many"), 4 * N_EVENTS


def gaps(log: fs.EventLog, n_first: int, **target: object) -> tuple[list[float], ...]:
    """For each period: how far the smaller group is behind, the weight of its events, NDCG@10 of everyone and of it."""
    run = fs.run(
        log,
        "Finetune",
        model="recent-popularity",
        tasks=("next",),
        metrics=("ndcg@10",),
        k=10,
        pretrain_events=n_first,
        period=str(N_EVENTS),
        n_periods=N_PERIODS,
        n_resamples=0,
        device="cpu",
        target_metric="ndcg@10",
        **target,
    )
    scores = [(result.tasks["next"]["ndcg@10"], result.update.level) for result in run]
    return (
        [np.nan if score.performance_disparity is None else score.performance_disparity for score, _ in scores],
        [level.weight if level.group == "few" else 1 / level.weight for _, level in scores],
        [score.mean or np.nan for score, _ in scores],
        [score.by_group["few"] or np.nan for score, _ in scores],
    )


def main(n_seeds: int) -> None:
    """Print what happens on each stream."""
    last = slice(-10, None)
    for name in STREAMS:
        made = [stream(name, seed) for seed in range(n_seeds)]
        plain = np.array([gaps(*one) for one in made])
        before = float(np.nanmean(plain[:, 0, last]))
        accepted = 0.02 if name == "noise only" else round(before / 2, 3)
        se = float(np.nanmean(np.nanstd(plain[:, 0], axis=0)))
        print(f"{name}: one period's gap has a standard error of {se:.4f}; in the last 10 periods it is {before:.4f}")
        for target in ({"max_gap": accepted}, {"target": "least-regret"}):
            held = np.array([gaps(*one, **target) for one in made])
            gap, weight = np.nanmean(held[:, 0], axis=0), held[:, 1]
            settled = [t for t in range(11, len(gap) - 1) if np.nanmean(gap[t : t + 2]) <= 1.1 * accepted]
            everyone, few = (np.nanmean(held[:, at, last]) / np.nanmean(plain[:, at, last]) - 1 for at in (2, 3))
            print(f"  {target}: gap {np.nanmean(gap[last]):.4f}; everyone {everyone:+.1%}, few {few:+.1%}; ", end="")
            print(
                f"weight {np.median(weight[:, -1]):.2f} (median), least gap of any two periods {_least(gap):.4f}; ",
                end="",
            )
            print(f"moved in {(weight[:, :8] != 1).mean():.1%} of the first 8 periods, ", end="")
            print(
                f"in {(weight != 1).mean():.1%} of all; first at {accepted:g} in period {settled[:1] or 'none'}",
                flush=True,
            )


def _least(gap: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    pairs = (gap[1:] + gap[:-1]) / 2
    return float(np.nanmin(pairs[10:]))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "Mean of empty slice|Degrees of freedom")  # periods without the smaller group
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
