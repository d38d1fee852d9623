"""Which engine takes the steps."""

from __future__ import annotations

from typing import Literal

from fairstream.training.engine import Engine, Training
from fairstream.training.reference import ReferenceEngine

EngineName = Literal["auto", "reference", "fused"]


def make_engine(name: EngineName, training: Training) -> Engine:
    """The engine of this name; "auto" is the fastest one that can do this training."""
    return ReferenceEngine(training)
