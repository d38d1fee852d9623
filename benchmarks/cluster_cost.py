"""What a step of one training costs on a cluster, by formulae, beside what was measured.

    python -m benchmarks.cluster_cost steps.jsonl

`steps.jsonl` is what `benchmarks.cluster_steps` wrote. Seconds are those of the processor, predicted from what one
process took, from what two take to exchange plain bytes, and from what Adam takes for a row: no measurement of steps
with several workers is fitted.
docs/explanation/cluster-cost.md explains the formulae and what follows from them.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import table

_GIB = 1 << 30
USERS, ITEMS, EVENTS, BATCH = 10**9, 10**8, 10**10, 1 << 20
CORES, MEMORY, NETWORK, LATENCY, PRICE = 16, 128, 25e9 / 8, 1e-3, 1.0
"""Of a machine of the plan: GiB, bytes/s and $ an hour; and seconds until all workers have waited for each other."""
_ACTIVATIONS = {"mf": 12_000, "sasrec": 70_000}
"""Bytes for each interaction while a step lasts, read off one measurement of each model."""
_NEGATIVES, _SHARED, _LENGTH, _BASE = 4, 1024, 50, 0.55


@dataclass(frozen=True)
class Work:
    """One training, and by how many workers."""

    model: str
    """mf (rows of users and items) or sasrec (rows of items and layers)."""
    optimizer: str
    """row or dense"""
    batch: int
    """Interactions in a batch, of all workers."""
    workers: int
    users: int
    items: int
    events: int
    dim: int = 64
    owns_items: bool = False
    """Whether a row of an item table, too, lives with one worker, and its value and gradient travel (not built)."""
    adds_groups: bool = False
    """Whether workers add up what the loss needs of each group, instead of gathering all scores (not built)."""

    @property
    def share(self) -> float:
        """Interactions of the worker that has the most of a batch."""
        mean = self.batch / self.workers
        return mean + (math.sqrt(2 * math.log(self.workers) * mean) if self.workers > 1 else 0.0)

    @property
    def rows(self) -> float:
        """Rows of an item table that this worker touches."""
        extra = _SHARED if self.model == "sasrec" else 0
        return touched(self.share + extra / 2, _NEGATIVES * self.share + extra / 2, self.items)

    @property
    def layers(self) -> int:
        """Parameters that are not rows."""
        return 0 if self.model == "mf" else 2 * (8 * self.dim**2 + 12 * self.dim + 2 * _LENGTH) + 2 * self.dim

    @property
    def widths(self) -> list[int]:
        """Columns of the item tables."""
        return [self.dim] if self.model == "mf" else [self.dim, 1]

    @property
    def exchanges(self) -> int:
        """How often the workers wait for each other in a step."""
        of_rows = 2 * len(self.widths) if self.optimizer == "row" else 0
        return 2 + of_rows + (1 if self.layers or self.optimizer == "dense" else 0)

    @property
    def bytes(self) -> float:
        """What this worker sends in a step, and receives."""
        w, scores = self.workers, 0.0 if self.adds_groups else 8 * (1 + _NEGATIVES + 2) * self.share
        summed = 4.0 * self.layers
        if self.optimizer == "dense":
            summed += 4.0 * sum(self.widths) * self.items
        gathered = scores
        if self.optimizer == "row" and not self.owns_items:
            gathered += self.rows * sum(8 + 4 * width for width in self.widths)
        total = (w - 1) * gathered + 2 * (w - 1) / w * summed
        if self.owns_items:  # ids there, rows back, gradients there
            total += (w - 1) / w * self.rows * sum(8 + 8 * width for width in self.widths)
        return total

    @property
    def memory(self) -> float:
        """Resident bytes of this worker."""
        of_row = sum(4 * (3 * width + (1 if self.optimizer == "row" else 0)) for width in self.widths)
        items = self.items * of_row / (self.workers if self.owns_items else 1)
        users = self.users / self.workers * (4 * (3 * self.dim + 1)) if self.model == "mf" else 0
        # Columns twice (NumPy, PyTorch), numbers, exclusion lists; a window is two lists of fifty, each twice.
        events = self.events / self.workers * (68 if self.model == "mf" else 12) + 2 * self.users
        windows = 0.0
        if self.model == "sasrec":
            windows = min(self.users, self.events) / self.workers * 32 * _LENGTH * 1.1
        return _BASE * _GIB + items + users + events + windows + _ACTIVATIONS[self.model] * self.share


@dataclass(frozen=True)
class Machine:
    """What one worker can do."""

    step: float
    """Seconds of a step, whatever its size."""
    interaction: float
    """Seconds for an interaction, without Adam on item rows."""
    row: float
    """Seconds for each row of an item table that Adam by rows gets from a worker."""
    latency: float
    """Seconds of an exchange, whatever its size."""
    bytes_per_second: float
    dense_row: float = 0.0
    """Seconds for each row of an item table at a dense step."""

    def seconds(self, work: Work) -> float:
        """Of a step."""
        received = work.rows if work.owns_items else work.workers * work.rows
        adam = self.row * received * len(work.widths) if work.optimizer == "row" else self.dense_row * work.items
        alone = self.step + self.interaction * work.share + adam
        if work.workers == 1:
            return alone
        return alone + self.latency * work.exchanges + work.bytes / self.bytes_per_second


def touched(popular: float, uniform: float, n_items: int) -> float:
    """Different items among draws in proportion to 1 / rank, and uniform ones."""
    edges = np.unique(np.geomspace(1, n_items + 1, 4096).astype(np.int64))
    n, p = np.diff(edges), np.log(edges[1:] / edges[:-1]) / math.log(n_items + 1) / np.diff(edges)
    return float(
        (n * -np.expm1(popular * np.log1p(-np.minimum(p, 1 - 1e-12)) + uniform * math.log1p(-1 / n_items))).sum()
    )


def machine_of(lines: list[dict[str, Any]], model: str) -> Machine:
    """What one process took, as constants."""
    alone = {
        (line["optimizer"], line["batch"]): line["cpu_seconds"]
        for line in lines
        if line["what"] == "step" and line["processes"] == 1 and line["model"] == model
    }
    linked = [line for line in lines if line["what"] == "processes" and line["processes"] > 1]
    row = next(line["seconds_a_row"] for line in lines if line["what"] == "optimizer")
    (few, seconds_few), (many, seconds_many) = sorted((batch, s) for (kind, batch), s in alone.items() if kind == "row")

    def rest(batch: int, seconds: float) -> float:
        work = work_of(lines, model, "row", batch, 1)
        return max(0.0, seconds - row * work.rows * len(work.widths))

    slope = max(0.0, (rest(many, seconds_many) - rest(few, seconds_few)) / (many - few))
    made = Machine(
        max(0.0, rest(few, seconds_few) - slope * few),
        slope,
        row,
        min((line["latency"] for line in linked), default=0.0),
        max((line["bytes_per_second"] for line in linked), default=math.inf),
    )
    dense = [(batch, s) for (kind, batch), s in alone.items() if kind == "dense"]
    if dense:
        ((batch, seconds),) = dense
        made = replace(made, dense_row=max(0.0, seconds - made.step - slope * batch) / about_of(lines, model)["items"])
    return made


def about_of(lines: list[dict[str, Any]], model: str) -> dict[str, int]:
    """How much data the measurements of a model were on: SASRec had the windows of a tenth of the users."""
    found = next(line for line in lines if line["what"] == "events")
    parts = 10 if model == "sasrec" else 1
    return {"users": found["users"] // parts, "items": found["items"], "events": found["events"] // parts}


def work_of(lines: list[dict[str, Any]], model: str, optimizer: str, batch: int, workers: int) -> Work:
    """A step on that data."""
    about = about_of(lines, model)
    return Work(model, optimizer, batch, workers, about["users"], about["items"], about["events"])


def report(lines: list[dict[str, Any]]) -> str:
    """Predicted beside measured, a row for each measurement."""
    rows = []
    for line in (line for line in lines if line["what"] == "step"):
        work = work_of(lines, line["model"], line["optimizer"], line["batch"], line["processes"])
        machine = machine_of(lines, work.model)
        pairs = [
            (machine.seconds(work) * 1e3, line["cpu_seconds"] * 1e3, ".1f"),
            (work.bytes / 1e6, line["sent_bytes"] / 1e6, ".2f"),
            (work.memory / _GIB, line["resident_mib"] / 1024, ".2f"),
        ]
        cells = []
        for predicted, measured, form in pairs:
            error = f"{predicted / measured - 1:+.0%}" if measured else ""
            cells += [f"{predicted:{form}}", f"{measured:{form}}", error]
        rows.append([work.model, work.optimizer, f"{work.batch:,}", str(work.workers), *cells])
    header = ["model", "Adam", "batch", "workers"]
    for name in ("ms", "MB sent", "GiB"):
        header += [f"{name}, model", "measured", "error"]
    return table(header, rows)


def prediction(lines: list[dict[str, Any]], model: str, batch: int) -> str:
    """What the model says of numbers of workers, measured or not."""
    rows, machine = [], machine_of(lines, model)
    alone = machine.seconds(work_of(lines, model, "row", batch, 1))
    for workers in (1, 2, 4, 8, 16):
        work = work_of(lines, model, "row", batch, workers)
        seconds, numbers = machine.seconds(work), f"{work.bytes / 1e6:.1f} {work.memory / _GIB:.2f}"
        rows.append([str(workers), f"{seconds * 1e3:.0f}", f"{alone / seconds:.2f}", *numbers.split()])
    return table(["workers", "ms a step", "times as fast as one", "MB sent", "GiB"], rows)


def plan(machine: Machine) -> str:
    """An epoch over a day of a very large service, with matrix factorisation; nothing of this has been run."""
    rows = []
    for now, workers in ((True, 64), (True, 256), (False, 256), (False, 1024), (False, 4096)):
        work = Work("mf", "row", BATCH, workers, USERS, ITEMS, EVENTS, owns_items=not now)
        variants = [work] if now else [work, replace(work, adds_groups=True)]
        rows += [_planned(machine, variant) for variant in variants]
    names = ["interactions, min", "Adam on items, min", "exchange, min", "an epoch, min", "$ an epoch"]
    return table(["rows of items", "scores", "workers", "machines", "GiB a worker", *names], rows)


def _planned(machine: Machine, work: Work) -> list[str]:
    n_steps, per_machine = EVENTS / BATCH, max(1, min(CORES, int(0.9 * MEMORY * _GIB / work.memory)))
    n_machines = math.ceil(work.workers / per_machine)
    linked = replace(machine, latency=LATENCY, bytes_per_second=NETWORK / per_machine)
    parts = [
        machine.interaction * work.share,
        machine.row * (work.rows if work.owns_items else work.workers * work.rows),
        LATENCY * work.exchanges + work.bytes / linked.bytes_per_second,
    ]
    minutes = linked.seconds(work) * n_steps / 60
    return [
        "owned" if work.owns_items else "replicated",
        "added up" if work.adds_groups else "gathered",
        f"{work.workers:,}",
        f"{n_machines:,}",
        f"{work.memory / _GIB:,.1f}",
        *(f"{part * n_steps / 60:,.0f}" for part in parts),
        f"{minutes:,.0f}",
        f"{minutes / 60 * n_machines * PRICE:,.0f}",
    ]


def main() -> None:
    """Print the tables."""
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print(report(lines))
    for model, batch in (("mf", 16_384), ("sasrec", 8_192)):
        print(f"\n{model}, batch {batch:,}, predicted\n\n{prediction(lines, model, batch)}")
    print(f"\nA day of {EVENTS:,} events, predicted\n\n{plan(machine_of(lines, 'mf'))}")


if __name__ == "__main__":
    main()
