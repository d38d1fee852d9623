"""What a fairness report is about: a run, an evaluation of a recommender, or the lists of any system."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairstream.data import UNKNOWN
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import (
    Estimate,
    Evaluation,
    GapExplanation,
    GroupScores,
    RecommendationComparison,
    seed_certificate,
)
from fairstream.evaluation.gap import explain_scores
from fairstream.evaluation.regret import LevelPanel, with_regret
from fairstream.experiments import Record, RunConfig, by_label
from fairstream.experiments.compare import Runs
from fairstream.experiments.config import TASK_NAMES
from fairstream.experiments.explain import explain_gap
from fairstream.models import NO_LEVEL, Level

FROM_LISTS = "cannot be determined from lists alone; give the lists of other systems, too, and it is the best of them"
_SCALARS = (bool, int, float, str)


@dataclass(frozen=True)
class Subject:
    """One system, its scores, and everything else that a report needs."""

    kind: str  # run, recommender, lists or workspace
    name: str
    metric: str
    score: GroupScores
    attribute: str
    n_users: Mapping[str, int | None]  # tested users of each group
    n_tested: int
    facts: Mapping[str, Any] = field(default_factory=dict)  # version, hashes, settings
    task: str = ""
    protocol: str = ""
    n_periods: int = 1
    n_unknown: int | None = None  # tested users without a group
    excluded: Mapping[str, int | None] = field(default_factory=dict)  # groups with too few tested users
    min_group_size: int | None = None
    hit: tuple[str, float] | None = None  # the metric hit@k
    baselines: Mapping[str, float] = field(default_factory=dict)
    newcomers: Mapping[str, float | None] = field(default_factory=dict)
    n_newcomers: float | None = None
    explanation: GapExplanation | None = None
    why_unexplained: str = FROM_LISTS
    comparisons: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    """Other lists → the change of each group from them to the ones in this report."""
    trend: Sequence[Mapping[str, Any]] = ()
    tried: Sequence[str] = ()
    seeds: Sequence[int] = ()
    certificate: float | None = None
    notes: Sequence[str] = ()
    reproduce: str = ""


def of_runs(runs: Runs, against: Runs | None, task: str | None) -> Subject:
    """The subject of one run, or of several that differ only in their seed; `against` is a run to compare with."""
    labels, _, _ = by_label(runs)
    if len(labels) > 1:
        raise ConfigurationError(
            f"a fairness report is about one system, got {len(labels)}: {', '.join(labels)}; give one run, and another "
            f"as against="
        )
    ((label, records),) = labels.items()
    records = sorted(records, key=lambda each: each.seed)
    record, config, data = records[0], records[0].config, records[0].about["data"]
    if not data["groups"]:
        raise DataError(
            "the run was made without groups, so there is nothing to report on; make it with --group COLUMN"
        )
    metric, summary = record.metrics[0], record.about["summary"]
    scores = {each: GroupScores.from_dict(by_metric[metric]) for each, by_metric in summary.items()}
    if task is None:
        task = next((each for each in ("next", "event", "moment") if each in scores), next(iter(scores)))
    if task not in scores:
        raise ConfigurationError(f"task must be one of {', '.join(scores)}, got {task!r}")
    score, tested = scores[task], record.tested(task)
    try:
        explanation, why = explain_gap(record, task=task), ""
    except DataError as error:
        explanation, why = None, str(error)
    users = np.concatenate([part.users for part in tested])
    codes = np.concatenate([part.codes for part in tested])[np.unique(users, return_index=True)[1]]
    n_users = {name: int((codes == code).sum()) for code, name in enumerate(data["groups"])}
    hit = next((name for name in summary[task] if name.startswith("hit@")), None)
    cold = record.about["slices"].get(task, {}).get("cold_users", {})
    baselines = {
        name: part["summary"][task][metric]["mean"]
        for name, part in record.about.get("baselines", {}).items()
        if metric in part["summary"].get(task, {})
    }
    gaps = [_gap_size(GroupScores.from_dict(each.about["summary"][task][metric])) for each in records]
    known = [gap for gap in gaps if gap is not None]
    facts = {
        "model": config["model"],
        "method": config["method"],
        "target": config.get("target"),
        "fairstream": record.about["versions"].get("fairstream"),
        "data": data["name"],
        "n_events": data["n_events"],
        "data_sha256": data["sha256"],
        "settings": dict(record.settings),
    }
    levels = [level for part in tested for level in part.levels if level != NO_LEVEL]
    return Subject(
        "run",
        f"{label} ({config['model']}) on {data['name'] or 'events'}",
        metric,
        score,
        data["group"],
        n_users,
        len(codes),
        facts,
        task,
        config["protocol"],
        len(tested),
        int((codes == UNKNOWN).sum()),
        {name: n for name, n in n_users.items() if n and score.by_group.get(name) is None},
        config["min_group_size"],
        None if hit is None else (hit, summary[task][hit]["mean"]),
        {name: mean for name, mean in baselines.items() if mean is not None},
        cold.get(metric, {}).get("by_group", {}),
        cold.get("n_users"),
        explanation,
        why,
        _run_comparisons(record, against, task, metric),
        [_period(result, task, metric) for result in record.about["periods"] if task in result["tasks"]],
        list(dict.fromkeys(map(str, levels))),
        [each.seed for each in records],
        seed_certificate(known) if len(known) > 1 else None,
        [note for note in record.about.get("notes", ()) if not _is_on_another_task(note, task)],
        _command(record),
    )


def _is_on_another_task(note: str, task: str) -> bool:
    return note.startswith("on the task ") and not note.startswith(f"on the task {task},")


def _gap_size(score: GroupScores) -> float | None:
    return None if score.gap is None else score.gap.value


def _period(result: Mapping[str, Any], task: str, metric: str) -> dict[str, Any]:
    level = str(Level(*result["level"])) if result.get("level") else None
    return trend_row(result["t"], GroupScores.from_dict(result["tasks"][task][metric]), level)


def trend_row(t: int, score: GroupScores, level: str | None) -> dict[str, Any]:
    """A period of a subject's trend."""
    gap = score.gap
    return {
        "t": t,
        "mean": score.mean,
        "by_group": dict(score.by_group),
        "behind": score.furthest_behind_group,
        "gap": None if gap is None else gap.value,
        "p_value": None if gap is None else gap.p_value,
        "level": level,
    }


