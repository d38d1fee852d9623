"""Engines for a model on a CUDA device. Imported only where there is one."""

from __future__ import annotations

import importlib.util
from functools import cache

from fairstream.reporting import COMPILING
from fairstream.training.cuda.captured import CapturedEngine, CapturedWindowEngine
from fairstream.training.engine import Engine, TrainingJob

__all__ = ["CapturedEngine", "CapturedWindowEngine", "engines"]


def engines(job: TrainingJob) -> tuple[type[Engine], ...]:
    """The engines for CUDA, fastest first."""
    if importlib.util.find_spec("triton") is not None:
        _log_compilation()
        from fairstream.training.cuda.mf import CudaMF  # noqa: PLC0415, needs Triton
        from fairstream.training.cuda.ncf import CudaNCF  # noqa: PLC0415, needs Triton

        return CudaMF, CudaNCF, CapturedEngine, CapturedWindowEngine
    return CapturedEngine, CapturedWindowEngine


@cache
def _log_compilation() -> None:
    """Log, once in a process, that Triton compiles a kernel when it first meets it on a machine."""
    COMPILING.info("Loading CUDA kernels; the first time on a machine they are compiled, which can take a minute.")
