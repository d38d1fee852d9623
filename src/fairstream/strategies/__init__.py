"""How W_{t−1} becomes W_t."""

from fairstream.strategies.controller import Control, DisparityController, Measured, Side
from fairstream.strategies.strategy import (
    STRATEGIES,
    FineTune,
    Keep,
    Memory,
    Period,
    Plan,
    Replay,
    RestartEvery,
    RestartOnDegradation,
    Retrain,
    SlidingWindow,
    Strategy,
)

__all__ = [
    "STRATEGIES",
    "Control",
    "DisparityController",
    "FineTune",
    "Keep",
    "Measured",
    "Memory",
    "Period",
    "Plan",
    "Replay",
    "RestartEvery",
    "RestartOnDegradation",
    "Retrain",
    "Side",
    "SlidingWindow",
    "Strategy",
]
