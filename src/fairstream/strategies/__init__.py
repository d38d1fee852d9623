"""Strategies: how each update turns W_{t−1} into W_t. Targets: what it does for groups."""

from fairstream.strategies.replay import PastRegret, PeriodReplay, PooledReplay, ReplayGroups, past_regret
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
from fairstream.strategies.targets import (
    TARGETS,
    Decision,
    LeastRegret,
    MaxGap,
    Target,
    target_named,
)

__all__ = [
    "STRATEGIES",
    "TARGETS",
    "Decision",
    "FineTune",
    "Keep",
    "LeastRegret",
    "MaxGap",
    "Memory",
    "PastRegret",
    "Period",
    "PeriodReplay",
    "Plan",
    "PooledReplay",
    "Replay",
    "ReplayGroups",
    "RestartOnDegradation",
    "RestartOnNew",
    "Retrain",
    "SlidingWindow",
    "Strategy",
    "Target",
    "UserQuality",
    "past_regret",
    "target_named",
]
