"""How W_{t−1} becomes W_t."""

from fairstream.strategies.controller import Control, DisparityController, Measured, MeasureGroups, Side
from fairstream.strategies.restart import RestartByBound, RestartEvery, RestartOnDegradation
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
    "MeasureGroups",
    "Measured",
    "Memory",
    "Period",
    "Plan",
    "Replay",
    "RestartByBound",
    "RestartEvery",
    "RestartOnDegradation",
    "RestartOnNew",
    "Retrain",
    "Side",
    "SlidingWindow",
    "Strategy",
    "UserQuality",
]
