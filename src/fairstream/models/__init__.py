"""Models, their hyperparameters and what they score.

>>> import fairstream as fs
>>> fs.models.ItemItem(ridge=500)
ItemItem(ridge=500.0)
"""

from __future__ import annotations

from fairstream.models.blend import Blend, BlendScorer
from fairstream.models.config import MODELS, CustomModel, Model, ModelConfig, resolve_model
from fairstream.models.context import NO_CONTEXT, TASKS, Context, ContextBuilder, Mask, Task
from fairstream.models.item_item import ItemItem, ItemItemScorer
from fairstream.models.levels import NO_LEVEL, Level, Tilt, levels_of, tilts
from fairstream.models.mf import MF, MFScorer
from fairstream.models.ncf import NCF, NCFScorer
from fairstream.models.popularity import Popularity, PopularityScorer, RecentPopularity, RecentPopularityScorer
from fairstream.models.scorer import (
    ClosedFormScorer,
    ItemHead,
    ModelFactory,
    PeriodHead,
    Scorer,
    UserWeights,
    WindowScorer,
    closed_forms,
    make_model,
    takes_weights,
)
from fairstream.models.sequence import GRU4Rec, GRU4RecScorer, SASRec, SASRecScorer
from fairstream.models.tables import ItemTable, Table, UserTable
from fairstream.models.transitions import Transitions, TransitionsScorer

for _name, _model in {
    "mf": MF,
    "ncf": NCF,
    "gru": GRU4Rec,
    "sasrec": SASRec,
    "popularity": Popularity,
    "recent-popularity": RecentPopularity,
    "item-item": ItemItem,
    "transitions": Transitions,
    "blend": Blend,
}.items():
    MODELS.register(_name, _model)

__all__ = [
    "MF",
    "MODELS",
    "NCF",
    "NO_CONTEXT",
    "NO_LEVEL",
    "TASKS",
    "Blend",
    "BlendScorer",
    "ClosedFormScorer",
    "Context",
    "ContextBuilder",
    "CustomModel",
    "GRU4Rec",
    "GRU4RecScorer",
    "ItemHead",
    "ItemItem",
    "ItemItemScorer",
    "ItemTable",
    "Level",
    "MFScorer",
    "Mask",
    "Model",
    "ModelConfig",
    "ModelFactory",
    "NCFScorer",
    "PeriodHead",
    "Popularity",
    "PopularityScorer",
    "RecentPopularity",
    "RecentPopularityScorer",
    "SASRec",
    "SASRecScorer",
    "Scorer",
    "Table",
    "Task",
    "Tilt",
    "Transitions",
    "TransitionsScorer",
    "UserTable",
    "UserWeights",
    "WindowScorer",
    "closed_forms",
    "levels_of",
    "make_model",
    "resolve_model",
    "takes_weights",
    "tilts",
]
