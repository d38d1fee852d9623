"""`fairstream demo`: the whole idea on a stream that is made on the spot."""

from __future__ import annotations

from typing import Annotated

import typer

from fairstream.cli.console import make_console
from fairstream.cli.progress import RunProgress
from fairstream.cli.tables import Document, method_table
from fairstream.data import ADVANTAGED, read_events, synthetic_stream
from fairstream.experiments import Run, RunConfig

METHODS = ("Pretrain", "Retrain", "Finetune", "FADE")
TASK, METRIC = "remain", "ndcg@20"
# Few dimensions: only where a model has too little room for everybody is there anything to share out.
SETTINGS = {"pretrain_epochs": 20, "embedding_dim": 8, "fairness_weight": 0.75, "temperature": 1.0}


def demo(
    seed: Annotated[int, typer.Option(help="Seed of the stream and of the training.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Show on a synthetic stream how a disparity opens up, and what FADE does about it.

    Taste drifts from period to period, new users and items arrive, and one community is smaller
    and likes other things. Four methods go through the same stream.
    """
    console = make_console(quiet=quiet)
    stream = synthetic_stream(seed=seed)
    log = read_events(stream.events, users=stream.users, group="community", advantaged="majority")
    n_minority = int((log.require_groups().codes != ADVANTAGED).sum())
    console.print(
        f"A synthetic stream: {len(log):,} events, {log.n_users:,} users ({n_minority} of them in the minority), "
        f"{log.n_items} items, drifting taste.",
        highlight=False,
    )
    runs = [
        Run(log, RunConfig(method=method, tasks=(TASK,), seed=seed, device=device, **SETTINGS)) for method in METHODS
    ]
    with RunProgress(quiet=quiet) as progress:
        for job in runs:
            progress.follow(job)
    documents = [job.document() for job in runs]
    console.print(method_table(documents, TASK, METRIC))
    console.print(verdict(documents[METHODS.index("Finetune")], documents[METHODS.index("FADE")]), highlight=False)


def verdict(finetune: Document, fade: Document) -> str:
    """What the table shows, in one sentence that follows from its numbers."""
    plain, fair = (document["summary"][TASK][METRIC] for document in (finetune, fade))
    gap = _change(fair["abs_performance_disparity"], plain["abs_performance_disparity"])
    cost = _change(fair["mean"], plain["mean"])
    minority = fade["data"]["groups"][1]
    group = _change(fair["by_group"][minority], plain["by_group"][minority])
    return (
        f"Next to plain fine-tuning, FADE {_moved(gap, 'the disparity')}, "
        f"{_moved(group, f'the quality for the {minority}')} and {_moved(cost, 'the overall quality')}."
    )


def _change(new: float, old: float) -> float:
    return (new - old) / old


def _moved(change: float, what: str) -> str:
    if abs(change) < 0.005:
        return f"leaves {what} as it is"
    return f"{'raises' if change > 0 else 'lowers'} {what} by {abs(change):.0%}"
