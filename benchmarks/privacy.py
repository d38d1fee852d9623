"""What the default privacy budget lets shops of several sizes see, over a year of updates.

    python -m benchmarks.privacy

Two equal groups, a mean NDCG of 0.14 with a standard deviation of 0.25, updates every week, each of which tests 60 % of
the people. The columns: how often numbers were published, the standard errors of a gap by noise and by sampling, the
smallest gap that is found with a probability of 80 %, and how probably somebody who knows everything but one person's
group guesses it right from all numbers of the year, at most.
"""

from __future__ import annotations

import numpy as np

from fairstream.service.budget import DAY, Budget, guess_of
from fairstream.service.privacy import Release
from fairstream.service.settings import Privacy

MEAN, TESTED = 0.14, 0.6
POWER = 1.96 + 0.84  # standard errors of a gap that is significant with a probability of 80 %
NAMES = ["a", "b"]


def year(n_people: int, days: float, seed: int = 0) -> tuple[int, float, float, float]:
    """The releases of a year, the errors of the last gap by noise and by sampling, and the cost of the year."""
    rng, n_released, noise, sampling = np.random.default_rng(seed), 0, 0.0, 0.0
    budget = Budget(Privacy(), sizes=dict.fromkeys(NAMES, n_people / 2))
    codes, values = (np.arange(n_people) % 2).astype(np.int16), np.full(n_people, np.nan)
    for n in range(round(364 / days)):
        budget.at = int(n * days * DAY)
        tested = rng.random(n_people) < min(1.0, TESTED * days / 7)
        values[tested] = rng.choice([0.0, 0.2, 0.4, 1.0], int(tested.sum()), p=[0.64, 0.19, 0.13, 0.04])
        known = ~np.isnan(values)
        groups = Release(b"secret", 20, str(n), budget).report(values[known], codes[known], NAMES)
        if gaps := groups.gaps():
            n_released, noise, sampling = n_released + 1, gaps["a"].noise, gaps["a"].sampling
        if groups.sizes:
            values[:] = np.nan
    return n_released, noise, sampling, sum(cost for _, _, cost in budget.spent)


def main() -> None:
    """Print the table."""
    print("| people | updates | releases a year | noise | sampling | smallest gap | right guesses, at most |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for n_people in (1_000, 2_000, 5_000, 10_000, 100_000):
        for days in (7.0, 1 / 48):
            if days < 1 and n_people > 10_000:
                continue
            n, noise, sampling, cost = year(n_people, days)
            every = "7 days" if days == 7 else "30 minutes"
            errors = f"{noise:.4f} | {sampling:.4f} | {POWER * float(np.hypot(noise, sampling)):.3f}"
            print(f"| {n_people:,} | {every} | {n} | {errors} | {guess_of(cost):.0%} |")


if __name__ == "__main__":
    main()
