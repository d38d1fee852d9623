"""Cut a log into D_0, D_1 … D_T.

D_0 is what the model is pre-trained on, D_1 … D_T are the periods (Section 2 of the paper). A
period is a range of positions in the chronological log, so it cannot see a later one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairstream.errors import ConfigurationError, DataError


@dataclass(frozen=True)
class Periods:
    """D_t is `log[starts[t]:ends[t]]`; events after D_T belong to no period (the tail)."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    n_events: int

    @property
    def last(self) -> int:
        """T, the index of the last period, which is only tested on."""
        return len(self.starts) - 1

    def span(self, t: int) -> slice:
        """Where D_t lies."""
        return slice(self.starts[t], self.ends[t])

    def remaining(self, t: int) -> slice:
        """Where everything after D_t lies, the tail included (Task-R)."""
        return slice(self.ends[t], self.n_events)


def cut_periods(n_events: int, *, pretrain_ratio: float, n_periods: int, n_blocks: int = 10, unit: int = 1) -> Periods:
    """The first `pretrain_ratio` of the events are D_0; the rest is cut in `n_blocks` equal
    blocks, of which the first `n_periods` are D_1 … D_T.

    Everything is counted in whole units of `unit` events. The paper counts in batches of 256:
    n = ⌈N / 256⌉, D_0 = the first ⌊ratio · n⌋ of them, a block = ⌊(n − |D_0|) / 10⌋.

    >>> paper = cut_periods(836_478, pretrain_ratio=0.6, n_periods=7, unit=256)
    >>> paper.ends[0] // 256, (paper.ends[1] - paper.starts[1]) // 256, paper.last
    (1960, 130, 7)
    """
    if not 1 <= n_periods <= n_blocks:
        raise ConfigurationError(f"n_periods must be between 1 and n_blocks, {n_blocks}, got {n_periods}")
    n_units = math.ceil(n_events / unit)
    first = math.floor(pretrain_ratio * n_units * (1 + 1e-12))  # 0.29 · 100 is 28.999… in floating point
    block = (n_units - first) // n_blocks
    if first < 1 or block < 1:
        raise DataError(
            f"{n_events} events are too few for a pre-training share of {pretrain_ratio:g} and {n_blocks} blocks "
            f"of at least {unit} event(s) after it; use more events or fewer blocks"
        )
    starts = [0] + [(first + block * t) * unit for t in range(n_periods)]
    ends = [*starts[1:], (first + block * n_periods) * unit]
    return Periods(tuple(starts), tuple(min(end, n_events) for end in ends), n_events)
