"""Run the benchmarks and print their tables as Markdown: `python -m benchmarks DATA [NAME …]`.

DATA is a folder with `movielens-1m`. Without names all of them run, which takes about ten minutes on two cores; what
needs a CUDA device is left out where there is none.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks import big_data, evaluation, growth, on_cuda, training, updating

BENCHMARKS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "training": ("Training on the CPU, compared with its peers", training.report),
    "updating": ("An update on the CPU", updating.report),
    "growth": ("An update when the catalogue and the past grow", growth.report),
    "evaluation": ("Judging and recommending", evaluation.report),
    "cuda": ("On CUDA", on_cuda.report),
    "big-data": ("Fifty million events", big_data.report),
}
PACKAGES = ("fairstream", "torch", "numba", "numpy", "implicit", "cornac")


def machine() -> str:
    """What the numbers were measured on."""
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), processor)
    parts = [f"{os.cpu_count()} × {processor}", platform.system(), f"Python {platform.python_version()}"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    for package in PACKAGES:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    load = f"load before the start {os.getloadavg()[0]:.2f}"
    return ", ".join([*parts, load]) + "."


def main() -> None:
    """Print the tables."""
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(BENCHMARKS)
    print(machine(), flush=True)
    for name in names:
        title, report = BENCHMARKS[name]
        if name == "cuda" and not torch.cuda.is_available():
            continue
        print(f"\n## {title}\n\n{report(folder)}", flush=True)


if __name__ == "__main__":
    main()
