"""The prequential run: update on a period, judge on what follows, go on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch

from fairstream.baselines import GroupProbe, group_recovery, require_two_groups, user_embeddings
from fairstream.data import EventLog, Groups, History
from fairstream.data.datasets.published import recognise
from fairstream.display import SIZE, Summary, Tabular, charts, colour
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Breakdown, ComparedTests, Evaluation, Evaluator, Explanation, Metric, explain
from fairstream.evaluation.blocks import connected
from fairstream.evaluation.by_group import GroupScores
from fairstream.experiments.config import RunConfig, evaluation_protocol
from fairstream.experiments.results import PeriodResult, mean_slices, notes_on_advantaged, versions
from fairstream.methods import METHODS, Parts, note_without_groups
from fairstream.models import ModelFactory, may_inherit
from fairstream.objectives import FairnessLoss, Loss
from fairstream.periods import Periods, cut_by_length, cut_periods, is_calendar, to_moments
from fairstream.randomness import Randomness
from fairstream.recommender import Learning, NewEvents, State, Update
from fairstream.recommender.learning import note_on_undecided
from fairstream.recommender.model_builder import tensors_of
from fairstream.strategies import Retrain, Strategy, UserQuality
from fairstream.threads import inference_threads, limit_threads
from fairstream.training import Tensors
from fairstream.training.distributed import ActorGroup

OnProgress = Callable[[int, int, int], None]
"""Called after each epoch with (period t, epochs done, epochs in all)."""

TRAINED = "users/trained"
"""The name of the tensor that tells whom a pre-trained model has been trained on."""
_PAPER_RATIO, _PAPER_PERIODS = 0.6, 7
_NO_PARTS = Parts()


class Run(Tabular, Iterator[PeriodResult]):
    """One method over one log. Iterate over it for the periods t = 1 … T − 1.

    `pretrained` is the result at t = 0, there from the first step on; `results` what has been
    yielded so far; `document()` everything, as it is stored.
    """

    def __init__(
        self,
        log: EventLog,
        config: RunConfig,
        *,
        parts: Parts | None = None,
        on_progress: OnProgress | None = None,
        cluster: str | None = None,
        n_workers: int | None = None,
    ) -> None:
        self.log, self.dataset = log, known.name if (known := recognise(log)) else None
        self.config, self.periods = resolved(log, config, parts or Parts())
        n_first = log.n_items_after(self.periods.ends[0])
        if config.k > n_first:
            raise ConfigurationError(f"k must be at most the {n_first} items of the pre-training data, got {config.k}")
        # Where the advantaged group is not declared, the pre-training data say which is the larger.
        self.groups = groups_of(log).as_of(log.n_users_after(self.periods.ends[0]))
        randomness, protocol = Randomness(config.seed), evaluation_protocol(config.protocol)
        self._oracle = None if protocol.point_in_time else History.of(log.users, log.items)
        self._learning = Learning(
            self.config,
            parts or Parts(),
            randomness,
            config.torch_device(),
            engine=config.engine,
            oracle=self._oracle,
            workers=None if cluster is None else ActorGroup(cluster, n_workers),
        )
        self._cluster, self._connection = cluster, ExitStack()
        self._connect = partial(connected, cluster, self._learning.device, n_workers)
        weakref.finalize(self, self._connection.close)  # of a run that nobody finishes
        readable = self._learning.readable(log)
        self._features = None if readable.features is None else readable.features.of(log.item_ids)
        self.notes: tuple[str, ...] = (*readable.notes, *self.periods.notes)
        if self.groups.is_empty:
            self.notes += (note_without_groups(self.config),)
        self._learning.fixed_weights(self.groups)  # what cannot be honoured is said now, not at the first fit
        self._notes_on_fairness = self._learning.notes_on_fairness(self.groups)
        self.notes += self._notes_on_fairness
        """What is worth knowing about the log, its periods, and what is done for fairness: one sentence each."""
        self._state: State | None = None
        make_reranker = METHODS[config.method].reranker
        reranker = None if make_reranker is None else make_reranker(config)
        if reranker is not None:
            require_two_groups(len(self._names()))
        self._evaluator = Evaluator(
            protocol,
            config.k,
            self.groups,
            randomness,
            config.min_group_size,
            config.n_resamples,
            reranker,
            metrics=(parts.metrics if parts is not None else None) or config.metrics or None,
        )
        self.on_progress = on_progress
        self._unjudged: Update | None = None
        self._alternatives: dict[str, dict[str, Breakdown]] = {}
        """Task → what else could have been in force → how that does, of the update that is to be judged."""
        self._broken_down: dict[str, Breakdown] = {}
        """Task → the last test of what was in force."""
        self.pretrained: PeriodResult | None = None
        self.results: list[PeriodResult] = []
        self._scores: dict[int, dict[str, dict[str, GroupScores]]] = {}
        """Number of periods → the scores of `summary`: those of the last number that was asked for."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PeriodResult:
        before = self.results[-1] if self.results else self.begin()
        t = len(self.results) + 1
        if t >= self.periods.last:
            self._disconnect()
            raise StopIteration
        with self._connected():
            self.results.append(self._advance(t, before))
        return self.results[-1]

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """With the cluster, where one was asked for: until the run is over, or something fails."""
        try:
            if self._cluster is not None and self._evaluator.cluster is None:
                there = self._connection.enter_context(self._connect())
                self._evaluator = replace(self._evaluator, cluster=there)
            with limit_threads(inference_threads("auto")):
                yield
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        self._evaluator = replace(self._evaluator, cluster=None)
        self._connection.close()

    def begin(self) -> PeriodResult:
        """Pre-train and judge, unless that has been done."""
        if self.pretrained is None:
            with self._connected():
                self.pretrained = self._advance(0, None)
        return self.pretrained

    def begin_from(self, weights: Tensors, update: Update) -> PeriodResult:
        """Take over what another run's pre-training left (`learned()` after `begin()`) instead of repeating it."""
        events = self._events(0)
        history = History.of(events.users, events.items)
        model, optimizer = self._learning.models.restored(history, weights, 0, self._features)
        trained, ids = weights[TRAINED].cpu().numpy(), (self.log.user_ids, self.log.item_ids)
        trained_items = np.zeros(history.n_items, np.bool_)
        trained_items[events.items[trained[events.users]]] = True
        weights_of_events = self._learning.fixed_weights(self.groups)
        self._state = State(
            model,
            optimizer,
            history,
            self.groups,
            *ids,
            trained,
            trained_items,
            0,
            0,
            features=self._features,
            event_weights=weights_of_events,
        )
        self._unjudged = update
        return self.begin()

    def expected_work(self) -> list[int]:
        """Events that training is expected to visit in each period, all epochs together; the first is pre-training."""
        config, ends = self.config, self.periods.ends
        if isinstance(self._learning.strategy, Retrain):
            return [end * config.pretrain_epochs for end in ends[: self.periods.last]]
        updates = np.diff(ends[: self.periods.last]).tolist()
        return [ends[0] * config.pretrain_epochs, *(n * config.update_epochs for n in updates)]

    def learned(self) -> Tensors:
        """The model and the optimizer as they are now, and whom the model has been trained on."""
        state = self._begun()
        return {**tensors_of(state), TRAINED: torch.from_numpy(state.trained)}

    def retrain_at(self, t: int) -> PeriodResult:
        """W_t of a method that retrains, and its judgement, without the periods before it: it owes them nothing."""
        if not isinstance(self._learning.strategy, Retrain) or self.groups.choice == "auto":
            raise ConfigurationError(
                "only a method that retrains every period, with the advantaged group declared, can begin at any period"
            )
        if may_inherit(self._learning.parts.model or self.config.model):
            raise ConfigurationError(
                f"the model {self.config.model} takes over something from the period before it, as the blend does its "
                f"weights, and cannot begin at any period"
            )
        if self.config.explain:
            raise ConfigurationError("a run that explains compares each period with the one before; leave explain out")
        if not 0 <= t < self.periods.last:
            raise ConfigurationError(f"t must be between 0 and {self.periods.last - 1}, got {t}")
        start, events = self.periods.starts[t], self._events(t)
        history = History.of(self.log.users[:start], self.log.items[:start]).after(events.users, events.items)
        with self._connected():
            candidate = self._learning.fit_history(history, events, self._on_epoch(t), t)
            self._state, self._unjudged = candidate.commit(in_place=False)
            return self._finish(t)

    @property
    def state(self) -> State:
        """W_t and everything known with it: immutable, and valid for as long as you keep it."""
        return self._begun().share()

    def _begun(self) -> State:
        """The state, whose memory the next update may reuse unless somebody else holds it, too."""
        if self._state is None:
            raise ConfigurationError("this run has not begun yet; call begin() or iterate over it")
        return self._state

    def _events(self, t: int) -> NewEvents:
        at, log = self.periods.span(t), self.log
        ids = log.user_ids, log.item_ids
        return NewEvents(log.users[at], log.items[at], *ids, self.groups, features=self._features)

    def _on_epoch(self, t: int) -> Callable[[int, int], None]:
        def on_epoch(done: int, total: int) -> None:
            if self.on_progress is not None:
                self.on_progress(t, done, total)

        return on_epoch

    def _advance(self, t: int, before: PeriodResult | None) -> PeriodResult:
        # An update that is done stays done, should the evaluation after it be interrupted.
        if self._unjudged is None:
            if t == 0:
                candidate = self._learning.fit(self._events(0), self._on_epoch(0))
            else:
                quality, tested, undecided = self._quality(t, before)
                events = self._events(t)
                self._alternatives = self._tested_alternatives(t, events, quality, tested)
                known = before.tasks.get(self.config.disparity_task) if before is not None else None
                measured = self._learning.measure(self._evaluator, self._begun(), events, known)
                candidate = self._learning.update(
                    self._begun(), events, quality, self._on_epoch(t), measured=measured, tested=tested
                )
                candidate.notes = (*undecided, *candidate.notes)
            is_shared = self._state is not None and self._state.is_shared
            try:
                self._state, self._unjudged = candidate.commit(in_place=not is_shared)
            except BaseException:
                candidate.undo()
                raise
        return self._finish(t)

    def _finish(self, t: int) -> PeriodResult:
        assert self._unjudged is not None
        result = self._evaluated(t, self._unjudged)
        self._unjudged = None
        return result

    def _quality(self, t: int, before: PeriodResult | None) -> tuple[float | None, UserQuality | None, tuple[str, ...]]:
        """How W_{t−1} did on D_t, as a mean and user by user: known by the time that D_t is there to be learned from.

        For those it knew: what newcomers get is the fallback's merit. None where nobody asks. Also a note where it
        could not be decided who is ahead; as in `FairRecommender.update`, a single user of a group is enough for that.
        """
        if before is None or not (self._learning.strategy.needs_quality or self.groups.choice == "auto"):
            return None, None, ()
        # Whatever metrics were asked for, and whatever they are called.
        evaluator = replace(self._evaluator, metrics=("ndcg",), n_resamples=0, min_group_size=1)
        result = before.tasks.get("next") or self._evaluate("next", t - 1, evaluator)
        tested = replace(result.tested, values={}, totals={})
        (main,) = evaluator.scores([tested.where(~tested.is_cold)], len(self._names()))[0].values()
        undecided: tuple[str, ...] = ()
        if self.groups.choice == "auto":
            self.groups = self.groups.with_ahead(main.ahead, judged=main.gaps)
            if main.not_compared or not main.gaps:
                undecided = (note_on_undecided(main.not_compared),)
        return main.mean, self._learning.test(evaluator, self._begun(), self._events(t), result.tested), undecided

    def _evaluated(self, t: int, update: Update) -> PeriodResult:
        explained = self.config.explained_tasks
        breaking_down = replace(self._evaluator, breaks_down=True)
        tasks = {
            task: self._evaluate(task, t, breaking_down if task in explained else self._evaluator)
            for task in self.config.tasks
        }
        after = {task: breakdown for task in explained if (breakdown := tasks[task].breakdown) is not None}
        tasks = {task: replace(tested, breakdown=None) for task, tested in tasks.items()}  # as large as the period
        explanation = {task: self._explained(task, t, after[task]) for task in explained if self._alternatives}
        self._broken_down, self._alternatives = after, {}
        return PeriodResult(
            t,
            update,
            self.groups.advantaged,
            tasks,
            {task: found for task, found in explanation.items() if found},
        )

    def _tested_alternatives(
        self, t: int, events: NewEvents, quality: float | None, of_users: UserQuality | None
    ) -> dict[str, dict[str, Breakdown]]:
        """How W_{t−1} would do on D_{t+1} without an update, and both without the fairness lever.

        All of it before the update itself, which may reuse the memory of W_{t−1}.
        """
        if not self.config.explain:
            return {}
        evaluator = replace(self._evaluator, breaks_down=True, n_resamples=0)

        def tested(state: State, evaluator: Evaluator) -> dict[str, Breakdown]:
            tests = {task: self._evaluate(task, t, evaluator, state) for task in self.config.explained_tasks}
            return {task: test.breakdown for task, test in tests.items() if test.breakdown is not None}

        state = self._begun()
        kept = self._learning.kept(state, events)
        found = {"kept": tested(kept, evaluator)}
        if self.config.has_lever:
            plain, without = self._learning.without_lever(), replace(evaluator, rerank=None)
            unweighted = plain.unweighted(kept)
            is_same = unweighted is kept and evaluator.rerank is None
            found["kept_without"] = found["kept"] if is_same else tested(unweighted, without)
            candidate = plain.update(state, events, quality, tested=of_users)
            found["after_without"] = tested(candidate.commit(in_place=False)[0], without)
        return {task: {name: tests[task] for name, tests in found.items()} for task in self.config.explained_tasks}

    def _explained(self, task: str, t: int, after: Breakdown) -> dict[str, Explanation]:
        """Why the evaluation of W_t on D_{t+1} differs from that of W_{t−1} on D_t; nothing where nobody was tested."""
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
        return evaluator.evaluate(
            state.model,
            self.log.users[span],
            self.log.items[span],
            history=state.history,
            contexts=state.contexts,
            t=t,
            n_rankable=None if self._oracle is None else self._oracle.n_items,
            by_event=task == "event",
        )

    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Task → metric → means over the periods so far, as the paper averages, with their uncertainty."""
        n_periods = len(self.results)
        if n_periods not in self._scores:
            self._scores = {n_periods: {task: self._mean_scores(task) for task in self.config.tasks if n_periods}}
        return {
            task: {metric: score.to_dict() for metric, score in scores.items()}
            for task, scores in self._scores[n_periods].items()
        }

    def _mean_scores(self, task: str) -> dict[str, GroupScores]:
        tested = [result.tasks[task].tested for result in self.results]
        rng = Randomness(self.config.seed).numpy("resampling of the mean", len(tested))
        return self._evaluator.scores(tested, len(self._names()), rng)[0]

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
        return Summary(title, headings, rows, self.notes)

    def to_arrow(self) -> pa.Table:
        """As an Arrow table, a row for each period so far, task, metric and group, "all" being everyone.

        Columns: t, step, task, and those of `Evaluation.to_arrow`.
        """
        tables = [
            pa.table(
                {
                    "t": pa.array([result.t] * len(table), pa.int64()),
                    "step": pa.array([result.update.step] * len(table), pa.string()),
                    "task": pa.array([task] * len(table), pa.string()),
                    **{name: table[name] for name in table.column_names},
                }
            )
            for result in self.results
            for task, tested in result.tasks.items()
            for table in (tested.to_arrow(),)
        ]
        if not tables:
            raise ConfigurationError("this run has no results yet; iterate over it first")
        return pa.concat_tables(tables)

    def plot(self, metric: str | None = None, task: str | None = None) -> Any:
        """Draw one metric over the periods, by group; needs altair (`fairstream[report]`).

        Parameters
        ----------
        metric, task
            NAME@K and the task; by default the first of each.

        Returns
        -------
        altair.Chart

        """
        rows = self.to_arrow().to_pylist()
        metric, task = metric or rows[0]["metric"], task or rows[0]["task"]
        rows = [row for row in rows if (row["metric"], row["task"]) == (metric, task) and row["value"] is not None]
        if not rows:
            raise ConfigurationError(
                f"this run has no {metric} on the task {task}; it has {', '.join(self.config.tasks)}"
            )
        alt, groups = charts(), list(dict.fromkeys(row["group"] for row in rows))
        return (
            alt.Chart(alt.Data(values=rows), title=f"{self.config.method}, {task}", **SIZE)
            .mark_line(point=True)
            .encode(
                alt.X("t:O", title="period", axis=alt.Axis(labelAngle=0)),
                alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False)),
                colour("group", groups),
            )
        )

    def group_recovery(self) -> GroupProbe | None:
        """How well a fresh classifier tells the group from the embeddings that the model in service scores with.

        Of the users whom it has been trained on and whose group is known. None where fewer than
        two groups have enough of them, before the first period, and in a model without user tables.
        """
        if self.pretrained is None:
            return None
        state = self._begun()
        rows = np.flatnonzero(state.trained[: state.model.n_users])
        rng = Randomness(self.config.seed).numpy("group recovery", state.t)
        return group_recovery(user_embeddings(state.model, rows), self.groups.codes[rows], rng=rng)

    def _names(self) -> tuple[str, ...]:
        """The groups that have users in this log, the advantaged one first."""
        return self.groups.names[: self.groups.n_groups_among(self.log.n_users)]

    def _begins(self) -> list[str] | None:
        """When each period begins, where they follow the calendar."""
        if self.config.period is None or not is_calendar(self.config.period):
            return None
        return [str(moment)[:16] for moment in to_moments(self.log.times)[list(self.periods.starts)]]

    def _rerank_seconds(self) -> dict[str, list[float]]:
        """What choosing the lists of Task-R took in each period, which the paper counts as running time."""
        task = "remain" if "remain" in self.config.tasks else self.config.tasks[0]
        reports = [result.tasks[task].reranking for result in self.results]
        return {} if self._evaluator.rerank is None else {"rerank_s": [report.seconds for report in reports if report]}

    def about(self) -> dict[str, Any]:
        """The whole configuration, the data, what computed it, and what is not done for fairness."""
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
                "columns": {**asdict(self.log.columns), "text_ids": list(self.log.columns.text_ids)},
                "period_ends": list(self.periods.ends),
                "period_begins": self._begins(),
            },
            "versions": {**versions(), "device": str(self._learning.device)},
            "notes": list(self._notes_on_fairness),
        }

    def document(self) -> dict[str, Any]:
        """The run as JSON: its whole configuration, data, versions, results and times."""
        before, about, summary = [] if self.pretrained is None else [self.pretrained], self.about(), self.summary()
        return {
            **about,
            "notes": [*about["notes"], *notes_on_advantaged(about, summary)],
            "pretrained": before[0].to_dict() if before else None,
            "periods": [result.to_dict() for result in self.results],
            "summary": summary,
            "slices": {
                task: mean_slices([result.tasks[task].slices for result in self.results]) for task in self.config.tasks
            },
            "timing": {
                "pretrain_s": before[0].update.seconds if before else None,
                "update_s": [result.update.seconds for result in self.results],
                **self._rerank_seconds(),
            },
            **self._recovery(),
        }

    def _recovery(self) -> dict[str, Any]:
        """Of Adver, which is to prevent it, and of Finetune, which Adver is compared with."""
        if self.config.method not in ("Adver", "Finetune"):
            return {}
        found = self.group_recovery()
        return {"group_recovery": None if found is None else found.to_dict()}


def groups_of(log: EventLog) -> Groups:
    """The log's groups; where nothing is known of anybody, none."""
    return Groups.none(log.n_users) if log.groups is None else log.require_groups()


