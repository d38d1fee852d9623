"""Why one group is behind: what can be gained, and what differences between people explain.

Let V_A be the mean of the rest and V_B that of the group furthest behind. Three splits of the gap V_A − V_B:

1. **Inherent and avoidable** (`evaluation.regret`): what remains when each group gets its best attainable lists.
2. **People and treatment** (Kitagawa, Oaxaca, Blinder), over the strata x of the users' histories (`strata_of`), with
   the share π(x) of a side's users and their mean q(x):

       V_A − V_B = Σ_x (π_A − π_B)(x) · ½(q_A + q_B)(x)  +  Σ_x ½(π_A + π_B)(x) · (q_A − q_B)(x)

   The first sum is what differences in activity and taste explain, the second how differently like people are served.
   A stratum without users of one side takes its mean from the other. Over several periods both are averaged.
3. **Other lists**: each group at its own events alone, and at the level that is best for another group. A group that
   gains there would prefer those lists (envy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from fairstream.data import Rows
from fairstream.display import Summary, Tabular
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation.by_group import Estimate, GroupScores, ordered
from fairstream.evaluation.regret import MAX_WIDTH, UNDETERMINED, LevelPanel, with_regret
from fairstream.evaluation.resampling import Array
from fairstream.evaluation.score_cells import CHANCE_MARK, FEW_GROUPS
from fairstream.plotting import bar_chart
from fairstream.text import MISSING, number, percent, signed

if TYPE_CHECKING:
    from fairstream.evaluation.results import Evaluation
    from fairstream.evaluation.user_results import UserResults
    from fairstream.models import Level

_DRAWS_AT_ONCE = 128
NO_LEVELS = "the lists were not tested at levels, so what each group could have had is unknown"


@dataclass(frozen=True)
class Composition:
    """The gap as differences between people, and between like people."""

    people: Estimate
    """What differences in activity and taste explain."""
    like_for_like: Estimate
    """What remains between people with like histories."""

    @property
    def gap(self) -> float:
        """The sum of both."""
        return self.people.value + self.like_for_like.value


class Trial(NamedTuple):
    """How a group would fare with other lists."""

    kind: Literal["alone", "best for"]
    """`alone`: only the events of `group` count in popularity; `best for`: the lists that are best for `group`."""
    group: str
    level: str
    change: Estimate  # of the group's mean, paired by user


@dataclass(frozen=True)
class GroupOutlook:
    """A group as served, and what it could have had."""

    n_users: int
    served: float
    attainable: float
    """Its mean with the lists that are best for it, free of the winner's curse."""
    regret: Estimate
    """The share of `attainable` that it does not get."""
    best_level: str | None = None
    """The lists that are best for it; None: unknown."""
    best_lists: str = ""
    """The same in words."""
    trials: tuple[Trial, ...] = ()

    @property
    def gains(self) -> bool:
        """Whether it could be served better by more than chance."""
        return self.is_determined and self.regret.value > 0 and not self.regret.low <= 0

    @property
    def is_determined(self) -> bool:
        """Whether there are enough users to tell the regret."""
        return self.regret.interval is None or self.regret.high - self.regret.low <= MAX_WIDTH


