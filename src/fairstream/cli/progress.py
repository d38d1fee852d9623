"""Progress bars on a terminal; elsewhere, for long work, a line every 30 seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fairstream.experiments import Job, Run
from fairstream.experiments.run import OnProgress

_SECONDS_BETWEEN_LINES = 30.0


class _Bars:
    """Bars that are shown within a `with` block."""

    _progress: Progress

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class RunProgress(_Bars):
    """One bar per run, in proportion to the events that each period's epochs visit, with the time left."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            TextColumn("{task.fields[stage]:<28}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not sys.stderr.isatty(),
        )

    def follow(self, run: Run, name: str | None = None) -> None:
        """Finish `run` and show its progress."""
        run.on_progress = self.bar(name or run.config.method, run.expected_work())
        for _ in run:
            pass
        run.on_progress(run.periods.last, 0, 0)

    def bar(self, label: str, work: Sequence[int]) -> OnProgress:
        """Add a bar for one run, with the work of each of its periods; returns the callback that advances it."""
        bar = self._progress.add_task(label, total=sum(work), stage="")

        def on_progress(t: int, done: int, total: int) -> None:
            what = "pre-training" if t == 0 else f"period {t} of {len(work) - 1}"
            stage = "done" if t == len(work) else f"{what}, epoch {done}/{total}"
            completed = sum(work[:t]) + (work[t] * done / total if total else 0)
            self._progress.update(bar, completed=completed, stage=stage)

        return on_progress


class ShareProgress(_Bars):
    """One bar of a piece of work that says what it is doing and which share of it is done."""

    def __init__(self, *, quiet: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<38}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=quiet or not sys.stderr.isatty(),
        )
        self._bar = self._progress.add_task("", total=1.0)

    def on_progress(self, what: str, share: float) -> None:
        """Show what is being done, and the share of the whole that is done."""
        self._progress.update(self._bar, description=what, completed=share)


class JobProgress(_Bars):
    """One bar per stage of work that is cut into jobs, with the time left."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[jobs]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )

    def stage(self, name: str, jobs: Sequence[Job]) -> Callable[[float, int], None]:
        """Add a bar for one stage; returns the callback that advances it."""
        work, started, printed = sum(job.work for job in jobs), time.monotonic(), time.monotonic()
        bar = self._progress.add_task(name, total=work or None, jobs=f"0/{len(jobs)} jobs", left="")
        if self._progress.disable and jobs:
            self._console.print(f"{name}: {len(jobs)} jobs", highlight=False)

        def on_progress(done: float, n_done: int) -> None:
            nonlocal printed
            elapsed = time.monotonic() - started
            left = f"{_duration(elapsed * (work / done - 1))} left" if 0 < done < work else ""
            jobs_done = f"{n_done}/{len(jobs)} jobs" if jobs else f"{n_done} done"
            self._progress.update(bar, completed=min(done, work), jobs=jobs_done, left=left)
            if self._progress.disable and time.monotonic() - printed > _SECONDS_BETWEEN_LINES:
                printed = time.monotonic()
                self._console.print(f"{name}: {jobs_done}, {_duration(elapsed)} elapsed, {left}", highlight=False)

        return on_progress


class DownloadProgress(_Bars):
    """The progress bar of a download, with the interface of tqdm that pooch expects."""

    def __init__(self, label: str, *, quiet: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=quiet or not sys.stderr.isatty(),
        )
        self._label = label

    total: int = 0
    """Set by pooch before the first update; 0 where the server does not say."""

    def update(self, n_bytes: int) -> None:
        """Advance by so many bytes; the bar appears with the first call."""
        if not self._progress.tasks:
            self._progress.add_task(self._label, total=self.total or None)
        self._progress.advance(self._progress.tasks[0].id, n_bytes)

    def reset(self) -> None:
        """Go back to 0 bytes."""
        if self._progress.tasks:
            self._progress.update(self._progress.tasks[0].id, completed=0)

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
