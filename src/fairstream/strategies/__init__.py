"""Strategies: how each update turns W_{t−1} into W_t. Targets: how large a gap between groups may be."""

from fairstream.strategies.controller import Control, DisparityController, MaxGap, Measured, MeasureGroups
from fairstream.strategies.restart import RestartOnDegradation
from fairstream.strategies.strategy import (
    STRATEGIES,
    FineTune,
    Keep,
    Memory,
    Period,
    Plan,
    Replay,
    RestartOnNew,
    Retrain,
    SlidingWindow,
    Strategy,
    UserQuality,
)

__all__ = [
    "STRATEGIES",
    "Control",
    "DisparityController",
    "FineTune",
    "Keep",
    "MaxGap",
    "MeasureGroups",
    "Measured",
    "Memory",
    "Period",
    "Plan",
    "Replay",
    "RestartOnDegradation",
    "RestartOnNew",
    "Retrain",
    "SlidingWindow",
    "Strategy",
    "UserQuality",
]
