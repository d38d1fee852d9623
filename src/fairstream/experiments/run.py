"""The prequential run: update on a period, test on the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fairstream.data import EventLog, History
from fairstream.data.datasets.sources import recognise
from fairstream.data.log import MIN_SHARE_OF_TIES, note_on_ties
from fairstream.display import Summary, Table, Tabular
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Evaluation, Evaluator, Metric, check_period_task
from fairstream.evaluation.by_group import ordered
from fairstream.evaluation.score_cells import FEW_GROUPS, group_cells, group_headings, regret_sentences
from fairstream.experiments.config import RunConfig, protocol_of
from fairstream.experiments.identity import groups_of, resolved
from fairstream.experiments.record import Record, Tests
from fairstream.experiments.results import PeriodResult, versions
from fairstream.methods import METHODS, NO_GROUPS, MethodConfig, Parts
from fairstream.models import ModelFactory
from fairstream.objectives import FairnessLoss, Loss
from fairstream.periods import is_calendar, to_moments
from fairstream.plotting import line_chart
from fairstream.randomness import Randomness
from fairstream.recommender import NewEvents, State, Trainer, Update
from fairstream.recommender.judging import Judgement
from fairstream.recommender.model_builder import tensors_of
from fairstream.strategies import Retrain, Strategy
from fairstream.threads import inference_threads, limit_threads
from fairstream.tools.breakdown import Breakdown
from fairstream.tools.explain import ComparedTests, Explanation, explain
from fairstream.training import Tensors

OnProgress = Callable[[int, int, int], None]  # called after each epoch with (period t, epochs done, epochs in all)

TRAINED = "users/trained"  # the tensor that marks the users a pre-trained model was trained on


class Run(Tabular, Iterator[PeriodResult]):
    """One method on one log. Iterate over it for the periods t = 1 … T − 1.

    `pretrained` is the result at t = 0, from the first step on; `results` are those yielded so far; `document()` is
    everything as JSON.
    """

    def __init__(
        self, log: EventLog, config: RunConfig, *, parts: Parts | None = None, on_progress: OnProgress | None = None
    ) -> None:
        if log.marks is not None:
            raise DataError("a run needs events without kinds: the weight of one may come from a later period")
        self.log, self.dataset = log, known.name if (known := recognise(log)) else None
        self.config, self.periods = resolved(log, config)
        n_first = log.n_items_after(self.periods.ends[0])
        if config.k > n_first:
            raise ConfigurationError(f"k must be at most the {n_first} items of the pre-training data, got {config.k}")
        # If no advantaged group is declared, it is the larger one of the pre-training data.
        self.groups = groups_of(log).as_of(log.n_users_after(self.periods.ends[0]))
        self._trainer = self._make_trainer(parts or Parts())
        readable = self._trainer.readable(log)
        self._features = None if readable.features is None else readable.features.of(log.item_ids)
        self._tested = slice(self.periods.ends[0], self.periods.ends[-1])
        self.notes: tuple[str, ...] = (*readable.notes, *self.periods.notes, *self._notes_on_ties())
        if self.groups.is_empty:
            self.notes += (NO_GROUPS,)
        self._trainer.fixed_weights(self.groups)  # raises now, not at the first fit
        self._notes_on_fairness = self._trainer.notes_on_fairness(self.groups)
        self.notes += self._notes_on_fairness
        """What is worth knowing about the log, its periods, and what is done for fairness: one sentence each."""
        self._state: State | None = None
        self._evaluator = self._make_evaluator((parts.metrics if parts is not None else None) or config.metrics or None)
        self.on_progress = on_progress
        self._unjudged: Update | None = None
        self._alternatives: dict[str, dict[str, Breakdown]] = {}  # task → alternative to the update → its test
        self._broken_down: dict[str, Breakdown] = {}  # task → the last test of the model in service
        self.pretrained: PeriodResult | None = None
        self.results: list[PeriodResult] = []
        self._records: dict[int, Record] = {}  # number of results → their record, the last one requested

    def _make_trainer(self, parts: Parts) -> Trainer:
        config, randomness = self.config, Randomness(self.config.seed)
        recipe, device = config.recipe(parts), config.torch_device()
        model = recipe.model.sized(device.type, self.periods.ends[0])  # one without a name is not in the configuration
        recipe = replace(recipe, model=model)
        return Trainer(recipe, randomness, device, engine=config.engine, metrics=parts.metrics)

    def _make_evaluator(self, metrics: Sequence[str] | Mapping[str, Metric] | None) -> Evaluator:
        config, randomness = self.config, Randomness(self.config.seed)
        options = (config.k, self.groups, randomness, config.min_group_size, config.n_resamples, metrics)
        return Evaluator(*options, at_levels=True)

    def _notes_on_ties(self) -> tuple[str, ...]:
        n, n_tied = self._tested.stop - self._tested.start, self.log.n_tied(self._tested) or 0
        is_worth_saying = "event" in self.config.tasks and n_tied >= MIN_SHARE_OF_TIES * n
        return (note_on_ties(n_tied, n, "tested events"),) if is_worth_saying else ()

    def __next__(self) -> PeriodResult:
        before = self.results[-1] if self.results else self.begin()
        t = len(self.results) + 1
        if t >= self.periods.last:
            raise StopIteration
        with limit_threads(inference_threads("auto")):
            self.results.append(self._advance(t, before))
        return self.results[-1]

    def begin(self) -> PeriodResult:
        """Pre-train and evaluate, unless that is done."""
        if self.pretrained is None:
            with limit_threads(inference_threads("auto")):
                self.pretrained = self._advance(0, None)
        return self.pretrained

    def begin_from(self, weights: Tensors, update: Update) -> PeriodResult:
        """Start from another run's model (`learned()` after `begin()`); `update` holds the weights of its events."""
        events = self._events(0)
        history = History.of(events.users, events.items, events.times)
        model, optimizer = self._trainer.models.load(history, weights, 0, self._features)
        trained, ids = weights[TRAINED].cpu().numpy(), (self.log.user_ids, self.log.item_ids)
        trained_items = np.zeros(history.n_items, np.bool_)
        trained_items[events.items[trained[events.users]]] = True
        about: dict[str, Any] = {"features": self._features, "event_weights": update.event_weights}
        state = State(model, optimizer, history, self.groups, *ids, trained, trained_items, 0, 0, **about)
        self._state, self._unjudged = self._trainer.begin_target(state, update)
        return self.begin()

    def expected_work(self) -> list[int]:
        """Events that training is expected to visit in each period, all epochs together; the first is pre-training."""
        config, ends = self.config, self.periods.ends
        if isinstance(self._trainer.recipe.strategy, Retrain):
            return [end * config.epochs_on(end) for end in ends[: self.periods.last]]
        updates = np.diff(ends[: self.periods.last]).tolist()
        return [ends[0] * config.epochs_on(ends[0]), *(n * config.update_epochs for n in updates)]

    def learned(self) -> Tensors:
        """Return the current model and optimizer, and which users the model was trained on."""
        state = self._begun()
        return {**tensors_of(state), TRAINED: torch.from_numpy(state.trained)}

    def retrain_at(self, t: int) -> PeriodResult:
        """W_t of a method that retrains, and its evaluation, independent of earlier periods."""
        recipe = self._trainer.recipe
        if not isinstance(recipe.strategy, Retrain) or recipe.calibrates or self.config.explain:
            raise ConfigurationError(
                "only a method that retrains every period can begin at any period, with a model that takes over "
                "nothing from the period before (unlike the blend), and without explain"
            )
        if not 0 <= t < self.periods.last:
            raise ConfigurationError(f"t must be between 0 and {self.periods.last - 1}, got {t}")
        start, events, seconds = self.periods.starts[t], self._events(t), self.log.seconds
        before = History.of(
            self.log.users[:start], self.log.items[:start], None if seconds is None else seconds[:start]
        )
        history = before.after(events.users, events.items, events.times)
        with limit_threads(inference_threads("auto")):
            candidate = self._trainer.fit_history(history, events, self._on_epoch(t), t)
            self._state, self._unjudged = candidate.commit(in_place=False)
            return self._finish(t)

    @property
    def state(self) -> State:
        """W_t with its history and groups: immutable, and valid for as long as you keep it."""
        return self._begun().share()

    def _begun(self) -> State:
        """Return the state; the next update may reuse its memory unless `share` was called."""
        if self._state is None:
            raise ConfigurationError("this run has not begun yet; call begin() or iterate over it")
        return self._state

    def _events(self, t: int) -> NewEvents:
        at, log = self.periods.span(t), self.log
        ids, times = (log.user_ids, log.item_ids), None if log.seconds is None else log.seconds[at]
        about: dict[str, Any] = {"features": self._features, "times": times, "moments": log.times[at]}
        return NewEvents(log.users[at], log.items[at], *ids, self.groups, **about)

    def _on_epoch(self, t: int) -> Callable[[int, int], None]:
        return lambda done, total: None if self.on_progress is None else self.on_progress(t, done, total)

    def _advance(self, t: int, before: PeriodResult | None) -> PeriodResult:
        # If the evaluation is interrupted, the finished update is not repeated.
        if self._unjudged is None:
            if t == 0:
                candidate = self._trainer.fit(self._events(0), self._on_epoch(0))
            else:
                events, known = self._events(t), {} if before is None else before.tasks
                judgement = self._trainer.judge(self._evaluator, self._begun(), events, known)
                self._alternatives = self._tested_alternatives(t, events, judgement)
                candidate = self._trainer.update(self._begun(), events, judgement, self._on_epoch(t))
            is_shared = self._state is not None and self._state.memory_use.is_shared
            try:
                self._state, self._unjudged = candidate.commit(in_place=not is_shared)
            except BaseException:
                candidate.undo()
                raise
        return self._finish(t)

    def _finish(self, t: int) -> PeriodResult:
        """Evaluate the last update."""
        assert self._unjudged is not None
        explained = self.config.explained_tasks
        keeping_lists = replace(self._evaluator, keep_lists=True)
        tasks = {
            task: self._evaluate(task, t, keeping_lists if task in explained else self._evaluator)
            for task in self.config.tasks
        }
        after = {task: Breakdown.of(tasks[task].lists) for task in explained}
        tasks = {task: replace(tested, lists=None) for task, tested in tasks.items()}  # as large as the period
        reasons = {task: self._explained(task, t, after[task]) for task in explained if self._alternatives}
        self._broken_down, self._alternatives = after, {}
        explanation = {task: by_metric for task, by_metric in reasons.items() if by_metric}
        result = PeriodResult(t, self._unjudged, self.groups.advantaged, tasks, explanation)
        self._unjudged = None
        return result

    def _tested_alternatives(self, t: int, events: NewEvents, judgement: Judgement) -> dict[str, dict[str, Breakdown]]:
        """Test W_{t−1} on D_{t+1} without an update, and both models without the fairness lever.

        This runs before the update, which may reuse the memory of W_{t−1}.
        """
        if not self.config.explain:
            return {}
        evaluator = replace(self._evaluator, keep_lists=True, n_resamples=0)

        def tested(state: State, evaluator: Evaluator) -> dict[str, Breakdown]:
            tasks = self.config.explained_tasks
            return {task: Breakdown.of(self._evaluate(task, t, evaluator, state).lists) for task in tasks}

        state = self._begun()
        unchanged = self._trainer.without_learning(state, events)
        tests = {"kept": tested(unchanged, evaluator)}
        if self._trainer.recipe.has_lever or METHODS[self.config.method].lever is not None:
            plain, without = self._trainer.without_lever(), evaluator.plain
            unweighted = plain.unweighted(unchanged)
            is_same = unweighted is unchanged and without is evaluator
            tests["kept_without"] = tests["kept"] if is_same else tested(unweighted, without)
            candidate = plain.update(state, events, judgement)
            tests["after_without"] = tested(candidate.commit(in_place=False)[0], without)
        return {task: {name: by_task[task] for name, by_task in tests.items()} for task in self.config.explained_tasks}

    def _explained(self, task: str, t: int, after: Breakdown) -> dict[str, Explanation]:
        """Explain how the test of W_t on D_{t+1} differs from that of W_{t−1} on D_t; empty without tested users."""
        before = self._broken_down[task]
        if not (len(before.users) and len(after.users)):
            return {}
        tests, rng = ComparedTests(before, after=after, **self._alternatives[task]), Randomness(self.config.seed)
        resampling = rng.numpy(f"explanation of {task}", t)
        return explain(tests, self._names(), self.config.min_group_size, resampling, self.config.n_resamples)

    def _evaluate(self, task: str, t: int, evaluator: Evaluator, state: State | None = None) -> Evaluation:
        """Test W_t, which is in service, or another state in its place, on one task."""
        state = state or self._begun()
        span = self.periods.remaining(t) if task == "remain" else self.periods.span(t + 1)
        evaluator = replace(evaluator, at_levels=evaluator.at_levels and task != "remain")
        seconds = self.log.seconds
        return evaluator.evaluate(
            state.model,
            self.log.users[span],
            self.log.items[span],
            history=state.history,
            contexts=state.contexts,
            t=t,
            task=check_period_task("next" if task == "remain" else task),
            times=None if seconds is None else seconds[span],
            moments=self.log.times[span],
        )

    def _summary(self) -> Summary:
        n_done, n_all = len(self.results), self.periods.last - 1
        title = (
            f"Run of {self.config.method} with {self.config.model}, seed {self.config.seed}: "
            f"{n_done} of {n_all} periods, {len(self.log):,} events; {self.groups.attribute or 'no groups'}"
        )
        tests = [(result, task, tested) for result in self.results for task, tested in result.tasks.items()]
        rows = [
            [str(result.t), result.update.step, task, name, *tested.cells(tested[name])]
            for result, task, tested in tests
            for name in list(tested.metrics)[:1]
        ]
        headings = ["t", "update", "task", "metric", *(tests[0][2].headings if tests else ())]
        if not rows or len(self._names()) < FEW_GROUPS:
            return Summary(title, headings, rows, self.notes)
        task, metric = tests[0][1], rows[0][3]
        score = self.summary()[task][metric]
        by_group = [[name, *group_cells(score, name)] for name in ordered(self._names())]
        groups = Table([f"{self.groups.attribute}, {task}, mean over t", *group_headings(score, metric)], by_group)
        return Summary(title, headings, rows, self.notes, [groups], regret_sentences(score))

    def to_arrow(self) -> pa.Table:
        """As an Arrow table, a row for each period so far, task, metric and group, "all" being everyone.

        Columns: t, step, task, and those of `Evaluation.to_arrow`.
        """
        tables = []
        for result in self.results:
            for task, tested in result.tasks.items():
                table = tested.to_arrow()
                about = {"t": result.t, "step": str(result.update.step), "task": task}
                columns = {name: [value] * len(table) for name, value in about.items()}
                tables.append(pa.table({**columns, **dict(zip(table.column_names, table.columns, strict=True))}))
        if not tables:
            raise ConfigurationError("this run has no results yet; iterate over it first")
        return pa.concat_tables(tables)

    def plot(self, metric: str | None = None, task: str | None = None) -> Any:
        """Draw one metric (NAME@K) of one task over the periods, by group; by default the first of each.

        Returns an altair.Chart; needs `fairstream[report]`.
        """
        rows = self.to_arrow().to_pylist()
        metric, task = metric or rows[0]["metric"], task or rows[0]["task"]
        rows = [row for row in rows if (row["metric"], row["task"]) == (metric, task) and row["value"] is not None]
        if not rows:
            raise ConfigurationError(
                f"this run has no {metric} on the task {task}; it has {', '.join(self.config.tasks)}"
            )
        return line_chart(rows, f"{self.config.method}, {task}", metric)

    def _names(self) -> tuple[str, ...]:
        """Return the groups with users in this log, the advantaged one first."""
        return self.groups.names[: self.groups.n_groups_among(self.log.n_users)]

    def about(self) -> dict[str, Any]:
        """Return the configuration, the data, the versions, and the notes on fairness."""
        begins, length = None, self.config.period
        if length is not None and is_calendar(length):
            begins = [str(moment)[:16] for moment in to_moments(self.log.times)[list(self.periods.starts)]]
        return {
            "config": self.config.model_dump(mode="json"),
            "data": {
                "name": self.dataset,
                "sha256": self.log.fingerprint(),
                "n_events": len(self.log),
                "n_users": self.log.n_users,
                "n_items": self.log.n_items,
                "group": None if self.groups.is_empty else self.groups.attribute,
                "advantaged": self.groups.names[0] if self.groups.has_advantaged else None,
                "advantaged_by": self.groups.choice if self.groups.has_advantaged else None,
                "groups": list(self._names()),
                "columns": self.log.columns.to_json(),
                "period_ends": list(self.periods.ends),
                "period_begins": begins,
                "n_tied": self.log.n_tied(self._tested),
            },
            "versions": {**versions(), "device": str(self._trainer.device)},
            "notes": list(self._notes_on_fairness),
        }

    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Task → metric → means over the periods so far, as the paper averages, with their uncertainty."""
        summary: dict[str, dict[str, dict[str, Any]]] = Run.record(self).about["summary"]
        return summary

    def document(self) -> dict[str, Any]:
        """Return the run as JSON: its whole configuration, data, versions, results and times."""
        return self.record().document

    def record(self) -> Record:
        """Return the run as it is stored."""
        results = [*([] if self.pretrained is None else [self.pretrained]), *self.results]
        if len(results) not in self._records:  # the intervals take a moment
            documents, seconds = [each.to_dict() for each in results], [each.update.seconds for each in results]
            self._records = {len(results): Record.of_periods(self.about(), documents, _tests_of(results), seconds)}
        return self._records[len(results)]

    def part(self, result: PeriodResult) -> Record:
        """Return one period of the run as a store keeps it until the run is complete."""
        about = {**self.about(), "periods": [result.to_dict()], "timing": {"update_s": [result.update.seconds]}}
        return Record(about, lambda: _tests_of([result]))


def _tests_of(results: Iterable[PeriodResult]) -> Tests:
    return {(each.t, task): tested.tested for each in results for task, tested in each.tasks.items()}


def run(
    log: EventLog,
    method: str | None = None,
    *,
    model: str | ModelFactory | None = None,
    loss: str | Loss | None = None,
    fairness: str | FairnessLoss | None = None,
    strategy: str | Strategy | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] = (),
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Run:
    """Run a method on a log, period by period.

    Parameters
    ----------
    log
        The events.
    method
        A registered method; by default "FADE" under the paper's protocol or with an option of a fairness loss, else
        "Finetune" with the target least-regret.
    model, loss, fairness, strategy
        As for `FairRecommender`.
    metrics
        What is measured: names, or custom functions by name.
    on_progress
        Called after each epoch with (period t, epochs done, epochs in all).
    **options
        Fields of `RunConfig`.

    Returns
    -------
    Run
        To iterate over.

    Raises
    ------
    ConfigurationError
        If an option cannot be honoured.

    Examples
    --------
    >>> from fairstream import read_events, synthetic_stream
    >>> stream = synthetic_stream(n_users=150, n_items=80, n_events=4000, seed=0)
    >>> log = read_events(stream.events, users=stream.users)
    >>> for result in run(log, "finetune", model="mf", pretrain_epochs=2, update_epochs=1, n_periods=3, device="cpu"):
    ...     print(result.t, result.update.step, sorted(result.tasks))
    1 fine-tune ['event', 'next', 'remain']
    2 fine-tune ['event', 'next', 'remain']

    """
    if not isinstance(log, EventLog):
        raise DataError(f"run takes an EventLog, got {type(log).__name__}; make one with read_events")
    given, parts = Parts.split(
        model=model, loss=loss, fairness=fairness, strategy=strategy, metrics=metrics, method=method, **options
    )
    config = RunConfig(**given)
    return make_run(log, config, parts=parts, on_progress=on_progress)


def make_run(log: EventLog, config: RunConfig, **options: Any) -> Run:
    """Create a run of the class that its method or protocol needs; `options` are those of `Run`."""
    kind = METHODS[config.method].run or protocol_of(config.protocol).run or Run
    run: Run = kind(log, config, **options)
    return run


POPULARITY = ("popularity", "recent-popularity")  # models that any other must beat
_OF_THE_METHOD = {*MethodConfig.model_fields, "engine", "explain"} - {"seed", "batch_size"}


def popularity_runs(log: EventLog, config: RunConfig) -> dict[str, Run]:
    """Return runs of the popularity models on the same periods with the same evaluation: the baselines of a run."""
    shared = config.model_dump(exclude=_OF_THE_METHOD | config.own_options.keys())
    return {
        name: make_run(log, RunConfig(**{**shared, "model": name, "method": "Finetune"}))
        for name in POPULARITY
        if name != config.model
    }
