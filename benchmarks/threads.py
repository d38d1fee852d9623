"""A soak test: readers beside a writer, for as long as asked. `python -m benchmarks.threads MINUTES`.

One thread updates, observes and forgets; four others recommend, evaluate, save and load. Every list
that a reader gets must be one that some state would give: the writer computes them after each change.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import fairstream

_N_USERS, _N_EVENTS = 600, 60_000


def main(minutes: float) -> int:  # noqa: PLR0915 (one story)
    """Run the soak and print what happened; returns 1 where anything went wrong."""
    stream = fairstream.synthetic_stream(n_users=_N_USERS, n_items=300, n_events=_N_EVENTS, seed=0)
    n_first = _N_EVENTS // 3
    log = fairstream.read_events(
        stream.events.slice(0, n_first), users=stream.users, group="community", advantaged="majority"
    )
    rec = fairstream.FairRecommender("mf", pretrain_epochs=3, update_epochs=2, device="cpu").fit(log)
    asked = pa.array([*range(200), 10**6])
    tested = stream.events.slice(_N_EVENTS - 500)
    end = time.monotonic() + 60 * minutes
    valid, seen, problems, counts = {_digest(rec.recommend(asked, k=10))}, set(), [], Counter[str]()

    def write() -> None:
        rng, at = np.random.default_rng(0), n_first
        while time.monotonic() < end:
            size = int(rng.integers(20, 200))
            if at + size > _N_EVENTS - 500:
                at = n_first
                rec.fit(log)
                valid.add(_digest(rec.recommend(asked, k=10)))
                counts["fit"] += 1
            part, action = stream.events.slice(at, size), rng.choice(["update", "update", "observe", "forget"])
            try:
                if action == "forget":
                    rec.forget([int(user) for user in rng.integers(0, _N_USERS, size=2)])
                elif action == "observe":
                    rec.observe(part, users=stream.users)
                else:
                    rec.update(part, users=stream.users)
            except fairstream.DataError:
                counts["nothing new"] += 1
            at += size if action != "forget" else 0
            valid.add(_digest(rec.recommend(asked, k=10)))
            counts[str(action)] += 1

    def read(name: str, look: Callable[[], pa.Table | None]) -> None:
        while time.monotonic() < end:
            table = look()
            if table is not None:
                seen.add(_digest(table))
            counts[name] += 1

    with tempfile.TemporaryDirectory() as folder:

        def save_and_load() -> pa.Table:
            rec.save(Path(folder) / "model")
            return fairstream.load(Path(folder) / "model").recommend(asked, k=10)

        def evaluate() -> None:
            rec.evaluate(tested, users=stream.users, n_resamples=0)

        jobs: list[Callable[[], None]] = [
            write,
            lambda: read("recommend", lambda: rec.recommend(asked, k=10)),
            lambda: read("recommend", lambda: rec.recommend(asked, k=10)),
            lambda: read("evaluate", evaluate),
            lambda: read("save and load", save_and_load),
        ]

        def guarded(job: Callable[[], None]) -> None:
            try:
                job()
            except BaseException as error:
                problems.append(repr(error))

        threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    strange = seen - valid
    print(f"{minutes:g} minutes: {dict(counts)}")
    print(f"{len(valid)} states, {len(seen)} different lists read, {len(strange)} that no state gives")
    print(f"{len(problems)} exceptions", *problems[:5])
    return 1 if problems or strange else 0


def _digest(table: pa.Table) -> str:
    digest = hashlib.sha256()
    for name in table.column_names:
        digest.update(repr(table[name].to_pylist()).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 10))
