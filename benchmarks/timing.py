"""Contenders taken in turns in one process: what disturbs one disturbs all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """The seconds of one contender, run by run."""

    seconds: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles (with two runs or fewer, the extremes)."""
        if len(self.seconds) < 3:
            return min(self.seconds), max(self.seconds)
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    def over(self, other: Times) -> Times:
        """How many times as long as the other, run by run: both were taken side by side."""
        return Times([ours / theirs for ours, theirs in zip(self.seconds, other.seconds, strict=True)])

    def rate(self, amount: float) -> Times:
        """Amount per second."""
        return Times([amount / seconds for seconds in self.seconds])

    def show(self, form: str = ".3f", scale: float = 1.0) -> str:
        low, high = self.spread
        return f"{self.median * scale:{form}} ({low * scale:{form}} – {high * scale:{form}})"


def in_turns(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, Times]:
    """Run all contenders in turns, `rounds` times, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for counts in [False] + [True] * rounds:
        for name, work in contenders.items():
            begin = time.perf_counter()
            work()
            if counts:
                seconds[name].append(time.perf_counter() - begin)
    return {name: Times(taken) for name, taken in seconds.items()}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
