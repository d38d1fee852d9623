"""The table of models: `python -m benchmarks.table STORES`, which `fairstream sweep --store` has filled.

For each task, for everyone, for users seen before and for newcomers: NDCG@20, each group's, the mean |PD|, and the
difference from recent popularity with its 95 % interval over users and seeds, on the same users and seeds.

    fairstream sweep DATA --grid model=recent-popularity,item-item,mf,sasrec,blend --set method=Finetune --seeds 5
    python -m benchmarks.table sweep
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fairstream as fs

PARTS = {"all": "everyone", "warm": "known", "cold": "newcomers"}


def lines(stores: list[Path], against: str) -> Iterator[str]:
    """The lines of the table."""
    for task in ("event", "next", "remain"):
        for part, name in PARTS.items():
            found = fs.compare(stores, task=task, part=part)
            groups = list(found.contenders[0].by_group)
            yield f"\n`{task}`, {name} ({found.n_users:,} users, seeds {found.seeds[0]} to {found.seeds[-1]})\n"
            yield f"| | NDCG@20 | {' | '.join(groups)} | mean \\|PD\\| | − {against} |"
            yield "|" + " --- |" * (len(groups) + 4)
            differences = {difference.label: difference.performance for difference in found.against(against)}
            for contender in sorted(found.contenders, key=lambda contender: -contender.performance.value):
                values = [contender.performance.value, *contender.by_group.values(), contender.disparity.value]
                cells = ["–" if value is None else f"{value:.4f}" for value in values]
                difference = differences.get(contender.label)
                paired = "" if difference is None else f"{difference.value:+.4f} <sub>{_between(difference)}</sub>"
                yield f"| {contender.label.replace(' model=', ' ')} | {' | '.join(cells)} | {paired} |"


def _between(difference: Any) -> str:
    return f"{difference.low:+.4f} … {difference.high:+.4f}"


if __name__ == "__main__":
    for line in lines([Path(store) for store in sys.argv[1:]], "Finetune model=recent-popularity"):
        print(line, flush=True)
