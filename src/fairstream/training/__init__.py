"""Training: batches, optimizers, the loop over epochs, and the engines that take the steps."""

from fairstream.training.batches import Batches, Windows, cut_batches, cut_windows
from fairstream.training.config import EngineName, RuntimeConfig, Training
from fairstream.training.engine import Batch, Engine, ExtraLoss, TrainingJob
from fairstream.training.optimizers import Schedule, Tensors, make_optimizer
from fairstream.training.row_adam import RowAdam
from fairstream.training.train import EngineChoice, OnEpoch, TrainingReport, choose_engine, train

__all__ = [
    "Batch",
    "Batches",
    "Engine",
    "EngineChoice",
    "EngineName",
    "ExtraLoss",
    "OnEpoch",
    "RowAdam",
    "RuntimeConfig",
    "Schedule",
    "Tensors",
    "Training",
    "TrainingJob",
    "TrainingReport",
    "Windows",
    "choose_engine",
    "cut_batches",
    "cut_windows",
    "make_optimizer",
    "train",
]
