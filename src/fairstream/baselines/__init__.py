"""The paper's competitors: what else can be done about a disparity between groups of users."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fairstream.baselines.adversarial import AdversarialEngine, CapturedAdversarialEngine
from fairstream.baselines.filtered import FilteredUserTable, filtered
from fairstream.baselines.networks import Discriminator, Filter
from fairstream.baselines.recovery import GroupProbe, group_recovery, user_embeddings
from fairstream.baselines.rerank import Rerank
from fairstream.baselines.rerank_program import Program, Reranking, require_two_groups
from fairstream.errors import ConfigurationError
from fairstream.methods import METHODS, Method, MethodConfig
from fairstream.training import EngineChoice, EngineName
from fairstream.training.engine import Engine, TrainingJob


def choose_adversarial_engine(name: EngineName, job: TrainingJob, *, gamma: float) -> Callable[[TrainingJob], Engine]:
    """Adver's engine of this name, for a model that `filtered` made."""
    reason = CapturedAdversarialEngine.unsupported(job)
    if name != "reference" and reason is None:
        return partial(CapturedAdversarialEngine, gamma=gamma)
    if name == "fused":
        raise ConfigurationError(
            f"engine='fused' was asked for, but Adver has none here: {reason}; use auto or reference"
        )
    return partial(AdversarialEngine, gamma=gamma)


def _adversarial(config: MethodConfig) -> EngineChoice:
    return partial(choose_adversarial_engine, gamma=config.adversary_weight)


METHODS.register(
    "Rerank", Method("Rerank", "fine-tune", reranker=lambda config: Rerank(tolerance=config.rerank_tolerance))
)
METHODS.register("Adver", Method("Adver", "fine-tune", wrap_model=filtered, engine=_adversarial))

# `rerank_exact` is imported from its own file: SciPy's optimizers take most of a second to import.
__all__ = [
    "AdversarialEngine",
    "CapturedAdversarialEngine",
    "Discriminator",
    "Filter",
    "FilteredUserTable",
    "GroupProbe",
    "Program",
    "Rerank",
    "Reranking",
    "choose_adversarial_engine",
    "filtered",
    "group_recovery",
    "require_two_groups",
    "user_embeddings",
]
