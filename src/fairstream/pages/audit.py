"""A fairness report to hand over: one printable page, and the same as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairstream._version import __version__
from fairstream.configuration import check_number
from fairstream.display import ReprMixin, Summary
from fairstream.errors import ConfigurationError
from fairstream.evaluation import (
    Estimate,
    Evaluation,
    GapExplanation,
    RecommendationComparison,
    evaluate_recommendations,
)
from fairstream.evaluation.by_group import ordered
from fairstream.evaluation.regret import UNDETERMINED
from fairstream.experiments import Record, Run, Store
from fairstream.experiments.compare import Runs
from fairstream.files import write_file
from fairstream.pages.audit_subjects import Subject, file_facts, of_evaluation, of_runs, of_systems, task_name
from fairstream.pages.rendering import render
from fairstream.recommender import FairRecommender
from fairstream.text import between, number, percent, sentence, signed

SCHEMA = "fairstream-audit/1"
"""The layout of the JSON; a new number means that a key changed its meaning or went away."""
_SMALL_SHARE = 0.02  # New York's Local Law 144 lets an audit leave out categories below this share
_WHY = {
    "ndcg": "counts the recommended items that people chose afterwards, the first ranks most; a perfect list scores 1",
    "hit": "is the share of people with at least one item that they chose afterwards",
    "recall": "is the share of the items that people chose afterwards which were in the list",
}
_PROTOCOLS = {"strict": "each list uses only earlier events, all known items are ranked, and newcomers count"}
_LIMITS = (
    "People who are not in the data, and people without a known group, are not described by these numbers.",
    "The choices were made under the lists that were served at the time: what was not shown was hardly chosen.",
    "Attainable means with the lists tried here. Other models, or other data, may attain more.",
    "Intervals are over people and take the system as given; they say nothing about the next season.",
)
_REGULATORS = (
    "EU AI Act, Annex IV(2)(g) and (3), for high-risk systems: tests of accuracy and of potentially discriminatory "
    "impacts, dated and signed, and the degrees of accuracy for specific groups. Recommenders of goods and films are "
    "not high-risk; those for hiring, education and credit are.",
    "EU Digital Services Act, audits under Delegated Regulation 2024/436, Art. 10: criteria and materiality threshold "
    "set before the tests, and every later change of method.",
    "New York City Local Law 144, for hiring: rate, impact ratio and counts by category and intersection, the number "
    "of people of unknown category, and categories below 2 % left out only with a reason.",
    "This report is evidence for such documents. It is not a legal opinion, a conformity assessment or an independent "
    "audit, and it says nothing about harms other than unequal quality of lists.",
)


@dataclass(frozen=True, repr=False)
class FairnessReport(ReprMixin):
    """A report to hand over; `save` writes the page or the JSON, `to_dict` returns the JSON."""

    document: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with its `schema`."""
        return dict(self.document)

    def html(self) -> str:
        """Return the page: one file without scripts, for screens and A4."""
        return render("audit.html", report=self.document, chart=_chart_range(self.document["results"]))

    def save(self, path: str | Path) -> None:
        """Write the page; a name that ends in .json gets the JSON."""
        content = (
            json.dumps(self.document, indent=2, ensure_ascii=False) if str(path).endswith(".json") else self.html()
        )
        write_file(Path(path), content.encode())

    def _summary(self) -> Summary:
        rows = [
            [row["group"], str(row["n_users"] or ""), number(row["value"]), signed(row["difference"])]
            for row in self.document["results"]
        ]
        title = "\n".join([f"Fairness report: {self.document['system']['name']}", *self.sentences()])
        return Summary(title, ["group", "users", self.document["measure"]["metric"], "to the rest"], rows)

    def sentences(self) -> list[str]:
        """Return the summary: is it good, for whom, who is behind, what can be gained, what to do."""
        return [part["answer"] for part in self.document["summary"]]


