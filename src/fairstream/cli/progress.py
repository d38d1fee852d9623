"""Progress bars on a terminal, nothing anywhere else."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fairstream.experiment import Run
from fairstream.experiment.run import OnProgress


class RunProgress:
    """One bar per run: its periods, and the epochs of the period that is being learned."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[stage]:<26}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not sys.stderr.isatty(),
        )

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def follow(self, run: Run) -> None:
        """Carry `run` to its end under a bar of its own."""
        run.on_progress = self.bar(run.config.method, run.periods.last)
        for _ in run:
            pass
        run.on_progress(run.periods.last, 0, 0)

    def bar(self, label: str, n_periods: int) -> OnProgress:
        """A bar of its own for one run, and what to call as it goes on."""
        bar = self._progress.add_task(label, total=n_periods, stage="")

        def on_progress(t: int, done: int, total: int) -> None:
            what = "pre-training" if t == 0 else f"period {t}"
            stage = "done" if t == n_periods else f"{what}, epoch {done}/{total}"
            self._progress.update(bar, completed=t, stage=stage)

        return on_progress


class DownloadProgress:
    """One bar for a file that is being fetched: its size, what of it is there, and the time left."""

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

    def __enter__(self) -> DownloadProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, done: int, total: int | None) -> None:
        """What to call as the bytes come in; the bar appears with the first call."""
        if not self._progress.tasks:
            self._progress.add_task(self._label, total=total)
        self._progress.update(self._progress.tasks[0].id, completed=done)
