"""`fairstream demo`: histories, updates and fairness on a synthetic stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairstream.cli.console import Output
from fairstream.cli.options import Device, Seed
from fairstream.cli.progress import WorkProgress
from fairstream.data import ADVANTAGED, read_events, synthetic_stream
from fairstream.experiments import Run, RunConfig, compare
from fairstream.pages.score_tables import Document, method_table

TASK, METRIC = "event", "ndcg@20"
POPULAR, FACTORS = "recent popularity", "MF, updated"
KEPT, UPDATED, FAIR = "blend, kept", "blend, updated", "blend, fair"
SETTINGS: dict[str, dict[str, Any]] = {
    POPULAR: {"model": "recent-popularity", "method": "Finetune"},
    FACTORS: {"model": "mf", "method": "Finetune", "pretrain_epochs": 20},
    KEPT: {"method": "Pretrain", "pretrain_epochs": 6},
    UPDATED: {"method": "Finetune", "pretrain_epochs": 6},
    FAIR: {"method": "FADE", "pretrain_epochs": 6, "fairness_weight": 0.5, "group_weight": 4.0},
}


def demo(seed: Seed = 0, device: Device = "auto", *, output: Output) -> None:
    """Show on a synthetic stream what histories, updates and fairness are worth.

    Taste drifts from period to period, new users and items arrive, and one community is smaller
    and likes other things. Each model sees the same stream and predicts every event.
    """
    stream = synthetic_stream(seed=seed)
    log = read_events(stream.events, users=stream.users, group="community", advantaged="majority")
    n_minority = int((log.require_groups().codes != ADVANTAGED).sum())
    output.print(
        f"A synthetic stream: {len(log):,} events, {log.n_users:,} users ({n_minority} of them in the minority), "
        f"{log.n_items} items, drifting taste."
    )
    runs = {
        name: Run(log, RunConfig(tasks=(TASK,), seed=seed, device=device, **settings))
        for name, settings in SETTINGS.items()
    }
    with WorkProgress(quiet=output.quiet) as progress:
        for name, job in runs.items():
            progress.follow(job, name)
    documents = {name: job.document() for name, job in runs.items()}
    output.print(method_table(documents, compare(runs.values(), task=TASK, metric=METRIC)))
    output.print(*verdict(documents))
    runs_by_name = {name: {"config": each["config"], "summary": each["summary"]} for name, each in documents.items()}
    output.write({"runs": runs_by_name, "verdicts": verdict(documents)})


def verdict(documents: Mapping[str, Document]) -> list[str]:
    """Return what the table shows, in sentences computed from its numbers."""
    scores = {name: document["summary"][TASK][METRIC] for name, document in documents.items()}
    newcomers = {name: document["slices"][TASK]["cold_users"][METRIC]["mean"] for name, document in documents.items()}
    best = max((POPULAR, FACTORS), key=lambda name: scores[name]["mean"])
    fair, plain = scores[FAIR], scores[UPDATED]
    minority = list(plain["by_group"])[1]
    read = _moved(plain["mean"], scores[best]["mean"], "the quality for everyone")
    read_new = _moved(newcomers[UPDATED], newcomers[best], "that for newcomers")
    updates = _moved(plain["mean"], scores[KEPT]["mean"], "the quality")
    gap = _moved(fair["abs_performance_disparity"], plain["abs_performance_disparity"], "the disparity")
    group = _moved(fair["by_group"][minority], plain["by_group"][minority], f"the quality for the {minority}")
    cost = _moved(fair["mean"], plain["mean"], "the overall quality")
    down = f" That levels down: the {minority} is no better off, and others lose more."
    is_down = fair["by_group"][minority] <= plain["by_group"][minority]
    return [
        f"Reading histories, next to {best}, {read} and {read_new}.",
        f"Updating, next to keeping the model, {updates}.",
        f"Fairness, next to plain updates, {gap}, {group} and {cost}.{down if is_down else ''}",
    ]


def _moved(new: float, old: float, what: str) -> str:
    change = (new - old) / old
    if abs(change) < 0.005:
        return f"leaves {what} as it is"
    return f"{'raises' if change > 0 else 'lowers'} {what} by {abs(change):.0%}"