def resolved(log: EventLog, config: RunConfig, parts: Parts = _NO_PARTS) -> tuple[RunConfig, Periods]:
    """The configuration with what the log decides filled in, and the log's periods.

    Without groups every lever that needs them is off.
    """
    if log.groups is None:
        _need_no_groups(config)
        config = parts.without_groups(config)
    known = recognise(log)
    ratio = config.pretrain_ratio or (known.pretrain_ratio if known else _PAPER_RATIO)
    if config.pretrain_events is not None:
        ratio = config.pretrain_events / len(log)
    periods = _cut(log, config, ratio)
    share = ratio if config.pretrain_events is None else None
    options = {"pretrain_ratio": share, "n_periods": periods.last, "tasks": config.resolved_tasks}
    return config.with_options(**options), periods


def _need_no_groups(config: RunConfig) -> None:
    """Raise ConfigurationError where something was asked for that is about groups alone."""
    method = METHODS[config.method]
    asked = "max_disparity" if config.max_disparity is not None else f"method {config.method}"
    if config.max_disparity is not None or method.reranker is not None or method.wrap_model is not None:
        raise ConfigurationError(
            f"{asked} is about groups of users, but the log has none; read it with a users table and group=COLUMN (on "
            f"the command line: --group COLUMN), or leave it out"
        )


