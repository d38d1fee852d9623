"""The explanations that a finished run holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Explained, Explanation
from fairstream.experiments.record import Record
from fairstream.experiments.store import Store

_N_NAMED = 6


def explain_run(path: Path, *, task: str | None = None, metric: str | None = None, t: int | None = None) -> Explained:
    """Read why a run's results moved, of a run that was made with `explain`.

    Parameters
    ----------
    path
        What `--json` wrote, a run file of a store, or a store with one run.
    task
        event or next; by default the first of the run's.
    metric
        NAME@K; by default the first of the run's.
    t
        The period, by its update; by default the last.

    Returns
    -------
    Explained
        Everything that there is to tell.

    Raises
    ------
    DataError
        If this is not one finished run, or it was made without `explain`.
    ConfigurationError
        If it has no such task, metric or period.

    """
    record = _only(path) if path.is_dir() else Record.read(path)
    stored = {result["t"]: result["explanation"] for result in record.about["periods"] if "explanation" in result}
    if not stored:
        raise DataError(
            f"{path} does not hold what an explanation needs; make the run again with `fairstream run … --explain`"
        )
    last = stored[max(stored)]
    task = _chosen("task", task, list(last))
    metric = _chosen("metric", metric, list(last[task]))
    found = {
        at: Explanation.from_dict(tasks[task][metric])
        for at, tasks in sorted(stored.items())
        if metric in tasks.get(task, {})
    }
    t = max(found) if t is None else t
    if t not in found:
        raise ConfigurationError(f"period must be one of {', '.join(map(str, found))}, got {t}")
    config = record.config
    return Explained(
        name=f"{config['method']} ({config['model']}, seed {config['seed']})",
        group=record.about["data"]["group"],
        metric=metric,
        task=task,
        t=t,
        tested=(f"the model of period {t - 1} on period {t}", f"the model of period {t} on period {t + 1}"),
        periods=found,
        notes=() if config["n_resamples"] else ("The run was made without resampling, so there are no intervals.",),
    )


def _only(folder: Path) -> Record:
    store = Store.opened(folder)
    ids = store.ids()
    if len(ids) == 1:
        return store.read(ids[0])
    records = {store.path(name): store.read(name) for name in ids[:_N_NAMED]}
    named = "; ".join(f"{path} ({record.config['method']}, seed {record.seed})" for path, record in records.items())
    more = f" and {len(ids) - _N_NAMED} more" if len(ids) > _N_NAMED else ""
    raise DataError(f"{folder} has {len(ids)} runs; give the file of one of them{': ' if named else ''}{named}{more}")


def _chosen(what: str, name: str | None, there: Sequence[str]) -> str:
    if name is None:
        return there[0]
    if name not in there:
        raise ConfigurationError(f"{what} must be one of {', '.join(there)}, got {name!r}")
    return name
