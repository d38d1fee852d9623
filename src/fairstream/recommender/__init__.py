"""The recommender that an application holds, its states and its checkpoints."""

from fairstream.recommender.frontier import Frontier, FrontierLevel
from fairstream.recommender.learning import Learning, Update
from fairstream.recommender.recommender import FairRecommender, load
from fairstream.recommender.state import NewEvents, State

__all__ = ["FairRecommender", "Frontier", "FrontierLevel", "Learning", "NewEvents", "State", "Update", "load"]