def _cut(log: EventLog, config: RunConfig, ratio: float) -> Periods:
    if config.period is not None:
        return cut_by_length(log.times, pretrain_ratio=ratio, length=config.period, n_periods=config.n_periods)
    return cut_periods(
        len(log),
        pretrain_ratio=ratio,
        n_periods=config.n_periods or min(_PAPER_PERIODS, config.n_blocks),
        n_blocks=config.n_blocks,
        unit=1 if config.protocol == "strict" else config.batch_size,
    )


def run(
    log: EventLog,
    method: str = "FADE",
    *,
    model: str | ModelFactory | None = None,
    loss: str | Loss | None = None,
    fairness: str | FairnessLoss | None = None,
    strategy: str | Strategy | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] = (),
    on_progress: OnProgress | None = None,
    cluster: str | None = None,
    n_workers: int | None = None,
    **options: Any,
) -> Run:
    """Carry a method through a log, a period at a time.

    Parameters
    ----------
    log
        The events.
    method, model, loss, fairness, strategy
        As for `FairRecommender`.
    metrics
        What is measured: names, or functions of your own by name.
    on_progress
        Called after each epoch with (period t, epochs done, epochs in all).
    cluster
        "local" or HOST:PORT: divide each training and each evaluation among the CPUs of a Ray cluster
        (`pip install 'fairstream[cluster]'`), which the run is connected to from its first period to its last;
        None: in this process.
    n_workers
        The most workers on a cluster; by default one for each CPU.
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
    return Run(log, config, parts=parts, on_progress=on_progress, cluster=cluster, n_workers=n_workers)


POPULARITY = ("popularity", "recent-popularity")
"""Models that any other has to beat."""
_OF_THE_EVALUATION = (
    "seed",
    "device",
    "protocol",
    "tasks",
    "metrics",
    "k",
    "min_group_size",
    "n_resamples",
    "pretrain_ratio",
    "pretrain_events",
    "period",
    "n_periods",
    "n_blocks",
    "batch_size",
)


def popularity_runs(log: EventLog, config: RunConfig, cluster: str | None = None) -> dict[str, Run]:
    """Runs of the popularity models over the same periods, evaluated alike: what a run has to beat."""
    shared = config.model_dump(include=set(_OF_THE_EVALUATION))
    return {
        name: Run(log, RunConfig(model=name, method="Finetune", **shared), cluster=cluster)
        for name in POPULARITY
        if name != config.model
    }