@dataclass(frozen=True, repr=False)
class GapExplanation(Tabular):
    """Why a group is behind the rest. It prints as sentences and a table.

    `FairRecommender.explain_gap` and `Evaluation.explain_gap` return it; `fairstream explain --between groups` writes
    it as a page.

    Examples
    --------
    >>> from fairstream import FairRecommender, synthetic_stream
    >>> stream = synthetic_stream(n_users=600, n_items=300, n_events=18_000, seed=7)
    >>> first, later = stream.events.slice(0, 15_000), stream.events.slice(15_000)
    >>> rec = FairRecommender("popularity").fit(first, users=stream.users, group="community")
    >>> gap = rec.evaluate(later, users=stream.users, n_resamples=100).explain_gap()
    >>> gap.behind, abs(gap.inherent + gap.avoidable.value - gap.gap.value) < 1e-9
    ('minority', True)
    >>> abs(gap.composition.gap - gap.gap.value) < 1e-9
    True

    """

    metric: str
    behind: str
    """The group furthest behind the rest."""
    rest: str
    """The other group, or "the rest" where there are several."""
    gap: Estimate
    """How far it is behind."""
    inherent: float
    """The part that remains when each group gets its best attainable lists …"""
    avoidable: Estimate
    """… and the part that does not; below 0: the rest could gain more."""
    groups: Mapping[str, GroupOutlook]
    composition: Composition | None = None
    """None: the histories of the users are unknown."""
    attribute: str = ""
    """What makes the groups."""
    task: str = ""
    level: str | None = None
    """The level in force, if there is one level for all numbers."""
    notes: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return the explanation in sentences."""
        return [self._on_gap(), self._on_rest(), *self._on_gains(), *self._on_people(), *self._on_trials()]

    def _on_gap(self) -> str:
        chance = ""
        if self.gap.p_value is not None:
            chance = ", which may be chance" if self.gap.may_be_chance else ", more than chance explains"
            chance += f" (p = {self.gap.p_value:.3f})"
        elif self.gap.includes_zero:
            chance = ", which may be chance"
        return f"{self.behind} is {number(self.gap.value)} behind {self.rest} in {self.metric}{chance}."

    def _on_rest(self) -> str:
        if self.inherent > self.gap.value + 5e-5:
            return (
                f"The gap would grow to {number(self.inherent)} if each group got its best attainable lists: "
                f"{self.rest} could gain more than {self.behind}."
            )
        if self.inherent > 0:
            return f"{number(self.inherent)} remains when each group gets its best attainable lists."
        return (
            f"Nothing of it remains when each group gets its best attainable lists: {self.behind} would then be "
            f"{number(-self.inherent)} ahead."
        )

    def _on_gains(self) -> list[str]:
        words = []
        if self.avoidable.value >= 5e-5:
            doubt = " unless it is chance" if self.avoidable.includes_zero else ""
            doubt += ", as follows"
            words.append(f"{number(self.avoidable.value)} can be gained{doubt}.")
        gains = 0
        for name, group in self.groups.items():
            if not group.is_determined:
                words.append(f"What {name} could have had {UNDETERMINED}: too few of its users were tested.")
            elif group.gains or (name == self.behind and self.avoidable.value >= 5e-5):
                gains += 1
                how = f" with {group.best_lists}" if group.best_lists else ""
                regret = f"{percent(group.regret.value)} ({between_percent(group.regret)})"
                served = f"in place of {number(group.served)}{how}"
                doubt = "" if group.gains else ", which may be chance"
                words.append(f"{name} could get {number(group.attainable)} {served}: its regret is {regret}{doubt}.")
        is_raised = any(trial.change.low > 0 for group in self.groups.values() for trial in group.trials)
        if not gains and not is_raised:
            words.append("No group could be served better by more than chance with any of the lists tried.")
        return words

    def _on_people(self) -> list[str]:
        if self.composition is None:
            return []
        people, like = self.composition.people, self.composition.like_for_like
        of = ""
        if abs(self.composition.gap - self.gap.value) >= 5e-5:
            of = f" of a gap of {number(self.composition.gap)} in the lists without a level"
        doubt = ", which may be chance" if people.includes_zero else ""
        return [
            f"Differences in activity and taste explain {signed(people.value)}{of}{doubt}; "
            f"between like people {signed(like.value)} remains."
        ]

    def _on_trials(self) -> list[str]:
        """Only what is beyond chance."""
        words = []
        for name, group in self.groups.items():
            for trial in group.trials:
                if not trial.change.excludes_zero:
                    continue
                size, gains = signed(trial.change.value), trial.change.value > 0
                if trial.kind == "alone" and gains:
                    words.append(f"{name} would be better off with popularity among its own users alone ({size}).")
                elif trial.kind == "alone":
                    words.append(f"{name} profits from the others: popularity among its own users costs it {size}.")
                elif gains and trial.level != group.best_level:  # else it is its own best, named above
                    words.append(f"{name} would prefer the lists that are best for {trial.group} ({size}).")
        return words

    def _summary(self) -> Summary:
        captions = [f"{CHANCE_MARK} the 95 % interval contains 0", *self.notes]
        return Summary("\n".join(self.sentences()), self.headings, self.rows(), (), (), captions)

    @property
    def headings(self) -> list[str]:
        """The headings of `rows`."""
        own = [self.attribute or "group", "users", "served", "attainable", "regret", "interval", "best lists"]
        return [*own, "own users alone", *([] if len(self.groups) > FEW_GROUPS else ["the other's best"])]

    def rows(self) -> list[list[str]]:
        """Return a row of cells for each group."""
        return [[name, *self._cells(group)] for name, group in self.groups.items()]

    def _cells(self, group: GroupOutlook) -> list[str]:
        regret = [percent(group.regret.value), between_percent(group.regret)]
        if not group.is_determined:
            regret = [UNDETERMINED, between_percent(group.regret)]
        cells = [f"{group.n_users:,}", number(group.served), number(group.attainable), *regret]
        kinds = ("alone",) if len(self.groups) > FEW_GROUPS else ("alone", "best for")
        trials = [next((t.change for t in group.trials if t.kind == kind), None) for kind in kinds]
        return [*cells, group.best_level or MISSING, *(_marked(change) for change in trials)]

    def parts(self) -> dict[str, Estimate]:
        """Name → part of the gap: the first two add up to it, and so do the last two."""
        parts = {"inherent": Estimate(self.inherent), "avoidable": self.avoidable}
        if self.composition is not None:
            parts |= {"activity and taste": self.composition.people, "like people": self.composition.like_for_like}
        return parts

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**_EXPLANATION.dump_python(self, mode="json"), "sentences": self.sentences()}

    def to_arrow(self) -> pa.Table:
        """As an Arrow table, a row for each group.

        Columns: group, n_users, served, attainable, regret, regret_low, regret_high, best_level, alone (the change with
        popularity among its own users alone).
        """
        rows = []
        for name, group in self.groups.items():
            low, high = group.regret.interval or (None, None)
            alone = next((trial.change.value for trial in group.trials if trial.kind == "alone"), None)
            own = {"n_users": group.n_users, "served": group.served, "attainable": group.attainable}
            regret = {"regret": group.regret.value, "regret_low": low, "regret_high": high}
            rows.append({"group": name, **own, **regret, "best_level": group.best_level, "alone": alone})
        kinds = {"group": pa.string(), "n_users": pa.int64(), "best_level": pa.string()}
        return pa.Table.from_pylist(rows, pa.schema([(name, kinds.get(name, pa.float64())) for name in rows[0]]))

    def plot(self) -> Any:
        """Draw the parts of the gap; needs altair (`fairstream[report]`)."""
        ends = {name: part.interval or (None, None) for name, part in {"gap": self.gap, **self.parts()}.items()}
        values = {"gap": self.gap, **self.parts()}
        rows = [{"group": n, "value": values[n].value, "low": low, "high": high} for n, (low, high) in ends.items()]
        return bar_chart(rows, f"{self.behind} behind {self.rest} in {self.metric}")


_EXPLANATION = TypeAdapter(GapExplanation)


def between_percent(share: Estimate) -> str:
    """The interval of a share.

    >>> between_percent(Estimate(0.02, (0.011, 0.03)))
    '1.1 % … 3.0 %'
    """
    return MISSING if share.interval is None else " … ".join(percent(end) for end in share.interval)


def in_words(level: Level | str | None) -> str:
    """Return what the lists at a level are; a string names a system, None the lists as served.

    >>> from fairstream.models import Level
    >>> in_words(Level("F", 2.0))
    'lists in which events of F count 2 times in popularity'
    """
    if level is None:
        return "the lists as served"
    if isinstance(level, str):
        return f"the lists of {level}"
    if level.group is None:
        return "lists without a level"
    if level.is_alone:
        return f"lists in which only events of {level.group} count in popularity"
    return f"lists in which events of {level.group} count {level.weight:g} times in popularity"


def _marked(change: Estimate | None) -> str:
    return MISSING if change is None else signed(change.value) + (CHANCE_MARK if change.includes_zero else "")


def kitagawa(n_rest: Array, q_rest: Array, n_behind: Array, q_behind: Array) -> tuple[Array, Array]:
    """Split the difference of two means over strata: (…,) people, like for like; all parameters are (…, S).

    >>> people, like = kitagawa(*(np.array(x, float) for x in ([3, 1], [0.4, 0.2], [1, 3], [0.4, 0.2])))
    >>> round(float(people), 3), float(like)
    (0.1, 0.0)
    """
    share = [n / np.maximum(n.sum(axis=-1, keepdims=True), 1e-12) for n in (n_rest, n_behind)]
    a, b = np.where(n_rest > 0, q_rest, q_behind), np.where(n_behind > 0, q_behind, q_rest)
    people = ((share[0] - share[1]) * (a + b) / 2).sum(axis=-1)
    return people, ((share[0] + share[1]) / 2 * (a - b)).sum(axis=-1)


def compose(
    tested: Sequence[UserResults],
    metric: Any,
    behind: int,
    min_size: int,
    rng: np.random.Generator | None = None,
    n_resamples: int = 0,
) -> Composition | None:
    """Split the gap of the group with the code `behind`, averaged over periods; users are resampled.

    None if the histories of the users are unknown, or the group is compared in no period.
    """
    if any(part.strata is None for part in tested):
        return None
    sides: list[tuple[UserResults, Rows, Rows]] = []  # each period's users of the rest, and of the group
    for part in tested:
        sizes = np.bincount(part.codes[part.codes >= 0], minlength=behind + 1)
        compared = np.flatnonzero(sizes >= max(1, min_size))
        if behind in compared and len(compared) > 1:
            rest = np.flatnonzero(np.isin(part.codes, compared[compared != behind]))
            sides.append((part, rest, np.flatnonzero(part.codes == behind)))
    if not sides:
        return None
    everyone = np.unique(np.concatenate([part.users for part, _, _ in sides]))

    def split(draws: Array) -> tuple[Array, Array]:
        """(D,) both sums, averaged over periods; `draws` (D, U) says how often each user is in."""
        parts = []
        for part, *rows_of in sides:
            values, strata, cells = part.values_of(metric), np.asarray(part.strata), []
            for rows in rows_of:
                is_in = np.eye(int(strata.max()) + 1)[strata[rows]]  # (n, S)
                own = draws[:, np.searchsorted(everyone, part.users[rows])]  # (D, n)
                n = own @ is_in
                cells += [n, (own @ (is_in * values[rows, None])) / np.maximum(n, 1e-12)]
            parts.append(kitagawa(*cells))
        people, like = (np.mean(column, axis=0) for column in zip(*parts, strict=True))
        return people, like

    observed = [float(part[0]) for part in split(np.ones((1, len(everyone))))]
    if not n_resamples or rng is None:
        return Composition(*map(Estimate, observed))
    drawn = []
    for start in range(0, n_resamples, _DRAWS_AT_ONCE):
        n = min(_DRAWS_AT_ONCE, n_resamples - start)
        drawn.append(split(rng.poisson(1.0, (n, len(everyone))).astype(np.float64)))
    draws = [np.concatenate(column) for column in zip(*drawn, strict=True)]
    return Composition(*(Estimate.of_draws(value, each) for value, each in zip(observed, draws, strict=True)))


def explain_scores(
    score: GroupScores,
    panel: LevelPanel | None,
    composition: Composition | None = None,
    *,
    metric: str,
    n_resamples: int = 0,
    **about: Any,
) -> GapExplanation:
    """Explain the gap of scores that have regrets, from the values of their users at all levels.

    Raises DataError if there is no gap, or no level was tried.
    """
    behind = _check(score)
    if panel is None or not score.regret:
        raise DataError(f"{NO_LEVELS}; evaluate a recommender or run the protocol strict, with the metric in front")
    others = [name for name in ordered(list(score.gaps)) if name != behind]
    if len(others) > 1 and score.disparity is not None:  # the scores split the gap of the declared advantaged group
        score = with_regret(replace(score, disparity=None), panel, np.random.default_rng(0), n_resamples)
    gap, sign = score.gap, -1.0 if behind == score.advantaged and score.disparity is not None else 1.0
    assert gap is not None
    avoidable = Estimate(sign * (score.avoidable_gap or 0.0))
    if score.avoidable_gap_interval is not None:
        low, high = sorted(sign * end for end in score.avoidable_gap_interval)
        avoidable = replace(avoidable, interval=(low, high))
    best, sizes = panel.best_levels(), panel.sizes()
    groups = {}
    for name in [behind, *others]:
        served = score.by_group[name]
        assert served is not None
        own = [each for each in panel.levels if not isinstance(each, str) and each.group == name and each.is_alone]
        trials = [Trial("alone", name, str(level), panel.change(name, level)) for level in own]
        trials += [
            Trial("best for", other, str(level), panel.change(name, level))
            for other, level in best.items()
            if other != name and level is not None
        ]
        groups[name] = GroupOutlook(
            sizes[name],
            served,
            score.attainable[name],
            score.regret[name],
            score.best_level[name],
            in_words(best[name]),
            tuple(trials),
        )
    rest = others[0] if len(others) == 1 else "the rest"
    inherent = gap.value - avoidable.value
    return GapExplanation(metric, behind, rest, gap, inherent, avoidable, groups, composition, **about)


def _check(score: GroupScores) -> str:
    if score.gap is None or score.furthest_behind_group is None:
        compared = [name for name, mean in score.by_group.items() if mean is not None]
        if not score.by_group:
            raise DataError("there are no groups, so there is no gap to explain; name a column with group=")
        raise DataError(
            f"a gap needs two groups with enough tested users, and there "
            f"{'is one' if len(compared) == 1 else 'are none'}{''.join(f' ({name})' for name in compared)}"
        )
    # Over several periods, the group that is behind on average.
    return min(score.gaps, key=lambda name: score.gaps[name].value)


def explain_tests(
    score: GroupScores,
    tested: Sequence[UserResults],
    metric: Any,
    names: Sequence[str],
    *,
    min_size: int,
    n_resamples: int,
    **about: Any,
) -> GapExplanation:
    """Explain the gap in the tests of one or several periods; `metric` and `names` are those of `score_periods`."""
    behind, rng = _check(score), np.random.default_rng(0)
    panel = LevelPanel.of(tested, metric, names, min_size)
    panel = panel if panel is not None and panel.levels else None
    composition = compose(tested, metric, list(names).index(behind), min_size, rng, n_resamples)
    name = metric if isinstance(metric, str) else metric.name
    return explain_scores(score, panel, composition, metric=name, n_resamples=n_resamples, **about)


def explain_evaluation(evaluation: Evaluation) -> GapExplanation:
    """Explain the gap in the first metric of an evaluation."""
    name, score = next(iter(evaluation.metrics.items()))
    sizes = evaluation.n_users_by_group
    return explain_tests(
        score,
        [replace(evaluation.tested, values={**evaluation.tested.values, **evaluation.values})],
        name,
        list(sizes),
        min_size=min((sizes[group] for group in score.gaps), default=1),
        n_resamples=1000 if score.interval else 0,
        attribute=evaluation.group or "",
    )


def seed_certificate(gaps: Sequence[float]) -> float:
    """Return a bound on how much one more seed narrows the smallest of these gaps, in expectation.

    Let m_S be the smallest gap of S independent seeds. Without seed i the minimum rises only if i has the smallest gap,
    and then to the second smallest, so the mean over i of that rise, γ = (g₍₂₎ − g₍₁₎) / S, is unbiased for
    E[m_{S−1} − m_S]; and E[m_S] = ∫ (1 − F)^S is convex in S, so E[m_S − m_{S+1}] ≤ E[γ].

    Parameters
    ----------
    gaps
        The size of the gap of each seed, two or more.

    Raises
    ------
    ConfigurationError
        If there are fewer than two.

    Examples
    --------
    >>> round(seed_certificate([0.021, 0.024, 0.019, 0.022]), 6)
    0.0005

    """
    if len(gaps) < 2:
        raise ConfigurationError(f"a seed certificate needs the gaps of two seeds or more, got {len(gaps)}")
    first, second = np.partition(np.asarray(gaps, np.float64), 1)[:2]
    return float(second - first) / len(gaps)
