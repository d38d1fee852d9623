"""From the model in service to a candidate, and what both do on events that neither has learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fairstream.data import UNKNOWN, Groups, read_events
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Evaluation
from fairstream.evaluation.resampling import Array
from fairstream.recommender import FairRecommender, load
from fairstream.service.control import control_step
from fairstream.service.event_store import EventStore
from fairstream.service.gate import rejects_level
from fairstream.service.periods import events_of, held_out
from fairstream.service.privacy import Comparison, GroupMeans, Release, established, ndcg_of
from fairstream.service.records import Model, Period
from fairstream.service.registry import model, rejected_from
from fairstream.service.settings import FILE
from fairstream.service.workspace import Workspace
from fairstream.strategies import RestartOnNew, Strategy

_FOR_EXPERIMENTS = {"rerank_tolerance"}
"""Options of methods that only experiments can run."""
_SHAPE = ("model", "embedding_dim", "feature_buckets", "optimizer")
"""Options that a model is made with and keeps."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate and how it did."""

    recommender: FairRecommender
    n_learned: int
    after: Evaluation
    """The candidate on the held-out events."""
    n_new_items: int
    """Items among the events of the period that the model in service did not know."""
    before: Evaluation | None = None
    """The model in service on the same events, knowing the same; None for the first model."""
    comparison: Comparison | None = None
    """The candidate beside the model in service; None for the first model."""
    reference: Array | None = None
    """The users' values under recent popularity, where the events have changed."""
    control_step: float = 1.0
    """How much of the controller's step was taken, where there is one."""
    rejected: tuple[int, ...] = ()
    """Rejected periods that it has learned, too."""

    @property
    def names(self) -> list[str]:
        """The groups."""
        return names_of(self.after)

    @property
    def what_is_not_finite(self) -> str | None:
        """A sentence, if some number of the candidate is not one."""
        broken = [name for name, p in self.recommender.model.named_parameters() if not torch.isfinite(p).all()]
        if broken:
            return f"learning left numbers in {broken[0]} that are not finite"
        values = [score.mean for score in self.after.metrics.values()]
        if any(value is None or not math.isfinite(value) for value in values):
            return "the candidate cannot be judged: its metrics are not finite"
        return None


@dataclass(frozen=True, eq=False)
class _Lesson:
    """A candidate before anything is said of groups: only of one that is taken, so that it costs the budget once."""

    recommender: FairRecommender
    n_learned: int
    after: Evaluation
    before: Evaluation
    reference: Evaluation | None
    n_new_items: int
    n_established: int
    control_step: float
    rejected: tuple[int, ...]

    def trial(self, release: Release) -> Trial:
        names = names_of(self.after)
        return Trial(
            self.recommender,
            self.n_learned,
            self.after,
            self.n_new_items,
            self.before,
            Comparison.of(release, self.before.tested, self.after.tested, names, self.n_established),
            None if self.reference is None else ndcg_of(self.reference.tested),
            self.control_step,
            self.rejected,
        )


