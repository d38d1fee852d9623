"""How W_{t−1} becomes W_t."""

from fairstream.strategies.learner import Learner, Update
from fairstream.strategies.restart import RestartEvery, RestartOnDegradation
from fairstream.strategies.strategy import FineTune, Keep, Retrain, Step, Strategy

__all__ = [
    "FineTune",
    "Keep",
    "Learner",
    "RestartEvery",
    "RestartOnDegradation",
    "Retrain",
    "Step",
    "Strategy",
    "Update",
]
