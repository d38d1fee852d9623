"""When retraining pays: `python -m benchmarks.restart DATA STORE [N_SEEDS]`; DATA is a folder with `movielens-1m`.

Finetune-MF with five policies of restarting, on all ten blocks of MovieLens and on a synthetic stream of 50 periods
with slow drift: NDCG@20 and |PD| on the tasks `event` and `next` with 95 % intervals of the differences from never
restarting, what training cost, and how often it began anew. STORE is a folder; an existing one is resumed. Three
seeds take about half an hour on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fairstream as fs
from benchmarks.timing import table
from fairstream.data import EventLog
from fairstream.evaluation import Interval
from fairstream.experiments import Record, RunConfig, Store
from fairstream.experiments.jobs import LogSource
from fairstream.experiments.sweep import sweep

POLICIES: dict[str, dict[str, Any]] = {
    "never": {},
    "always": {"restart_every": 1},
    "every 5": {"restart_every": 5},
    "on-degradation": {"restart": "on-degradation"},
    "by-bound": {"restart": "by-bound"},
}
OPTIONS: dict[str, Any] = {
    "method": "Finetune",
    "model": "mf",
    "pretrain_epochs": 20,
    "tasks": ("event", "next"),
    "metrics": ("ndcg@20",),
    "n_resamples": 0,
    "device": "cpu",
}
SYNTHETIC: dict[str, Any] = {
    "n_users": 1_000,
    "n_items": 400,
    "n_events": 40_000,
    "n_periods": 50,
    "pretrain_ratio": 0.4,
    "drift": 0.05,
}


def movielens(data: Path) -> tuple[EventLog, dict[str, Any]]:
    """All ten blocks of MovieLens-1M by gender."""
    log = fs.read_events(data / "movielens-1m", group="gender", advantaged="M")
    return log, {"n_periods": 10, "n_blocks": 10}


def synthetic() -> tuple[EventLog, dict[str, Any]]:
    """50 periods of some 480 events, in which tastes turn by 0.05 radians each."""
    stream = fs.synthetic_stream(**SYNTHETIC)
    log = fs.read_events(stream.events, users=stream.users, group="community", advantaged="majority")
    return log, {"n_periods": 50, "n_blocks": 50, "pretrain_ratio": SYNTHETIC["pretrain_ratio"]}


def computed(
    log: EventLog, cut: dict[str, Any], folder: Path, seeds: Sequence[int], policies: Sequence[str]
) -> dict[str, list[Record]]:
    """The finished runs of each policy."""
    found = {}
    for policy in policies:
        configs = [RunConfig(**OPTIONS, **cut, **POLICIES[policy], seed=seed) for seed in seeds]
        store = Store(folder)
        with store.writing():
            found[policy], errors = sweep(store, LogSource(log), configs, device="cpu", n_workers=1)
        if errors:
            raise errors[0]
    return found


def report(runs: dict[str, list[Record]]) -> str:
    """A row for each policy."""
    tasks = OPTIONS["tasks"]
    columns = [f"`{task}` {what}" for task in tasks for what in ("NDCG@20", "− never", "\\|PD\\|", "− never")]
    rows = {policy: [policy] for policy in runs}
    for task in tasks:
        for policy, records in runs.items():
            rows[policy] += _compared(records, runs["never"], task)
    for policy, records in runs.items():
        steps = [[result["step"] for result in record.about["periods"]] for record in records]
        seconds = [sum(record.about["timing"]["update_s"]) for record in records]
        visited = [_visited(record) for record in records]
        n_restarts = [own.count("retrain") for own in steps]
        rows[policy] += [", ".join(map(str, n_restarts)), f"{np.mean(visited) / 1e6:.1f}", f"{np.mean(seconds):.0f}"]
    return table(["restart", *columns, "restarts", "million events", "seconds"], list(rows.values()))


def _compared(records: list[Record], never: list[Record], task: str) -> list[str]:
    """Value and difference of the quality and of the gap."""
    if records is never:
        comparison = None
        metric = [record.about["summary"][task]["ndcg@20"] for record in records]
        values = [np.mean([score[name] for score in metric]) for name in ("mean", "abs_performance_disparity")]
        return [cell for value in values for cell in (f"{value:.4f}", "")]
    comparison = fs.compare([*never, *records], task=task, metric="ndcg@20")
    other = comparison.contenders[1]
    difference = next(pair for pair in comparison.differences if pair.label == other.label)
    return [
        f"{other.performance.value:.4f}",
        _shown(difference.performance),
        f"{other.disparity.value:.4f}",
        _shown(difference.disparity),
    ]


def _shown(part: Any) -> str:
    assert isinstance(part, Interval)
    return f"{part.value:+.4f} <sub>{part.low:+.4f} … {part.high:+.4f}</sub>"


def _visited(record: Record) -> float:
    """Events that training visited after pre-training, all epochs together."""
    ends, config = record.about["data"]["period_ends"], record.config
    return sum(
        ends[t] * config["pretrain_epochs"]
        if result["step"] == "retrain"
        else (ends[t] - ends[t - 1]) * config["update_epochs"]
        for t, result in enumerate(record.about["periods"], start=1)
    )


def decisions(runs: dict[str, list[Record]]) -> Iterator[str]:
    """What was decided in each period of the first seed, and why."""
    for policy in ("on-degradation", "by-bound"):
        for result in runs[policy][0].about["periods"]:
            yield f"- {policy}, period {result['t']}: {result['notes'][0]}"


def main() -> None:
    """Print both tables."""
    data, folder, n_seeds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 3
    for name, (log, cut) in {"movielens": movielens(data), "synthetic": synthetic()}.items():
        runs = computed(log, cut, folder / name, range(n_seeds), list(POLICIES))
        print(f"\n## {name}\n\n{report(runs)}\n", flush=True)
        print("\n".join(decisions(runs)), flush=True)


if __name__ == "__main__":
    main()
