"""Progress on standard error: bars on a terminal, elsewhere a plain line now and then; a line when code is compiled."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fairstream.reporting import COMPILING

if TYPE_CHECKING:
    from fairstream.experiments import Job, Run
    from fairstream.experiments.levers import OnProgress as OnShare
    from fairstream.experiments.run import OnProgress

SECONDS_BETWEEN_LINES = 10.0  # at first; after some minutes a twentieth of the time so far
_MEGABYTE = 1 << 20


class LineProgress:
    """A plain line now and then: the first after some seconds, so that short work prints nothing."""

    def __init__(self, *, quiet: bool, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, quiet=quiet)
        self._started = self._printed = time.monotonic()

    def say(self, line: str, share: float = 0.0, started: float | None = None) -> None:
        """Print the line, with the time since `started` and the time left, unless one was printed a moment ago."""
        now = time.monotonic()
        elapsed = now - (started or self._started)
        if now - self._printed < SECONDS_BETWEEN_LINES * max(1.0, elapsed / 200):
            return
        self._printed = now
        left = f", about {_duration(elapsed * (1 / share - 1))} left" if 0 < share < 1 else ""
        line = f"{line}; {_duration(elapsed)} elapsed{left}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def reporting_compilation(*, quiet: bool, console: Console | None = None) -> Iterator[None]:
    """Print a line when code is compiled within the block: compilation takes long and shows no progress."""
    handler = _CompilationLine(console or Console(stderr=True, quiet=quiet))
    level = COMPILING.level
    COMPILING.addHandler(handler)
    COMPILING.setLevel(logging.INFO)
    try:
        yield
    finally:
        COMPILING.removeHandler(handler)
        COMPILING.setLevel(level)


class _CompilationLine(logging.Handler):
    """Prints each sentence once, even if several processes log it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console, self._seen = console, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        sentence = record.getMessage()
        if sentence not in self._seen:
            self._seen.add(sentence)
            self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)


class WorkProgress:
    """Bars that are shown within a `with` block, each with its stage and the time left."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True, quiet=quiet)
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            TextColumn("{task.fields[stage]:<28}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
            speed_estimate_period=600,  # an epoch can take minutes
        )
        self._lines = LineProgress(quiet=quiet, console=console)
        self._reporting = reporting_compilation(quiet=quiet, console=console)

    def __enter__(self) -> Self:
        self._reporting.__enter__()
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._reporting.__exit__(None, None, None)

    def bar(self, label: str) -> OnShare:
        """Add a bar; returns the callback that advances it."""
        bar, started = self._progress.add_task(label, total=1.0, stage=""), time.monotonic()

        def on_share(stage: str, share: float) -> None:
            self._progress.update(bar, completed=share, stage=stage)
            if self._progress.disable:
                self._lines.say(f"{label}: {stage}", share, started)

        return on_share

    def run_bar(self, label: str, work: Sequence[int]) -> OnProgress:
        """Add a bar for a run, with the work of each of its periods; returns the callback of the run."""
        on_share, total_work = self.bar(label), sum(work) or 1

        def on_progress(t: int, done: int, total: int) -> None:
            what = "pre-training" if t == 0 else f"period {t} of {len(work) - 1}"
            stage = "done" if t == len(work) else f"{what}, epoch {done}/{total}"
            on_share(stage, (sum(work[:t]) + (work[t] * done / total if total else 0)) / total_work)

        return on_progress

    def follow(self, run: Run, name: str | None = None) -> None:
        """Finish `run` and show its progress."""
        run.on_progress = self.run_bar(name or run.config.method, run.expected_work())
        for _ in run:
            pass
        run.on_progress(run.periods.last, 0, 0)

    def job_bar(self, name: str, jobs: Sequence[Job]) -> Callable[[float, int], None]:
        """Add a bar for a stage of several jobs; returns the callback that takes the work and the jobs done."""
        on_share, work = self.bar(name), sum(job.work for job in jobs)

        def on_jobs(done: float, n_done: int) -> None:
            stage = f"{n_done}/{len(jobs)} jobs" if jobs else f"{n_done} done"
            on_share(stage, min(1.0, done / work) if work else 0.0)

        if jobs:
            on_jobs(0.0, 0)
        return on_jobs


class DownloadProgress(WorkProgress):
    """The progress of a download, with the interface of tqdm that pooch expects."""

    total: int = 0  # set by pooch before the first update; 0 where the server does not say

    def __init__(self, label: str, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._on_share, self._n_bytes = self.bar(label), 0

    def update(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        self._on_share(f"{self._n_bytes / _MEGABYTE:.1f} MB", self._n_bytes / self.total if self.total else 0.0)

    def reset(self) -> None:
        self._n_bytes = 0

    def close(self) -> None:
        """Do nothing: the bar ends with its `with` block."""


def _duration(seconds: float) -> str:
    """Seconds in a readable unit.

    >>> _duration(42), _duration(600), _duration(8000)
    ('42 s', '10 min', '2.2 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
