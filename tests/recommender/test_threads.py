"""Trainings in several threads: nothing that belongs to the whole process is changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch

from fairstream import EventLog, FairRecommender, SyntheticStream, read_events
from support import make_recommender

pytestmark = pytest.mark.slow

FAST: dict[str, Any] = {"pretrain_epochs": 2, "embedding_dim": 4, "batch_size": 256, "device": "cpu"}


def weights(rec: FairRecommender) -> dict[str, torch.Tensor]:
    return dict(rec.state.model.state_dict())


@pytest.mark.parametrize("options", [{"model": "ncf"}, {"model": "mf"}], ids=str)
def test_fits_in_threads_are_those_one_after_the_other(stream: SyntheticStream, options: dict[str, Any]) -> None:
    """All draw their first weights from the global generator."""
    barrier, log = Barrier(4), read_events(stream.events.slice(0, 800), users=stream.users, group="community")

    def fitted(seed: int, *, wait: bool) -> dict[str, torch.Tensor]:
        if wait:
            barrier.wait()
        return weights(make_recommender(seed=seed, **{"model": "mf", **FAST, **options}).fit(log))

    alone = [fitted(seed, wait=False) for seed in range(4)]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: fitted(seed, wait=True), range(4)))
    for ours, theirs in zip(together, alone, strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_overlapping_trainings_leave_the_number_of_threads_alone(log: EventLog, engine: Any) -> None:
    """The first to begin ends first, so that whoever put a number back would put back the other's."""
    first_began, first_ended = Barrier(2), Barrier(2)
    seen: list[int] = []

    def first(done: int, total: int) -> None:
        seen.append(torch.get_num_threads())
        if done == 1:
            first_began.wait()

    def second(done: int, total: int) -> None:
        if done == 1:
            first_ended.wait()
        seen.append(torch.get_num_threads())

    def run_second() -> None:
        first_began.wait()
        make_recommender("mf", engine=engine, threads=1, **FAST).fit(log, on_epoch=second)

    n_before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(run_second)
            make_recommender("mf", engine=engine, threads=1, **FAST).fit(log, on_epoch=first)
            first_ended.wait()
            other.result()
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(n_before)