def fairness_report(
    source: Any,
    truth: Any = None,
    *,
    users: Any = None,
    group: str | None = None,
    advantaged: object = None,
    name: str | None = None,
    task: str | None = None,
    against: Runs | None = None,
    accepted_gap: float | None = None,
    materiality: float | None = None,
    declared_by: str | None = None,
) -> FairnessReport:
    """Report how well each group is served, in a form to hand to an auditor or a board.

    Parameters
    ----------
    source
        A finished run (`Run`, `Record`, a store, a file of one); a `FairRecommender`; a table or file of recommendation
        lists, as `evaluate_recommendations` takes them, or several by name, the system in question first; or what
        `evaluate` or `evaluate_recommendations` returned.
    truth
        Of a recommender, events after those that it has learned; of lists, what the users did after they were made.
        Runs need none.
    users, group, advantaged
        As for `evaluate_recommendations`; a recommender needs only `users`, and those only for new people.
    name
        The name of the system in the report.
    task
        Of a run: "next", "event" or another of its tasks; by default the first of them that it has. Of a recommender:
        "next" (the default), "event" or "moment".
    against
        Of a run: another run on the same data, such as one without a target. The report says who gained and who lost.
        By default the same model without a level.
    accepted_gap
        The largest gap that was declared acceptable before the test, in the metric.
    materiality
        The size below which a gap was declared immaterial.
    declared_by
        Who declared both, and when.

    Returns
    -------
    FairnessReport
        `save("report.html")`, `save("report.json")`, `to_dict()`; in a notebook it shows as a summary.

    Raises
    ------
    DataError
        If there are no groups, or the tables cannot be read.
    ConfigurationError
        If an option is out of range, or does not fit the source.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from fairstream import fairness_report
    >>> people = list(range(80))
    >>> lists = pa.table({"user": people, "item": ["a"] * 80, "rank": [1] * 80})
    >>> truth = pa.table({"user": people, "item": ["a"] * 50 + ["b"] * 30, "sex": ["M", "F"] * 40})
    >>> report = fairness_report(lists, truth, group="sex")
    >>> report.to_dict()["schema"], report.sentences()[3]
    ('fairstream-audit/1', 'What each group could have had cannot be determined from lists alone; give the lists of \
other systems, too, and it is the best of them.')

    """
    for option, value in (("accepted_gap", accepted_gap), ("materiality", materiality)):
        if value is not None:
            check_number(option, value, above=0, below=1)
    declared = {"accepted_gap": accepted_gap, "materiality": materiality, "declared_by": declared_by}
    reading = {"users": users, "group": group, "advantaged": advantaged}
    subject = _subject(source, truth, reading, task, against)
    return report_on(subject if name is None else _renamed(subject, name), declared)


def _renamed(subject: Subject, name: str) -> Subject:
    return Subject(**{**vars(subject), "name": name})


def _subject(source: Any, truth: Any, reading: dict[str, Any], task: str | None, against: Runs | None) -> Subject:
    is_run = isinstance(source, Record | Run | Store) or (truth is None and isinstance(source, str | Path))
    if against is not None and not is_run:
        raise ConfigurationError("against is for runs; give several lists by name to compare them")
    if is_run:
        if truth is not None or any(value is not None for value in reading.values()):
            raise ConfigurationError("a run knows its users and groups: truth, users and group are for lists")
        return of_runs(source, against, task)
    if isinstance(source, Evaluation):
        return of_evaluation(source)
    if isinstance(source, RecommendationComparison):
        return of_systems(source)
    if truth is None:
        raise ConfigurationError("the report of a recommender or of lists needs truth=: what people did afterwards")
    if isinstance(source, FairRecommender):
        if reading["group"] is not None or reading["advantaged"] is not None:
            raise ConfigurationError("a recommender knows its groups: group and advantaged are for lists")
        tested_task = task or "next"
        evaluation = source.evaluate(truth, users=reading["users"], task=tested_task)  # type: ignore[arg-type]
        model, level = source.recipe.model.name, str(source.state.level)
        facts = {"model": model, "level": level, "fairstream": __version__, "n_events": len(source.state.history)}
        return of_evaluation(
            evaluation,
            kind="recommender",
            name=f"the recommender ({model})",
            facts=facts,
            task=tested_task,
            protocol="strict",
            why_unexplained="too few people of two groups were tested",
            reproduce="fairstream.fairness_report(rec, later_events)",
        )
    if task is not None:
        raise ConfigurationError("task is for runs and recommenders: lists are tested on the whole truth")
    result = evaluate_recommendations(source, truth, **reading)
    words = [f"--{name} {reading[name]}" for name in ("users", "group", "advantaged") if isinstance(reading[name], str)]
    sources = list(source.values()) if isinstance(source, Mapping) else [source]
    is_file = all(isinstance(each, str | Path) for each in (*sources, truth))
    command = f"fairstream report {' '.join(map(str, sources))} --for audit --truth {truth} {' '.join(words)}".strip()
    python = "fairstream.fairness_report(lists, truth, users=…, group=…)"
    about: dict[str, Any] = {
        "facts": {**file_facts("lists", source), **file_facts("truth", truth)},
        "reproduce": command if is_file else python,
    }
    if isinstance(result, RecommendationComparison):
        return of_systems(result, **about)
    return of_evaluation(result, **about)


