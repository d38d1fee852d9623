"""The prequential run: update on a period, judge on what follows, go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Self

from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Judge
from fairstream.events import EventLog, SeenItems
from fairstream.events.datasets.published import recognise
from fairstream.experiment.config import RunConfig
from fairstream.experiment.results import PeriodResult, summarise, versions
from fairstream.methods import make_learner
from fairstream.models import ScorerFactory
from fairstream.periods import cut_periods
from fairstream.randomness import Randomness
from fairstream.strategies import Knowledge, Learner, Update

OnProgress = Callable[[int, int, int], None]
"""Called after each epoch with (period t, epochs done, epochs in all)."""

_PAPER_RATIO = 0.6


class Run(Iterator[PeriodResult]):
    """One method over one log. Iterate over it for the periods t = 1 … T − 1.

    `pretrained` is the result at t = 0, there from the first step on; `results` what has been
    yielded so far; `document()` everything, as it is stored.
    """

    def __init__(
        self,
        log: EventLog,
        config: RunConfig,
        *,
        factory: ScorerFactory | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        known = recognise(log)
        ratio = config.pretrain_ratio or (known.pretrain_ratio if known else _PAPER_RATIO)
        self.log, self.config = log, config.replaced(pretrain_ratio=ratio)
        self.dataset = known.name if known else None
        self.groups = log.need_groups()
        is_paper = config.protocol == "paper"
        self.periods = cut_periods(
            len(log),
            pretrain_ratio=ratio,
            n_periods=config.n_periods,
            n_blocks=config.n_blocks,
            unit=config.batch_size if is_paper else 1,
        )
        n_first = log.n_items_after(self.periods.ends[0])
        if config.k > n_first:
            raise ConfigurationError(f"k must be at most the {n_first} items of the pre-training data, got {config.k}")
        randomness = Randomness(config.seed)
        self._learner: Learner = make_learner(
            self.config,
            factory=factory,
            randomness=randomness,
            device=config.torch_device(),
            foresight=_everything(log) if is_paper else None,
        )
        self._judge = Judge(config.protocol, config.k, self.groups, randomness)
        self.on_progress = on_progress
        self._unjudged: Update | None = None
        self.pretrained: PeriodResult | None = None
        self.results: list[PeriodResult] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PeriodResult:
        if self.pretrained is None:
            self.pretrained = self._advance(0, None)
        t = len(self.results) + 1
        if t >= self.periods.last:
            raise StopIteration
        # How W_{t−1} did on D_t: known by the time that D_t is there to be learned from.
        before = self.results[-1] if self.results else self.pretrained
        quality = before.tasks["next"][f"ndcg@{self.config.k}"].overall
        self.results.append(self._advance(t, quality))
        return self.results[-1]

    def _advance(self, t: int, quality: float | None) -> PeriodResult:
        at = self.periods.span(t)
        users, items = self.log.users[at], self.log.items[at]

        def on_epoch(done: int, total: int) -> None:
            if self.on_progress is not None:
                self.on_progress(t, done, total)

        # An update that is done stays done, should the judging after it be interrupted.
        if self._unjudged is None:
            codes = self.groups.codes
            if t == 0:
                self._unjudged = self._learner.fit(users, items, codes, on_epoch)
            else:
                self._unjudged = self._learner.update(users, items, codes, quality, on_epoch)
        result = self._judged(t, self._unjudged)
        self._unjudged = None
        return result

    def _judged(self, t: int, update: Update) -> PeriodResult:
        known = self._learner.known
        spans = {"remain": self.periods.remaining(t), "next": self.periods.span(t + 1)}
        tasks = {
            task: self._judge.judge(
                self._learner.model,
                self.log.users[span],
                self.log.items[span],
                seen=known.seen,
                n_users=known.n_users,
                n_items=known.n_items,
                t=t,
            )
            for task, span in spans.items()
        }
        return PeriodResult(t, update, tasks)

    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Task → metric → means over the periods so far."""
        return summarise(self.results)

    def document(self) -> dict[str, Any]:
        """The run as JSON: its whole configuration, data, versions, results and times."""
        before = [] if self.pretrained is None else [self.pretrained]
        return {
            "config": self.config.model_dump(),
            "data": {
                "name": self.dataset,
                "sha256": self.log.fingerprint(),
                "n_events": len(self.log),
                "n_users": self.log.n_users,
                "n_items": self.log.n_items,
                "group": self.groups.attribute,
                "advantaged": self.groups.names[0],
                "disadvantaged": self.groups.names[1],
                "columns": asdict(self.log.columns),
                "period_ends": self.periods.ends,
            },
            "versions": {**versions(), "device": str(self._learner.device)},
            "pretrained": before[0].to_dict() if before else None,
            "periods": [result.to_dict() for result in self.results],
            "summary": self.summary(),
            "timing": {
                "pretrain_s": before[0].update.seconds if before else None,
                "update_s": [result.update.seconds for result in self.results],
            },
        }


def _everything(log: EventLog) -> Knowledge:
    """The paper's leak: what every user will ever have, and the whole catalogue."""
    return Knowledge(SeenItems.from_pairs(log.users, log.items), log.n_users, log.n_items)


def run(
    log: EventLog,
    method: str = "FADE",
    *,
    model: str | ScorerFactory = "mf",
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Run:
    """Carry a method through a log, a period at a time.

    Options are the fields of `RunConfig`.

    >>> from fairstream import read_events, synthetic_stream
    >>> stream = synthetic_stream(n_users=150, n_items=80, n_events=4000, seed=0)
    >>> log = read_events(stream.events, users=stream.users)
    >>> for result in run(log, "finetune", pretrain_epochs=2, update_epochs=1, n_periods=3, device="cpu"):
    ...     print(result.t, result.update.step, sorted(result.tasks))
    1 fine-tune ['next', 'remain']
    2 fine-tune ['next', 'remain']
    """
    if not isinstance(log, EventLog):
        raise DataError(f"run takes an EventLog, got {type(log).__name__}; make one with read_events")
    factory = None if isinstance(model, str) else model
    config = RunConfig(method=method, model=model if isinstance(model, str) else "custom", **options)
    return Run(log, config, factory=factory, on_progress=on_progress)
