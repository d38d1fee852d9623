"""Fine-tuning with restart, the practice that Section 3.1 of the paper recommends.

Fine-tuning forgets old distributions exponentially fast, which is good, but its learning error
does not shrink with the past it has seen; from time to time the model is retrained on everything
and fine-tuning goes on from there.
"""

from __future__ import annotations

from fairstream.strategies.strategy import Step, Strategy


class RestartEvery(Strategy):
    """Retrain every R-th period, fine-tune in between."""

    def __init__(self, n_periods: int) -> None:
        self._every = n_periods
        self._since_restart = 0

    def next_step(self, quality: float | None) -> Step:
        self._since_restart += 1
        if self._since_restart < self._every:
            return Step.FINE_TUNE
        self._since_restart = 0
        return Step.RETRAIN

    def state(self) -> dict[str, float]:
        return {"since_restart": self._since_restart}

    def restore(self, state: dict[str, float]) -> None:
        self._since_restart = int(state["since_restart"])


class RestartOnDegradation(Strategy):
    """Retrain once the model in service has done worse than it did after its last restart,
    `patience` periods in a row.

    Quality is how W_{t−1} did on D_t before learning it, so the decision uses nothing that would
    not have been known on the day. The first quality after a (re)start is the mark to hold.
    """

    needs_quality = True

    def __init__(self, patience: int = 2) -> None:
        self._patience = patience
        self._mark: float | None = None
        self._n_worse = 0

    def next_step(self, quality: float | None) -> Step:
        if quality is None:  # nobody could be tested on this period
            return Step.FINE_TUNE
        if self._mark is None:
            self._mark = quality
        self._n_worse = self._n_worse + 1 if quality < self._mark else 0
        if self._n_worse < self._patience:
            return Step.FINE_TUNE
        self._mark, self._n_worse = None, 0
        return Step.RETRAIN

    def state(self) -> dict[str, float]:
        mark = {} if self._mark is None else {"mark": self._mark}
        return {"n_worse": self._n_worse, **mark}

    def restore(self, state: dict[str, float]) -> None:
        self._mark, self._n_worse = state.get("mark"), int(state["n_worse"])
