"""How W_{t−1} becomes W_t."""

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
    "FineTune",
    "Keep",
    "Memory",
    "Period",
    "Plan",
    "Replay",
    "RestartEvery",
    "RestartOnDegradation",
    "Retrain",
    "SlidingWindow",
    "Strategy",
]
