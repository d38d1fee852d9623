"""From W and a batch to the next W."""

from fairstream.training.engines import EngineMaker, make_engine
from fairstream.training.hyperparameters import Hyperparameters
from fairstream.training.optimizers import Tensors
from fairstream.training.row_adam import RowAdam
from fairstream.training.runtime import EngineName, RuntimeConfig
from fairstream.training.trainer import OnEpoch, Trainer, TrainingReport

__all__ = [
    "EngineMaker",
    "EngineName",
    "Hyperparameters",
    "OnEpoch",
    "RowAdam",
    "RuntimeConfig",
    "Tensors",
    "Trainer",
    "TrainingReport",
    "make_engine",
]
