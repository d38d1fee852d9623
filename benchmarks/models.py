"""What each model costs, and how that grows: pre-training, an update, a list for one user and for many.

python -m benchmarks.models [DATA] [--model sasrec ...] [--device cuda] [--epochs N] [--cpu-time]

With DATA, a folder with interactions and users (for example movielens-1m): D_0, four periods, lists for 10,000 users.
Without: synthetic logs that grow in events, items and length of history, updates of 5,000 events, 1,000 users' lists.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import fairstream as fs
from benchmarks.timing import table
from fairstream.periods import cut_periods

MODELS = ("recent-popularity", "item-item", "mf", "gru", "sasrec", "blend")
N_PERIODS = 4
N_NEW, N_UPDATES = 5_000, 1
WHAT = ("fit, s", "update, s", "1 user, ms", "{} users, s")


class Size(NamedTuple):
    """A synthetic log."""

    events: int = 50_000
    items: int = 2_000
    length: int = 50
    """Events of each user, those of the updates included."""

    @property
    def name(self) -> str:
        return f"{self.events // 1000}k events, {self.items:,} items, {self.length} a user"


SIZES = (
    Size(),
    Size(events=100_000),
    Size(events=200_000),
    Size(length=10),
    Size(length=200),
    Size(items=4_000),
    Size(items=8_000),
)


class Work(NamedTuple):
    """What a model is measured on."""

    first: pa.Table
    """Events to fit."""
    updates: Sequence[pa.Table]
    people: pa.Table
    group: str | None
    n_lists: int


class Costs(NamedTuple):
    """Seconds."""

    fit: float
    update: float
    one: float
    many: float

    def show(self) -> list[str]:
        return [f"{self.fit:.2f}", f"{self.update:.3f}", f"{1000 * self.one:.1f}", f"{self.many:.2f}"]


class Meter:
    """Measures by the wall clock, or by the CPU time of all threads of this process."""

    def __init__(self, *, cpu_time: bool) -> None:
        self._clock = time.process_time if cpu_time else time.perf_counter

    def seconds(self, calls: Iterable[Callable[[], object]]) -> float:
        """The median of the calls."""
        taken = []
        for call in calls:
            begin = self._clock()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken.append(self._clock() - begin)
        return statistics.median(taken)

    def measure(self, work: Work, model: str, device: str, epochs: int | None) -> Costs:
        """Fit, update, recommend."""
        rec = fs.FairRecommender(model, training=fs.Training(pretrain_epochs=epochs), device=device)  # type: ignore[arg-type]
        log = fs.read_events(work.first, users=work.people, group=work.group)
        fit = self.seconds([lambda: rec.fit(log)])
        update = self.seconds((lambda new=new: rec.update(new, users=work.people)) for new in work.updates)  # type: ignore[misc]
        ids = rec.state.user_ids.ids
        many = ids.take(np.arange(work.n_lists) % len(ids))
        rec.recommend(ids[:1])
        return Costs(
            fit,
            update,
            self.seconds([lambda: rec.recommend(ids[:1])] * 9),
            self.seconds([lambda: rec.recommend(many)] * 2),
        )


def read(folder: str, group: str | None) -> Work:
    """D_0 and the first periods of a data set."""
    people = pq.read_table(f"{folder}/users.parquet")
    log = fs.read_events(f"{folder}/interactions.parquet", users=people, group=group)
    periods = cut_periods(len(log), pretrain_ratio=0.6, n_periods=N_PERIODS)
    users, items = log.user_ids.ids.take(log.users), log.item_ids.ids.take(log.items)
    first, *updates = (
        pa.table({"user_id": users[at], "item_id": items[at], "time": log.times[at]})
        for at in map(periods.span, range(N_PERIODS + 1))
    )
    return Work(first, updates, people, group, 10_000)


def synthetic(size: Size) -> Work:
    """Random users, different items for each of them; an item's popularity falls with the root of its rank."""
    rng, n_events = np.random.default_rng(0), size.events + N_UPDATES * N_NEW
    n_users = n_events // size.length
    logits = -0.5 * np.log(np.arange(1, size.items + 1))
    items = np.concatenate([_different(rng, logits, size.length) for _ in range(n_users)])
    order = rng.permutation(len(items))
    users = np.repeat(np.arange(n_users), size.length)
    events = pa.table({"user_id": users[order], "item_id": items[order], "time": np.arange(len(items))})
    people = pa.table({"user_id": np.arange(n_users), "group": rng.choice(["a", "b"], n_users)})
    updates = [events.slice(size.events + n * N_NEW, N_NEW) for n in range(N_UPDATES)]
    return Work(events.slice(0, size.events), updates, people, "group", 1_000)


def _different(rng: np.random.Generator, logits: np.ndarray, n: int) -> np.ndarray:
    """Some different items: the n largest logits with Gumbel noise."""
    return np.argpartition(-(logits + rng.gumbel(size=len(logits))), n)[:n]


def growth(models: Sequence[str], meter: Meter, device: str, epochs: int) -> Iterator[list[str]]:
    """The lines of the table; the models take turns at each size."""
    for model in models:  # what is compiled or loaded at first use is not counted
        meter.measure(synthetic(Size(1_000, 100, 10)), model, device, epochs)
    costs: dict[str, list[list[str]]] = {model: [] for model in models}
    for size in SIZES:
        work = synthetic(size)
        for model in models:
            costs[model].append(meter.measure(work, model, device, epochs).show())
            print(f"{size.name}: {model} {' / '.join(costs[model][-1])}", flush=True)
    for model in models:
        for what, cells in zip(WHAT, zip(*costs[model], strict=True), strict=True):
            yield [f"{model}: {what.format('1,000')}", *cells]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="folder; without it, synthetic logs of several sizes")
    parser.add_argument("--group", help="column of the users; by default the only one beside their ids")
    parser.add_argument("--model", action="append")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, help="of pre-training; by default the model's own, on synthetic logs 1")
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds of one thread, for a busy machine")
    given = parser.parse_args()
    if given.cpu_time:
        torch.set_num_threads(1)
    meter, models = Meter(cpu_time=given.cpu_time), given.model or MODELS
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}", flush=True)
    if given.data is None:
        lines = list(growth(models, meter, given.device, given.epochs or 1))
        print(table(["", *(size.name for size in SIZES)], lines))
        return
    work = read(given.data, given.group)
    print(f"{work.first.num_rows} events, updates of {work.updates[0].num_rows}")
    print(table(["", *(what.format("10,000") for what in WHAT)], []))
    for model in models:
        meter.measure(synthetic(Size(1_000, 100, 10)), model, given.device, 1)
        cells = meter.measure(work, model, given.device, given.epochs).show()
        print("| " + " | ".join([model, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
