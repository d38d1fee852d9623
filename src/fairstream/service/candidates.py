"""Train candidates from the model in service, and evaluate both on events that neither has learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fairstream.data import UNKNOWN, Groups, Rows, read_events
from fairstream.data.groups import Codes
from fairstream.errors import CheckpointError, ConfigurationError, DataError, ModelError, WorkspaceError
from fairstream.evaluation import Evaluation
from fairstream.evaluation.private_groups import GroupMeans, Normal
from fairstream.evaluation.resampling import Array
from fairstream.recommender import FairRecommender, load
from fairstream.service.budget import LatestTests
from fairstream.service.event_store import EventStore, split_of
from fairstream.service.gaps import SERVED_TASK
from fairstream.service.impressions import results_of_people
from fairstream.service.items import features_table
from fairstream.service.learning import Learning
from fairstream.service.privacy import (
    EVERYONE,
    KNOWN,
    NO_GROUPS,
    Comparison,
    Mask,
    Release,
    exact,
    group_names,
    ndcg_of,
    reported_share,
)
from fairstream.service.records import Model, Period
from fairstream.service.registry import model, rejected_from
from fairstream.service.settings import FILE
from fairstream.service.workspace import Workspace
from fairstream.strategies import PeriodReplay, RestartOnNew, Strategy


@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate and its evaluation."""

    recommender: FairRecommender
    n_learned: int
    n_new_items: int  # items of the period that the model in service did not know
    after: Evaluation  # the candidate on the held-out events
    rejected: Sequence[int] = ()  # rejected periods that the candidate has learned, too
    before: Evaluation | None = None  # the model in service on the same events; None for the first model
    reference: Array | None = None  # the judges' values under recent popularity, where the events have changed
    score: float = 0.0  # the mean NDCG of the users who judge
    compare: Callable[[], Comparison] | None = None

    @cached_property
    def comparison(self) -> Comparison | None:
        """The comparison with the model in service, once: it spends the privacy budget."""
        return self.compare and self.compare()


