"""The recommender that an application holds, and its checkpoints."""

from fairstream.recommender.recommender import FairRecommender, load

__all__ = ["FairRecommender", "load"]
