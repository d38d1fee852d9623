"""From a model and its events to the trained model."""

from fairstream.training.batches import Batches, Windows, cut_batches, cut_windows
from fairstream.training.config import CUSTOM, EngineName, FairnessWeight, Hyperparameters, RuntimeConfig
from fairstream.training.engine import Batch, Engine, ExtraLoss, TrainingJob
from fairstream.training.optimizers import Tensors, make_optimizer
from fairstream.training.row_adam import RowAdam
from fairstream.training.schedule import Schedule, ScheduleName
from fairstream.training.train import EngineChoice, OnEpoch, TrainingReport, choose_engine, train

__all__ = [
    "CUSTOM",
    "Batch",
    "Batches",
    "Engine",
    "EngineChoice",
    "EngineName",
    "ExtraLoss",
    "FairnessWeight",
    "Hyperparameters",
    "OnEpoch",
    "RowAdam",
    "RuntimeConfig",
    "Schedule",
    "ScheduleName",
    "Tensors",
    "TrainingJob",
    "TrainingReport",
    "Windows",
    "choose_engine",
    "cut_batches",
    "cut_windows",
    "make_optimizer",
    "train",
]
