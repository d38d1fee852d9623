"""The number of threads, on machines and in containers that run other processes, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

Threads = int | Literal["auto"]  # a number of threads, or "auto"
MAX_TRAINING_THREADS = 4
"""More threads hardly speed up a step of gradient descent: on 16 cores, 4 take half the time of 1, and 16 no less."""
_CGROUPS = Path("/sys/fs/cgroup")


@cache
def available_cores() -> int:
    """Return the number of cores that the affinity and the CPU quota of the container allow this process."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    n_cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min(n_cores, int(_quota(_CGROUPS, _own_cgroup()))))


def _own_cgroup() -> str:
    """Return the path of this process below the root of cgroups v2; empty in most containers."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return ""
    return next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), "")


def _quota(root: Path, own: str = "") -> float:
    """Return the CPU quota in cores: the smallest of this cgroup and those above it; huge if none has one."""
    folders = [root / own, *(folder for folder in (root / own).parents if folder.is_relative_to(root))]
    files: list[tuple[Path, ...]] = [(folder / "cpu.max",) for folder in folders]  # v2
    files += [(root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us")]  # v1
    quotas = [float(sys.maxsize)]
    for names in files:
        try:
            quota, period = (int(word) for name in names for word in name.read_text().split())
        except (OSError, ValueError):  # no such file, or "max 100000"
            continue
        quotas += [quota / period] if quota > 0 else []
    return min(quotas)


def inference_threads(threads: Threads) -> int:
    """Return the threads for scores, lists and closed forms; "auto" never exceeds PyTorch's own number."""
    import torch  # noqa: PLC0415 (slow to import, and not needed to count cores)

    return min(torch.get_num_threads(), available_cores()) if threads == "auto" else threads


def training_threads(threads: Threads) -> int:
    """Return the threads for gradient descent.

    Steps are short, so threads mostly wait for each other: next to other busy processes one thread can be ten times as
    fast as two. "auto" uses at most half of the cores.
    """
    if threads != "auto":
        return threads
    return min(inference_threads(threads), max(1, min(MAX_TRAINING_THREADS, available_cores() // 2)))


@contextmanager
def limit_threads(n: int) -> Iterator[None]:
    """Let PyTorch use n threads inside the block, in the calling thread alone: OpenMP has a limit for each thread."""
    import torch  # noqa: PLC0415

    if torch.get_num_threads() == n:  # the call also initialises PyTorch in this thread, which later would undo a limit
        yield
    else:
        with _openmp().limit(limits=n):
            yield


@cache
def _openmp() -> Any:
    """Return a controller of the OpenMP libraries that are loaded."""
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415

    return ThreadpoolController().select(user_api="openmp")


def configure_openmp() -> None:
    """Configure OpenMP for our own processes before they load PyTorch: one thread per core, and waiting threads sleep.

    By default a waiting thread spins and takes the core from the thread it waits for.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(available_cores()))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
