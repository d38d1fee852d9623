"""How many threads are used: by affinity and quota, and without a change for anybody else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from fairstream import ConfigurationError, EventLog, Training
from fairstream.threads import (
    MAX_TRAINING_THREADS,
    _quota,
    available_cores,
    inference_threads,
    limit_threads,
    training_threads,
)
from support import make_recommender


@pytest.fixture
def three() -> Iterator[None]:
    """PyTorch has three threads in this test."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000", "slice/cpu.max": "300000 100000", "slice/own/cpu.max": "max 100000"}, 3.0),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "200000"}, 2.0),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
    ids=["v2, of a slice", "v2", "v1", "v2 without", "v1 without", "no cgroups"],
)
def test_the_quota_of_a_container_is_read(files: dict[str, str], cores: float | None, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"{content}\n")
    assert _quota(tmp_path, "slice/own") == (float(sys.maxsize) if cores is None else cores)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinities on this system")
def test_a_process_that_may_use_one_core_uses_one_thread() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {next(iter(os.sched_getaffinity(0)))});"
        "from fairstream.threads import available_cores; print(available_cores())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.usefixtures("three")
def test_a_limit_holds_in_the_block_and_in_this_thread_alone() -> None:
    with ThreadPoolExecutor(1) as pool:
        with limit_threads(1):
            assert torch.get_num_threads() == 1
            assert pool.submit(torch.get_num_threads).result() == 3  # a thread that PyTorch had not seen before
            with limit_threads(2):
                assert torch.get_num_threads() == 2
            assert torch.get_num_threads() == 1
        with pytest.raises(KeyError), limit_threads(2):
            raise KeyError
        assert torch.get_num_threads() == pool.submit(torch.get_num_threads).result() == 3


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("n_cores", [1, 2, 3, 4, 8, 64])
def test_training_leaves_half_of_the_cores_to_others(n_cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairstream.threads.available_cores", lambda: n_cores)
    assert inference_threads("auto") == min(3, n_cores)
    assert training_threads("auto") == max(1, min(3, n_cores // 2, MAX_TRAINING_THREADS))
    assert (inference_threads(7), training_threads(7)) == (7, 7)


@pytest.mark.few(2)
@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("threads", ["auto", 2])
@pytest.mark.parametrize("model", ["mf", "sasrec", "blend"])
def test_a_recommender_trains_with_its_threads_and_changes_nothing_else(
    model: str, threads: Any, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairstream.threads.available_cores", lambda: 2)
    seen: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as pool:

        def look(_done: int, _total: int) -> None:
            seen.append((torch.get_num_threads(), pool.submit(torch.get_num_threads).result()))

        rec = make_recommender(
            model, threads=threads, pretrain_epochs=1, update_epochs=1, embedding_dim=4, device="cpu"
        )
        rec.fit(log, on_epoch=look)
    assert set(seen) == {(1 if threads == "auto" else 2, 3)}
    rec.recommend([1, 2])
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "all"])
def test_a_wrong_number_of_threads_is_one_sentence(threads: Any) -> None:
    with pytest.raises(ConfigurationError, match="threads must be 'auto' or a whole number from 1 on, got"):
        Training(threads=threads)


@pytest.mark.few(1)
@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE"}], ids=["default", "given"])
def test_commands_let_waiting_threads_sleep_unless_told_otherwise(given: dict[str, str]) -> None:
    code = (
        "import os, sys; from fairstream.cli import main; sys.argv = ['fairstream', '--version']\n"
        "try: main()\n"
        "except SystemExit: print(os.environ['OMP_NUM_THREADS'], os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **given}, capture_output=True, text=True, check=True
    )
    wanted = tuple(given.values()) or (str(available_cores()), "PASSIVE")
    assert ran.stdout.splitlines()[-1].split() == [*wanted, "False"]