def _run_comparisons(record: Record, against: Runs | None, task: str, metric: str) -> dict[str, Mapping[str, Estimate]]:
    """The change of each group from another run, or from the lists without a level."""
    tested, names, size = record.tested(task), record.about["data"]["groups"], record.config["min_group_size"]
    measure = record.metric(metric)
    if against is None:
        panel = LevelPanel.of(tested, measure, names, size)
        return {} if panel is None else {"the same model without a level": _changes(panel, NO_LEVEL)}
    labels, _, _ = by_label(against)
    others = [each for records in labels.values() for each in records]
    other = next((each for each in others if each.seed == record.seed), others[0])
    if len(labels) > 1 or task not in other.tasks or metric not in other.metrics:
        raise ConfigurationError(f"against must be one run with {metric} in the task {task}, got {', '.join(labels)}")
    label, values = next(iter(labels)), []
    for own, their in zip(tested, other.tested(task), strict=False):
        if not np.array_equal(own.users, their.users):
            raise DataError("against must be a run on the same events and periods: it tested other users")
        values.append(((label,), their.values_of(measure)[:, None]))
    if len(values) != len(tested):
        raise DataError("against must be a run on the same events and periods: it has other periods")
    panel = LevelPanel.of_alternatives(tested, values, measure, names, size)
    return {} if panel is None else {label: _changes(panel, label)}


def _changes(panel: LevelPanel, since: Level | str) -> dict[str, Estimate]:
    return {name: panel.change(name, None, since) for name in panel.sizes()}


