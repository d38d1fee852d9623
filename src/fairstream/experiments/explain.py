"""The explanations of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import GapExplanation, GroupScores
from fairstream.evaluation.gap import NO_LEVELS, explain_tests
from fairstream.experiments.record import Record
from fairstream.experiments.store import Store
from fairstream.models import Level
from fairstream.tools.explain import Explained, Explanation


def explain_run(path: Path, *, task: str | None = None, metric: str | None = None, t: int | None = None) -> Explained:
    """Read why a run's results moved: of the last period, the first task and the first metric, unless named.

    `path` is what `--json` wrote, a run file of a store, or a store with one run; the run was made with `explain`,
    else DataError. Raises ConfigurationError if it has no such task, metric or period.
    """
    record = read_one(path)
    stored = {result["t"]: result["explanation"] for result in record.about["periods"] if "explanation" in result}
    if not stored:
        raise DataError(
            f"{path} does not hold what an explanation needs; make the run again with `fairstream run … --explain`"
        )
    last = stored[max(stored)]
    task = _chosen("task", task, list(last))
    metric = _chosen("metric", metric, list(last[task]))
    explanations = {
        at: Explanation.from_dict(tasks[task][metric])
        for at, tasks in sorted(stored.items())
        if metric in tasks.get(task, {})
    }
    t = max(explanations) if t is None else t
    if t not in explanations:
        raise ConfigurationError(f"period must be one of {', '.join(map(str, explanations))}, got {t}")
    config = record.config
    return Explained(
        name=f"{config['method']} ({config['model']}, seed {config['seed']})",
        group=record.about["data"]["group"],
        metric=metric,
        task=task,
        t=t,
        tested=(f"the model of period {t - 1} on period {t}", f"the model of period {t} on period {t + 1}"),
        periods=explanations,
        notes=() if config["n_resamples"] else ("The run was made without resampling, so there are no intervals.",),
    )


def explain_gap(record: Record, *, task: str | None = None) -> GapExplanation:
    """Say why the group furthest behind is behind in a run: in its main metric, averaged over the periods.

    `task` is by default the first that was tested at levels. Raises DataError if the run has no groups, or no levels;
    ConfigurationError if it has no such task.
    """
    summary, config, data = record.about["summary"], record.config, record.about["data"]
    name = record.metrics[0]
    scores = {each: GroupScores.from_dict(by_metric[name]) for each, by_metric in summary.items()}
    first = next((each for each, score in scores.items() if score.regret), next(iter(scores)))
    task = first if task is None else _chosen("task", task, list(scores))
    if not scores[task].regret and scores[task].gap is not None:
        tasks = [each for each, score in scores.items() if score.regret]
        what = f"choose the task {' or '.join(tasks)}" if tasks else "make the run again with the protocol strict"
        raise DataError(f"in the task {task} of this run {NO_LEVELS}; {what}")
    levels = {tuple(result["level"]) for result in record.about["periods"] if result.get("level")}
    moved = "the levels in force changed from period to period" if len(levels) > 1 else ""
    return explain_tests(
        scores[task],
        record.tested(task),
        record.metric(name),
        data["groups"],
        min_size=config["min_group_size"],
        n_resamples=config["n_resamples"],
        attribute=data["group"] or "",
        task=task,
        level=str(Level(*levels.pop())) if len(levels) == 1 else None,
        notes=(moved,) if moved else (),
    )


def read_one(path: Path) -> Record:
    """Read what `--json` wrote, a run file of a store, or a store with one run."""
    return _only(path) if path.is_dir() else Record.read(path)


def _only(folder: Path) -> Record:
    store = Store.opened(folder)
    if len(ids := store.ids()) == 1:
        return store.read(ids[0])
    runs = {store.path(name): store.read(name) for name in ids[:6]}
    some = [f"{path} ({run.config['method']}, seed {run.seed})" for path, run in runs.items()]
    more = ["…"] if len(ids) > len(runs) else []
    raise DataError(f"{folder} has {len(ids)} runs; give the file of one of them: {', '.join([*some, *more])}")


def _chosen(what: str, name: str | None, available: Sequence[str]) -> str:
    if name is None:
        return available[0]
    if name not in available:
        raise ConfigurationError(f"{what} must be one of {', '.join(available)}, got {name!r}")
    return name