def report_on(subject: Subject, declared: Mapping[str, Any]) -> FairnessReport:
    """Return the report on a subject; `declared` has the accepted gap, the materiality, and who declared them."""
    score, explanation = subject.score, subject.explanation
    metric, _, k = subject.metric.partition("@")
    plan = {"attribute": subject.attribute, "metric": subject.metric, "task": subject.task, **declared}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "made_with": f"fairstream {__version__}",
        "system": {"kind": subject.kind, "name": subject.name, **subject.facts},
        "summary": _answers(subject, declared),
        "groups": {
            "attribute": subject.attribute,
            "advantaged": score.advantaged,
            "n_tested": subject.n_tested,
            "n_users": dict(subject.n_users),
            "n_unknown": subject.n_unknown,
            "excluded": dict(subject.excluded),
            "below_2_percent": _below_small_share(subject),
            "min_group_size": subject.min_group_size,
        },
        "measure": {
            "metric": subject.metric,
            "k": int(k) if k.isdigit() else None,
            "task": subject.task or None,
            "tested_on": task_name(subject.task),
            "protocol": subject.protocol or None,
            "n_periods": subject.n_periods,
            "how": _PROTOCOLS.get(subject.protocol),
            "why": f"{subject.metric} {_WHY.get(metric, 'was chosen by the person who ran the test')}",
        },
        "declared": {**declared, "sha256": _sha256(plan)},
        "results": _results(subject),
        "newcomers": {"n_users": subject.n_newcomers, "by_group": dict(subject.newcomers)},
        "gap": {"why_not": subject.why_unexplained} if explanation is None else explanation.to_dict(),
        "comparisons": [_comparison(name, changes, subject) for name, changes in subject.comparisons.items()],
        "trend": [dict(period) for period in subject.trend],
        "tried": {
            "lists": list(subject.tried),
            "seeds": list(subject.seeds),
            "seed_certificate": subject.certificate,
        },
        "limits": [*_LIMITS, *_own_limits(subject)],
        "regulators": list(_REGULATORS),
        "reproduce": subject.reproduce,
    }
    return FairnessReport({**document, "results_sha256": _sha256(document["results"])})