def _command(record: Record) -> str:
    """The command that repeats a run; options at their defaults are left out."""
    config, data = record.config, record.about["data"]
    default = RunConfig(model=config["model"], method=config["method"], target=config.get("target") or "none")
    words = ["fairstream", "run", data["name"] or "DATA", "--group", data["group"]]
    words += ["--advantaged", data["advantaged"]] if data.get("advantaged_by") == "declared" else []
    words += ["--model", config["model"], "--method", config["method"], "--seed", str(config["seed"])]
    skipped = {"model", "method", "seed", "device", "engine", "threads", "explain", "pretrain_ratio", "n_periods"}
    for name, value in config.items():
        if name in skipped or not isinstance(value, _SCALARS) or not hasattr(default, name):
            continue
        if name == "target" or getattr(default, name) != value:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def of_evaluation(evaluation: Evaluation, *, kind: str = "lists", name: str = "the lists", **about: Any) -> Subject:
    """The subject of an evaluation."""
    metric, score = next(iter(evaluation.metrics.items()))
    if evaluation.group is None:
        raise DataError("there are no groups, so there is nothing to report on; name a column with group=")
    explanation = None
    if score.regret:
        explanation = evaluation.explain_gap()
    hit = next((each for each in evaluation.metrics if each.startswith("hit@")), None)
    cold = evaluation.slices.get("cold_users")
    tried, comparisons = list[str](), dict[str, Mapping[str, Estimate]]()
    if explanation is not None:
        tested = replace(evaluation.tested, values={**evaluation.tested.values, **evaluation.values})
        names, sizes = list(evaluation.n_users_by_group), evaluation.n_users_by_group
        panel = LevelPanel.of([tested], metric, names, min(sizes[group] for group in score.gaps))
        tried = [str(level) for level in tested.levels if level != NO_LEVEL]
        comparisons = {} if panel is None else {"the same model without a level": _changes(panel, NO_LEVEL)}
    return Subject(
        kind,
        name,
        metric,
        score,
        evaluation.group,
        dict(evaluation.n_users_by_group),
        evaluation.n_users,
        n_unknown=int((evaluation.tested.codes == UNKNOWN).sum()),
        excluded=dict(evaluation.excluded_groups),
        hit=None if hit is None else (hit, evaluation[hit].mean or 0.0),
        newcomers={} if cold is None else dict(cold[metric].by_group),
        n_newcomers=evaluation.n_cold_users,
        **{
            "explanation": explanation,
            "notes": evaluation.notes,
            "tried": tried,
            "comparisons": comparisons,
            **about,
        },
    )


def of_systems(comparison: RecommendationComparison, **about: Any) -> Subject:
    """The subject of the first of several systems; what each group could have had is the best of all of them."""
    (first, own), *others = comparison.systems.items()
    metric, score = next(iter(own.metrics.items()))
    sizes = own.n_users_by_group
    min_size = min((sizes[group] for group in score.gaps), default=1)
    tested = replace(own.tested, values={**own.tested.values, **own.values})
    names, values = tuple(name for name, _ in others), np.column_stack([each.values[metric] for _, each in others])
    panel = LevelPanel.of_alternatives([tested], [(names, values)], metric, list(sizes), min_size)
    explanation, changes = None, dict[str, Mapping[str, Estimate]]()
    if panel is not None:
        n_resamples = 1000 if score.interval else 0
        scored = with_regret(score, panel, np.random.default_rng(0), n_resamples)
        explanation = explain_scores(scored, panel, metric=metric, n_resamples=n_resamples, attribute=own.group or "")
        own = replace(own, metrics={**own.metrics, metric: scored})
        changes = {name: _changes(panel, name) for name in names}
    tried = [f"the lists of {name}" for name in names]
    subject = of_evaluation(replace(own, metrics={m: replace(s, regret={}) for m, s in own.metrics.items()}), **about)
    why = "too few people of two groups were tested" if explanation is None else ""
    name = about.get("name", first)
    return replace(
        subject,
        name=name if name != "the lists" else first,
        score=own.metrics[metric],
        explanation=explanation,
        why_unexplained=why,
        comparisons=changes,
        tried=tried,
        baselines={name: mean for name, each in others if (mean := each[metric].mean) is not None},
    )


def file_facts(what: str, source: Any) -> dict[str, Any]:
    """The hash of a file, or of several by name; nothing for a table in memory."""
    if isinstance(source, Mapping):
        return {key: value for name, each in source.items() for key, value in file_facts(name, each).items()}
    if not isinstance(source, str | Path) or not Path(source).is_file():
        return {}
    with Path(source).open("rb") as file:
        return {f"{what}_sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def task_name(task: str) -> str:
    """What was tested, in words."""
    return TASK_NAMES.get(task, "what people did after the lists were made")