class Candidates:
    """Makes and judges candidates that descend from the model in service, or first ones of all stored events.

    If the model in service cannot be read, its nearest readable ancestor replaces it, as in serving. The candidate then
    learns the periods of the lost models again.
    """

    def __init__(
        self, workspace: Workspace, in_service: str | None, periods: Sequence[Period], release: Release
    ) -> None:
        self._workspace, self._config, self._release = workspace, workspace.config, release
        self._replay: PeriodReplay | None = None
        self.tested = LatestTests(workspace.engine)
        self.parent: Model | None = None
        self.note: str | None = None  # why the candidate does not descend from the model in service, if so
        self._people = workspace.people.values().rename_columns(["user_id", self._config.group])
        values = self._people[self._config.group].combine_chunks()
        self.names = group_names(values, self._config, workspace.secret)
        """The groups, also those without events."""
        codes = pc.index_in(values, value_set=pa.array(self.names, pa.string()))
        self._people, self._codes = self._people.filter(codes.is_valid()), codes.drop_null()
        if self.has_groups:
            release.all_sizes(self._codes.to_numpy(), self.names)
        lost = self._load_nearest(in_service) if in_service is not None else {period.t for period in periods}
        t = -1 if self.parent is None else self.parent.t
        self._again = [] if self.parent is None else [split_of(workspace, periods[t]).held_out]
        self._skipped = {period.t: split_of(workspace, period).counted for period in periods[t + 1 :]}
        """Periods of rejected models and of models that were rolled back: known, but not learned from."""
        self._again += [self._skipped.pop(t) for t in sorted(lost)]

    @property
    def has_groups(self) -> bool:
        """Whether there are at least two groups."""
        return len(self.names) > 1

    @property
    def _users(self) -> pa.Table | None:
        """The users' groups, as a recommender reads them; None without groups."""
        return self._people if self.has_groups else None

    def judge_in_service(self, events: pa.Table, t: int) -> tuple[Evaluation, GroupMeans, dict[str, Any]]:
        """Evaluate the model in service on the events of a period before it learns any of them.

        The last part is the mean over the users who judge, for drift. The numbers of groups are of all users who were
        tested since the last ones were published.
        """
        recommender = deepcopy(self._loaded)  # as it has answered, retained or not
        established = recommender.state.user_ids.ids
        self._observe(recommender, [*self._skipped.values(), *self._again])
        evaluation = self._judge(recommender, events)
        is_judged, values = self._who_judges(evaluation, len(established)), ndcg_of(evaluation.tested)
        level = {EVERYONE if is_judged.all() else KNOWN: exact(Normal.mean(values[is_judged]))}
        if not self.has_groups:
            return evaluation, NO_GROUPS, level
        users = evaluation.tested.users
        in_group = self._codes_of(users, established) != UNKNOWN
        self.tested.add(established.take(pa.array(users[in_group])).to_pylist(), values[in_group], t)
        everybody, values = self.tested.columns()
        codes = self._codes_of(np.arange(len(everybody)), pa.array(everybody, pa.large_string()))
        groups = self._release.report(values, codes, self.names)
        if groups.sizes:
            self.tested.clear()
        return evaluation, groups, level

    def judge_lists(self, since: int) -> dict[str, Any]:
        """The shares of people who clicked and who converted, of those who saw a list after a time, by group.

        People are counted since numbers of groups were published last, so that each counts once in a number.
        """
        shares, budget = dict[str, Any](), self._release.budget
        for purpose in ("clicks", "conversions"):
            start = since if budget.is_off else budget.last(purpose) or 0
            users, values = results_of_people(self._workspace.engine, purpose, start)
            if len(users) >= max(2, self._config.gate.min_group_size):
                groups = NO_GROUPS
                if self.has_groups:
                    codes = self._codes_of(np.arange(len(users)), pa.array(users, pa.large_string()))
                    groups = self._release.report(values, codes, self.names, purpose)
                shares[purpose] = reported_share(values, groups, self.names if self.has_groups else [])
        return shares

    def _who_judges(self, evaluation: Evaluation, n_established: int) -> Mask:
        """The users by whom a model is judged: those known before the period, if they are enough, else all.

        An attacker can invent as many newcomers as it takes to decide a test of all.
        """
        is_known = evaluation.tested.users < n_established
        return is_known if is_known.sum() >= self._config.gate.min_tested_users else np.ones_like(is_known)

    def _codes_of(self, users: Rows, ids: pa.Array) -> Codes:
        """The codes of the groups of user rows, in the order of `names`; rows beyond these ids count in no group.

        Those are newcomers: an attacker could invent users until a group is just large enough with a victim in it.
        """
        people = self._people["user_id"].combine_chunks().cast(ids.type)
        codes = pc.fill_null(self._codes.take(pc.index_in(ids, value_set=people)), UNKNOWN)
        padded = np.append(codes.to_numpy(zero_copy_only=False), UNKNOWN).astype(np.int16)
        return padded[np.minimum(users, len(ids))]

    def learn(self, events: pa.Table, held_out: pa.Table, *, has_drifted: bool) -> Trial:
        """Learn events, and those held out last time; judge by the ones held out now.

        After drift a second candidate starts from scratch on these events and those of rejected periods. The one that
        is better for everyone is returned.
        """
        if self.parent is None:
            events = pa.concat_tables([*self._again, events])
            candidate, n_items = self._fit(events), pc.count_distinct(events["item_id"]).as_py()
            return Trial(candidate, len(events), n_items, self._judge(candidate, held_out))
        trials = [self._try(events, held_out, [], None, has_drifted=has_drifted)]
        if has_drifted:
            rows = rejected_from(self._workspace.engine, self.parent.id)
            rejected = sorted(row.t for row in rows if row.t in self._skipped)
            trials.append(self._try(events, held_out, rejected, RestartOnNew(), has_drifted=True))
        return max(trials, key=lambda trial: trial.score)

    def _try(
        self, new: pa.Table, held_out: pa.Table, rejected: list[int], strategy: Strategy | None, *, has_drifted: bool
    ) -> Trial:
        """Train and judge a candidate; the recommender's strategy learns the events by default."""
        events = pa.concat_tables([*self._again, *(self._skipped[t] for t in rejected), new])
        skipped = [table for t, table in self._skipped.items() if t not in rejected]
        current, candidate = deepcopy(self._retained), deepcopy(self._retained)
        for recommender in (current, candidate):
            self._observe(recommender, skipped)
        established, n_items = current.state.user_ids.ids, len(current.state.item_ids)
        self._observe(current, [events])  # at once, as the candidate does, so that both give users the same rows
        before = self._judge(current, held_out)  # before the training: with too few users it would be in vain
        is_judged, reference = self._who_judges(before, len(established)), None
        if has_drifted:
            reference = ndcg_of(self._judge(current, held_out, baseline=True).tested)[is_judged]

        def replay(users: Rows, values: Array, codes: Codes, *about: Any) -> PeriodReplay | None:
            # The first trial's serves both: the budget pays for one.
            if self._replay is None:
                codes = np.where(users < len(established), codes, UNKNOWN)
                self._replay = self._release.replay(values, codes, *about)
            return self._replay

        items = None if candidate.state.features is None else self._items
        candidate.update(_columns(events), users=self._users, items=items, strategy=strategy, replay_groups=replay)
        _check_finite(candidate)
        after = self._judge(candidate, held_out)
        values, codes = ndcg_of(after.tested), self._codes_of(before.tested.users, established)
        compared = (ndcg_of(before.tested), values, codes, self.names, self._config.gate.max_fall, is_judged)
        return Trial(
            candidate,
            len(events),
            len(current.state.item_ids) - n_items,
            after,
            rejected,
            before,
            reference,
            score=float(values[is_judged].mean()),
            compare=partial(self._release.compare, *compared),
        )

    def _groups_of(self, values: Sequence[Any] | pa.Array) -> Groups:
        """The groups of users with these values."""
        if not self.has_groups:
            return Groups.none(0)
        options = {"possible": self.names, "advantaged": self._config.advantaged}
        return Groups.from_values(self._config.group, values, **options)

    def _fit(self, events: pa.Table) -> FairRecommender:
        learning = self._config.learning
        # The target begins with the first update: before it nobody is established, and no number of groups is released.
        learning = learning.with_options(target="none", max_gap=None)
        candidate = FairRecommender.from_config(learning, seed=learning.seed, device=learning.device)
        items = self._items if candidate.recipe.model.reads_features else None
        log = read_events(_columns(events), items=items, kind_column="kind", **self._config.events.for_reading())
        place = pc.index_in(log.user_ids.ids, value_set=self._people["user_id"].combine_chunks())
        groups = self._groups_of(self._people[self._config.group].combine_chunks().take(place))
        candidate.fit(log.with_groups(groups) if groups.n_occurring() > 1 else log)
        _check_finite(candidate)
        return candidate

    @cached_property
    def _items(self) -> pa.Table | None:
        """The features of the catalogue's items."""
        return features_table(self._workspace.engine, self._config.items)

    def _load_nearest(self, in_service: str) -> set[int]:
        """Load the model in service or its nearest ancestor; return the periods of those that cannot be read."""
        lost = set[int]()
        following: str | None = in_service
        while following is not None:
            row = model(self._workspace.engine, following)
            _check_shape(row, self._config.learning)
            try:
                self._loaded, self.parent = self._load(row), row
            except CheckpointError as error:
                self.note = self.note or f"model {in_service} cannot be updated: {str(error).partition(';')[0]}"
                lost.add(row.t)
                following = row.parent
            else:
                if lost:
                    self.note = f"{self.note}; the candidate descends from model {row.id} instead"
                return lost
        raise WorkspaceError(
            f"{self.note}, and no earlier one can; make a first model of all stored events with "
            f"`fairstream update DIR --afresh`"
        )

    def _load(self, row: Model) -> FairRecommender:
        learning = self._config.learning
        recipe = learning.recipe()  # changes of the configuration count from now on
        recommender = load(
            self._workspace.models.path(row.folder),
            device=learning.device,
            fairness=recipe.fairness_option,
            target=None,  # a checkpoint without groups has none
            strategy=recipe.strategy,
            training=recipe.training,
        )
        recommender.set_kinds(**self._config.events.for_reading())
        if self.has_groups or not recommender.state.groups.is_empty:
            recommender.set_groups(self._people, groups=self._groups_of([]))
            recommender.set_target(recipe)
        return recommender

    @cached_property
    def _retained(self) -> FairRecommender:
        """The loaded model; of the events that it has learned it knows those that are still stored."""
        if self._config.retention.events_days is None:
            return self._loaded
        recommender = deepcopy(self._loaded)
        recommender.retain(EventStore(self._workspace).parts())
        return recommender

    def _observe(self, recommender: FairRecommender, tables: list[pa.Table]) -> None:
        if any(map(len, tables)):
            recommender.observe(_columns(pa.concat_tables(tables)), users=self._users, learn_later=False)

    def _judge(self, recommender: FairRecommender, events: pa.Table, *, baseline: bool = False) -> Evaluation:
        """Judge by events, which must test enough users."""
        gate, table = self._config.gate, _columns(events)
        k = min(gate.k, recommender.model.n_items)
        # One resample gives the intervals of everyone, which draw nothing; groups are left to `privacy`.
        evaluation = recommender.evaluate(
            table, users=self._users, task=SERVED_TASK, k=k, n_resamples=1, baseline=baseline, at_levels=False
        )
        if evaluation.n_users < gate.min_tested_users:
            raise DataError(
                f"the held-out events test {evaluation.n_users} users, {gate.min_tested_users} are needed "
                f"(gate.min_tested_users)"
            )
        return evaluation


def _check_finite(candidate: FairRecommender) -> None:
    """Raise if training left numbers with which the service refuses to answer."""
    for name, weights in candidate.model.named_parameters():
        if not torch.isfinite(weights).all():
            raise ModelError(f"training left numbers in {name} that are not finite")


def _check_shape(parent: Model, learning: Learning) -> None:
    """Raise if the configuration asks for a model of another shape than the one in service."""
    before, now = parent.about["configuration"]["learning"], learning.model_dump()
    for name in ("model", "model_settings", "optimizer"):
        if name in before and before[name] != now[name]:
            raise ConfigurationError(
                f"{name} is {now[name]!r} in {FILE}, but model {parent.id} in service was made with {before[name]!r} "
                f"and cannot change it; put it back, or make a first model of all stored events with "
                f"`fairstream update DIR --afresh`"
            )


def _columns(events: pa.Table) -> pa.Table:
    """As a recommender reads them: with timestamps, so that no time of theirs decides on the unit."""
    chosen = events.select(["user_id", "item_id", "time", "kind"])
    return chosen.set_column(2, "time", chosen["time"].cast(pa.timestamp("us")))
