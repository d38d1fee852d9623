"""What several processes share: their gauges, and the limit of open files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairstream.service.api.errors import error_from

WORKER = """
import sys
from fairstream.service.api.monitoring import Metrics
metrics = Metrics()
metrics.measure(ready=int(sys.argv[1]), problems=int(sys.argv[2]), batches_waiting=2, events_behind=0)
print(metrics.text([]).decode(), flush=True)
input()
"""
LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
from fairstream.cli.serve import _connections
print(_connections(1000), _connections(10))
"""


def worker(folder: Path, ready: int, problems: int) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A process with these gauges, and the metrics that a scrape of it shows."""
    command = [sys.executable, "-c", WORKER, str(ready), str(problems)]
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert process.stdout is not None
    while not lines or lines[-1].strip():  # an empty line ends it
        lines.append(process.stdout.readline())
    return process, dict(line.rstrip().rsplit(" ", 1) for line in lines if line[0] not in "#\n")


@pytest.mark.slow
def test_a_scrape_shows_the_worst_of_all_living_workers(tmp_path: Path) -> None:
    first, shown = worker(tmp_path, ready=0, problems=3)
    assert (shown["fairstream_ready"], shown["fairstream_problems"]) == ("0.0", "3.0")
    second, shown = worker(tmp_path, ready=1, problems=0)
    assert (shown["fairstream_ready"], shown["fairstream_problems"]) == ("0.0", "3.0")
    assert shown["fairstream_batches_waiting"] == "4.0"
    first.kill()
    first.communicate()
    third, shown = worker(tmp_path, ready=1, problems=0)
    assert (shown["fairstream_ready"], shown["fairstream_problems"]) == ("1.0", "0.0")
    for process in (second, third):
        process.communicate("\n")


@pytest.mark.slow
def test_too_few_open_files_mean_fewer_connections_and_a_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["44", "10"]
    assert "too few files may be open for 1000 connections (limits.max_connections), so there will be 44" in " ".join(
        done.stderr.split()
    )


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")],
)
def test_no_memory_is_no_bug(error: Exception) -> None:
    assert (error_from(error).status_code, error_from(error).code) == (503, "overloaded")
