"""The recommender that an application holds, its states and its checkpoints."""

from fairstream import baselines as _baselines  # noqa: F401 (enters the paper's competitors in the registries)
from fairstream.recommender.frontier import Frontier, FrontierLevel
from fairstream.recommender.learning import Learning, Update
from fairstream.recommender.recommender import FairRecommender, load
from fairstream.recommender.state import NewEvents, State

__all__ = ["FairRecommender", "Frontier", "FrontierLevel", "Learning", "NewEvents", "State", "Update", "load"]