class Candidates:
    """Makes and judges candidates that descend from one model, or the first one."""

    def __init__(
        self,
        workspace: Workspace,
        store: EventStore,
        parent: str | None,
        periods: Sequence[Period],
        release: Release,
    ) -> None:
        self._workspace, self._config, self._parent = workspace, workspace.config, parent
        self._release = release
        self._learned_late: pa.Table = _nothing()
        self._skipped: dict[int, pa.Table] = {}
        """What a rejected candidate, or one that was rolled back, had learned: known, but not learned from."""
        if parent is not None:
            row = model(workspace.engine, parent)
            _check_unchanged(workspace, row)
            t, self._folder = row.t, workspace.models.path(row.folder)
            self._store = store
            self._learned_late = held_out(store, periods[t])
            self._skipped = {period.t: events_of(store, period) for period in periods[t + 1 :]}
        with workspace.people() as people:
            self._people = people.values().rename_columns(["user_id", self._config.group])
        self._groups = Groups.none(0)
        values = pc.unique(self._people[self._config.group]).to_pylist()
        if len(values) > 1:
            names, advantaged = self._config.groups or values, self._config.advantaged
            self._groups = Groups.from_values(self._config.group, [], possible=names, advantaged=advantaged)

    @property
    def has_groups(self) -> bool:
        """Whether there are groups to be fair to."""
        return not self._groups.is_empty

    def judge_in_service(self, events: pa.Table) -> tuple[Evaluation, GroupMeans]:
        """How the model in service does on events before anything of them is learned."""
        recommender = self._loaded()  # as it has answered, retained or not
        n_established = len(recommender.state.user_ids)
        self._observe(recommender, pa.concat_tables([_nothing(), *self._skipped.values(), self._learned_late]))
        evaluation = self._judge(recommender, events)
        results, names = evaluation.tested, names_of(evaluation)
        codes = established(results, n_established)
        sizes = self._release.sizes("period sizes", codes, names)
        return evaluation, self._release.means("period", ndcg_of(results), codes, names, sizes).readable()

    def learn(self, head: pa.Table, tail: pa.Table, *, has_drifted: bool) -> Trial:
        """Learn `head`, with what was left over last time; judge by `tail`.

        If the events have changed there are other candidates beside it: one that starts afresh from the new events, and
        of the rejected periods, if there are any, one that learns them, too. Where these are what the world is like
        now it does better, and the best for everyone is taken.
        """
        if self._parent is None:
            candidate = self._fresh(head)
            n_items = pc.count_distinct(pa.concat_tables([head, tail])["item_id"]).as_py()
            return Trial(candidate, len(head), self._judge_held_out(candidate, tail), n_items)
        lessons = [self._lesson(head, tail, (), has_drifted=has_drifted)]
        if has_drifted:
            rejected = self._learnable()
            lessons.append(self._lesson(head, tail, rejected, has_drifted=True, strategy=RestartOnNew()))
            if rejected:
                lessons.append(self._lesson(head, tail, rejected, has_drifted=True))
        best = max(lessons, key=lambda lesson: float(ndcg_of(lesson.after.tested).mean()))
        return best.trial(self._release)

    def _learnable(self) -> tuple[int, ...]:
        """Rejected periods whose events were not the reason themselves."""
        assert self._parent is not None
        return tuple(
            sorted(
                row.t
                for row in rejected_from(self._workspace.engine, self._parent)
                if row.t in self._skipped and rejects_level(row.decision)
            )
        )

    def _lesson(
        self,
        head: pa.Table,
        tail: pa.Table,
        rejected: tuple[int, ...],
        *,
        has_drifted: bool,
        strategy: Strategy | None = None,
    ) -> _Lesson:
        again = [self._skipped[t] for t in rejected]
        events = pa.concat_tables([self._learned_late, *again, head])
        kept, candidate = (self._in_service(but=rejected) for _ in range(2))
        n_established = len(kept.state.user_ids)
        n_new_items = self._n_unknown(kept, pa.concat_tables([head, tail]))
        self._observe(kept, events)  # at once, as the candidate does: then both give users the same rows
        before = self._judge_held_out(kept, tail)  # before the training: with too few users it would be in vain
        assert self._parent is not None
        step = control_step(self._workspace.engine, self._parent)
        candidate.update(
            _columns(events),
            users=self._people,
            control_step=step,
            strategy=strategy,
            measure_groups=lambda users, values, codes, names, popularity: self._release.measured(
                values, np.where(users < n_established, codes, UNKNOWN), names, popularity
            ),
        )
        return _Lesson(
            candidate,
            len(events),
            self._judge(candidate, tail),
            before,
            self._judge(kept, tail, baseline=True) if has_drifted else None,
            n_new_items,
            n_established,
            step,
            rejected,
        )

    def _n_unknown(self, recommender: FairRecommender, events: pa.Table) -> int:
        """How many items there are of which nothing was known before these events."""
        items = pc.unique(events["item_id"])
        items = items.filter(pc.invert(pc.is_in(items, self._learned_late["item_id"].combine_chunks())))
        return int((recommender.state.item_ids.lookup(items) < 0).sum())

    def _fresh(self, events: pa.Table) -> FairRecommender:
        learning = self._config.learning
        log = read_events(_columns(events))
        groups = self._groups
        if self.has_groups:
            values = self._people[self._config.group].combine_chunks()
            place = pc.index_in(log.user_ids.ids, value_set=self._people["user_id"].combine_chunks())
            groups = Groups.from_values(
                self._config.group, values.take(place), possible=self._groups.names, advantaged=self._config.advantaged
            )
        if groups.n_occurring() > 1:
            log = log.with_groups(groups)
        else:  # the accepted gap waits until there are groups
            self._groups = Groups.none(0)
            learning = learning.with_options(max_disparity=None, min_quality=None, max_group_loss=None)
        candidate = FairRecommender(**learning.model_dump(exclude=_FOR_EXPERIMENTS))
        candidate.fit(log)
        return candidate

    def _loaded(self) -> FairRecommender:
        learning = self._config.learning  # what was changed in the configuration since counts from now on
        changed = learning.model_dump(exclude={"model", "seed", "device", *_FOR_EXPERIMENTS})
        recommender = load(self._folder, device=learning.device, **changed)
        if self.has_groups or not recommender.state.groups.is_empty:
            recommender.set_groups(self._people, groups=self._groups)
        return recommender

    @cached_property
    def _retained(self) -> FairRecommender:
        """The model in service; of the events that it has learned it knows those that are still stored."""
        recommender = self._loaded()
        if self._config.retention.events_days is not None:
            recommender.retain(self._store.parts())
        return recommender

    def _in_service(self, but: tuple[int, ...]) -> FairRecommender:
        """What a candidate starts from: the model in service, knowing the skipped periods but some."""
        recommender = deepcopy(self._retained)
        skipped = [events for t, events in self._skipped.items() if t not in but]
        self._observe(recommender, pa.concat_tables([_nothing(), *skipped]))
        return recommender

    def _observe(self, recommender: FairRecommender, events: pa.Table) -> None:
        if len(events):
            recommender.observe(_columns(events), users=self._people, learn_later=False)

    def _judge_held_out(self, recommender: FairRecommender, events: pa.Table) -> Evaluation:
        """Judge by the held-out events, which must test enough users."""
        evaluation, needed = self._judge(recommender, events), self._config.gate.min_tested_users
        if evaluation.n_tested_users < needed:
            raise DataError(
                f"the held-out events test {evaluation.n_tested_users} users, {needed} are needed "
                f"(gate.min_tested_users)"
            )
        return evaluation

    def _judge(self, recommender: FairRecommender, events: pa.Table, *, baseline: bool = False) -> Evaluation:
        gate = self._config.gate
        k = min(gate.k, recommender.model.n_items)
        return recommender.evaluate(
            _columns(events),
            users=self._people,
            k=k,
            n_resamples=1,  # for the intervals of everyone, which draw nothing; groups are left to `privacy`
            breakdown=True,
            baseline=baseline,
        )


def _check_unchanged(workspace: Workspace, row: Model) -> None:
    """Say what to do where the configuration wants a model of another shape than the one in service."""
    before, now = row.about["configuration"]["learning"], workspace.config.learning.model_dump()
    for name in _SHAPE:
        if name in before and before[name] != now[name]:
            raise ConfigurationError(
                f"{name} is {now[name]!r} in {FILE}, but model {row.id} in service was made with {before[name]!r} and "
                f"cannot change it; put it back, or make a new workspace with `fairstream init` and ingest the events "
                f"there"
            )


def names_of(evaluation: Evaluation) -> list[str]:
    """The groups that there are."""
    return list(next(iter(evaluation.metrics.values())).by_group)


def _columns(events: pa.Table) -> pa.Table:
    return events.select(["user_id", "item_id", "time"])


def _nothing() -> pa.Table:
    columns = {"seq": pa.int64(), "user_id": pa.string(), "item_id": pa.string(), "time": pa.int64()}
    return pa.schema(columns.items()).empty_table()
