"""The recommender that an application holds, its states and its checkpoints."""

from fairstream.recommender.recommender import FairRecommender, load
from fairstream.recommender.state import NewEvents, State
from fairstream.recommender.trainer import Trainer, Update

__all__ = ["FairRecommender", "NewEvents", "State", "Trainer", "Update", "load"]
