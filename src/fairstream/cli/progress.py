"""Progress on standard error: bars on a terminal, elsewhere a plain line now and then; a line when code is compiled."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fairstream.reporting import COMPILING

if TYPE_CHECKING:
    from fairstream.experiments import Job, Run
    from fairstream.experiments.run import OnProgress

SECONDS_BETWEEN_LINES = 10.0
"""At first; after some minutes a line comes when a twentieth more time has passed, so that hours do not fill a log."""
_MEGABYTE = 1 << 20


class LineProgress:
    """A plain line now and then: the first after some seconds, so that short work says nothing."""

    def __init__(self, *, quiet: bool, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, quiet=quiet)
        self._started = self._printed = time.monotonic()

    def say(self, line: str, share: float = 0.0) -> None:
        """Print the line, with the time it has taken and may still take, unless one was printed a moment ago."""
        now = time.monotonic()
        elapsed = now - self._started
        if now - self._printed < SECONDS_BETWEEN_LINES * max(1.0, elapsed / 200):
            return
        self._printed = now
        left = f", about {_duration(elapsed * (1 / share - 1))} left" if 0 < share < 1 else ""
        line = f"{line}; {_duration(elapsed)} elapsed{left}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def reporting_compilation(*, quiet: bool, console: Console | None = None) -> Iterator[None]:
    """Print a line when code is compiled within the block: nothing else is seen to happen meanwhile."""
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
    """Prints each sentence once, from however many processes it comes."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console, self._seen = console, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        sentence = record.getMessage()
        if sentence not in self._seen:
            self._seen.add(sentence)
            self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)


class _Bars:
    """Bars that are shown within a `with` block, on a terminal; `_lines` is where there is none."""

    def __init__(self, *columns: ProgressColumn, quiet: bool) -> None:
        console = Console(stderr=True, quiet=quiet)
        self._quiet = quiet
        self._progress = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self._lines = LineProgress(quiet=quiet, console=console) if self._progress.disable else None
        self._reporting = reporting_compilation(quiet=quiet, console=console)

    def __enter__(self) -> Self:
        self._reporting.__enter__()
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._reporting.__exit__(None, None, None)

    def _say(self, line: str, share: float = 0.0) -> None:
        if self._lines is not None:
            self._lines.say(line, share)


class RunProgress(_Bars):
    """One bar per run, in proportion to the events that each period's epochs visit, with the time left."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            TextColumn("{task.fields[stage]:<28}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            quiet=quiet,
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
            self._say(f"{label}: {stage}", completed / sum(work) if sum(work) else 0.0)

        return on_progress


class ShareProgress(_Bars):
    """One bar of a piece of work that says what it is doing and which share of it is done."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(
            TextColumn("{task.description:<38}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            quiet=quiet,
        )
        self._bar = self._progress.add_task("", total=1.0)

    def on_progress(self, what: str, share: float) -> None:
        """Show what is being done, and the share of the whole that is done."""
        self._progress.update(self._bar, description=what, completed=share)
        self._say(f"{what}, {share:.0%}", share)


class JobProgress(_Bars):
    """One bar per stage of work that is cut into jobs, with the time left."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[jobs]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            quiet=quiet,
        )

    def stage(self, name: str, jobs: Sequence[Job]) -> Callable[[float, int], None]:
        """Add a bar for one stage; returns the callback that advances it."""
        work, started = sum(job.work for job in jobs), time.monotonic()
        bar = self._progress.add_task(name, total=work or None, jobs=f"0/{len(jobs)} jobs", left="")
        console = self._progress.console
        lines = LineProgress(quiet=self._quiet, console=console) if self._progress.disable else None
        if self._progress.disable and jobs:
            console.print(f"{name}: {len(jobs)} jobs", highlight=False)

        def on_progress(done: float, n_done: int) -> None:
            elapsed = time.monotonic() - started
            left = f"{_duration(elapsed * (work / done - 1))} left" if 0 < done < work else ""
            jobs_done = f"{n_done}/{len(jobs)} jobs" if jobs else f"{n_done} done"
            self._progress.update(bar, completed=min(done, work), jobs=jobs_done, left=left)
            if lines is not None:
                lines.say(f"{name}: {jobs_done}", done / work if work else 0.0)

        return on_progress


class DownloadProgress(_Bars):
    """The progress bar of a download, with the interface of tqdm that pooch expects."""

    def __init__(self, label: str, *, quiet: bool) -> None:
        super().__init__(
            TextColumn("{task.description:<14}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), quiet=quiet
        )
        self._label = label
        self._n_bytes = 0

    total: int = 0
    """Set by pooch before the first update; 0 where the server does not say."""

    def update(self, n_bytes: int) -> None:
        """Advance by so many bytes; the bar appears with the first call."""
        if not self._progress.tasks:
            self._progress.add_task(self._label, total=self.total or None)
        self._progress.advance(self._progress.tasks[0].id, n_bytes)
        self._n_bytes += n_bytes
        self._say(f"{self._label}: {self._n_bytes / _MEGABYTE:.1f} MB", self._n_bytes / self.total if self.total else 0)

    def reset(self) -> None:
        """Go back to 0 bytes."""
        self._n_bytes = 0
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