def _sha256(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _below_small_share(subject: Subject) -> list[str]:
    total = sum(n or 0 for n in subject.n_users.values())
    return [name for name, n in subject.n_users.items() if n is not None and total and 0 < n < _SMALL_SHARE * total]


def _own_limits(subject: Subject) -> list[str]:
    note = subject.score.note_on_advantaged(subject.metric)  # it advises on training
    limits = [each for each in subject.notes if note is None or not each.endswith(note)]
    if note is not None:
        limits.append(f"{subject.score.advantaged} was declared advantaged, but it is behind.")
    if "," not in subject.attribute:
        limits.append(f"Intersections of {subject.attribute} with other attributes are not in this report.")
    if subject.kind == "lists":
        limits.append("Lists do not say who is a newcomer, so newcomers are not shown apart.")
    if subject.kind == "run" and len(subject.seeds) < 2:
        limits.append("One seed was run: what another one would change is not in these intervals.")
    return limits


def _results(subject: Subject) -> list[dict[str, Any]]:
    score, explanation = subject.score, subject.explanation
    known = [mean for mean in score.by_group.values() if mean is not None]
    best = max(known, default=0.0)
    rows = [_row("everyone", subject.n_tested, score.mean, score.interval, None, None)]
    for name in ordered(list(score.by_group)):
        value = score.by_group[name]
        ratio = value / best if value is not None and best > 0 else None
        row = _row(
            name, subject.n_users.get(name), value, score.by_group_interval.get(name), score.gaps.get(name), ratio
        )
        outlook = None if explanation is None else explanation.groups.get(name)
        if outlook is not None:
            about = {"level": outlook.best_level, "is_determined": outlook.is_determined}
            row |= {"attainable": outlook.attainable, "regret": outlook.regret.to_dict() | about}
        rows.append(row)
    return rows


def _row(
    name: str,
    n_users: int | None,
    value: float | None,
    interval: tuple[float, float] | None,
    gap: Estimate | None,
    ratio: float | None,
) -> dict[str, Any]:
    return {
        "group": name,
        "n_users": n_users,
        "value": value,
        "interval": None if interval is None else list(interval),
        "difference": None if gap is None else gap.value,
        "difference_interval": None if gap is None or gap.interval is None else list(gap.interval),
        "ratio_to_best": ratio,
        "p_value": None if gap is None else gap.p_value,
        "null_mean": None if gap is None else gap.null_mean,
    }


def _comparison(name: str, changes: Mapping[str, Estimate], subject: Subject) -> dict[str, Any]:
    """Who gained and who lost, compared with other lists; a gap narrowed by losses alone is levelled down."""
    lost = [group for group, change in changes.items() if change.high < 0]
    gained = [group for group, change in changes.items() if change.low > 0]
    behind = subject.score.furthest_behind_group
    rest = {group: subject.n_users.get(group) or 1 for group in changes if group != behind}
    narrowed = 0.0
    if behind is not None and behind in changes and rest:
        narrowed = changes[behind].value - sum(n * changes[g].value for g, n in rest.items()) / sum(rest.values())
    is_levelled_down = bool(lost) and not gained and narrowed > 0
    verdict = f"{' and '.join(lost)} lost" if lost else "No group lost by more than chance"
    verdict += f"; {' and '.join(gained)} gained" if gained else "; no group gained by more than chance"
    verdict += "; the gap narrowed by that alone, which is levelling down" if is_levelled_down else ""
    by_group = {group: change.to_dict() for group, change in changes.items()}
    return {"against": name, "verdict": f"{verdict}.", "is_levelled_down": is_levelled_down, "changes": by_group}


def _answers(subject: Subject, declared: Mapping[str, Any]) -> list[dict[str, str]]:
    """The first half page, for readers who read nothing else."""
    answers = {
        "Is it good?": _on_quality(subject),
        "For whom?": _on_groups(subject),
        "Is anybody left behind?": _on_gap(subject, declared),
        "Can something be gained?": _on_gains(subject),
        "What to do?": _on_actions(subject, declared),
    }
    return [{"question": question, "answer": answer} for question, answer in answers.items()]


def _on_quality(subject: Subject) -> str:
    level = f"{subject.metric} is {number(subject.score.mean)} over {subject.n_tested:,} people"
    if subject.hit is not None and subject.task not in ("event", "moment"):
        k = subject.hit[0].rpartition("@")[2]
        share = percent(subject.hit[1])
        level = f"For {share} of people, the list of {k} held something that they chose afterwards ({level})"
    words = sentence(level)
    if subject.baselines and subject.score.mean is not None:
        best = max(subject.baselines, key=lambda name: subject.baselines[name])
        value = subject.baselines[best]
        side = "more" if value > subject.score.mean else "less"
        words += f" For comparison, {best} reaches {number(value)}, which is {side}."
    return words


def _on_groups(subject: Subject) -> str:
    means = {name: mean for name, mean in subject.score.by_group.items() if mean is not None}
    if len(means) < 2:
        return "Fewer than two groups have enough tested people, so groups cannot be compared."
    best, worst = max(means, key=lambda name: means[name]), min(means, key=lambda name: means[name])
    share = means[worst] / means[best] if means[best] > 0 else 1.0
    return (
        f"{best} is served best ({number(means[best])}), {worst} worst ({number(means[worst])}), which is "
        f"{percent(share)} of the best."
    )


def _on_gap(subject: Subject, declared: Mapping[str, Any]) -> str:
    gap, group = subject.score.gap, subject.score.furthest_behind_group
    if gap is None or group is None:
        return "That cannot be determined: too few people of two groups were tested."
    lead = "Not that these data show: " if gap.may_be_chance else ""
    size = f"{lead}{group} is {number(gap.value)} behind the rest"
    size += f" (95 % interval {between(gap.interval, is_signed=True)})" if gap.interval else ""
    if gap.may_be_chance:
        size += ", which may be chance"
    elif gap.p_value is not None:
        size += ", more than chance explains"
    accepted, materiality = declared["accepted_gap"], declared["materiality"]
    if materiality is not None and gap.value < materiality:
        return f"{size}. That is below the materiality threshold of {materiality:g}."
    if accepted is None:
        return f"{size}. Nobody declared which gap is acceptable."
    side = "within" if gap.value <= accepted else "above"
    doubt = ""
    if gap.interval and gap.low <= accepted <= gap.high:
        doubt = ", although the interval leaves room for doubt"
    return f"{size}. That is {side} the accepted gap of {accepted:g}{doubt}."


def _gaining(explanation: GapExplanation) -> list[str]:
    return [name for name, one in explanation.groups.items() if one.gains]


def _on_gains(subject: Subject) -> str:
    explanation = subject.explanation
    if explanation is None:
        return f"What each group could have had {_undetermined(subject.why_unexplained)}."
    words = []
    for name in _gaining(explanation):
        one = explanation.groups[name]
        how = f" with {one.best_lists}" if one.best_lists else ""
        more = percent(one.attainable / max(one.served, 1e-12) - 1)
        words.append(f"{name} could be served {more} better{how}")
    if not words:
        words.append("No group could be served better by more than chance with the lists tried")
    gap, inherent = explanation.gap.value, explanation.inherent
    if inherent > gap + 5e-5:
        words.append(f"the gap would then be {number(inherent)}")
    elif gap > 0:
        words.append(f"{number(max(0.0, inherent))} of the gap of {number(gap)} would remain")
    return f"{'; '.join(words)}."


def _undetermined(why: str) -> str:
    return why if why.startswith(UNDETERMINED) else f"{UNDETERMINED}: {why}"


def _on_actions(subject: Subject, declared: Mapping[str, Any]) -> str:
    gap, explanation, accepted = subject.score.gap, subject.explanation, declared["accepted_gap"]
    if gap is None:
        return "Test more people of each group, and make the report again."
    if explanation is not None and (gaining := _gaining(explanation)):
        return _raise(" and ".join(gaining), subject)
    if gap.may_be_chance or (accepted is not None and gap.value <= accepted):
        return "Nothing now; make the report again with the next data."
    if explanation is None:
        behind = subject.score.furthest_behind_group
        return f"Test an alternative on the same people, to see whether {behind} can be raised."
    return (
        f"Do not narrow the gap by serving others worse. Better data or a better model for {explanation.behind} is "
        f"needed: none of the lists tried raises it by more than chance."
    )


def _raise(groups: str, subject: Subject) -> str:
    if subject.facts.get("target") == "least-regret":
        now = (subject.trend[-1].get("level") if subject.trend else None) or "none"
        return f"Keep the target of least regret, which raises {groups} as far as past data allow (level now: {now})."
    how = "a target of least regret does that"
    if subject.kind == "lists":
        how = "move towards the lists that serve it best"
    return f"Raise {groups}: {how}, as long as no other group loses."


def _chart_range(rows: list[dict[str, Any]]) -> float:
    """The right end of the small charts in the table."""
    ends = [end for row in rows for end in (row["value"], (row["interval"] or [0, 0])[1], row.get("attainable"))]
    return 1.05 * max((end for end in ends if end is not None), default=1.0) or 1.0
