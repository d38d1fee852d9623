"""The paper's competitors: what else can be done about a disparity between groups of users."""

from __future__ import annotations

from fairstream.baselines.adversarial import AdversarialEngine
from fairstream.baselines.captured import CapturedEngine, can_capture
from fairstream.baselines.filtered import FilteredUserTable, filtered
from fairstream.baselines.networks import Discriminator, Filter
from fairstream.baselines.recovery import GroupProbe, group_recovery, user_embeddings
from fairstream.baselines.rerank import Rerank
from fairstream.baselines.rerank_program import Program, Reranking, require_two_groups
from fairstream.errors import ConfigurationError
from fairstream.training import EngineName
from fairstream.training.engine import Engine, Training


def make_adversarial_engine(name: EngineName, training: Training, *, gamma: float) -> Engine:
    """Adver's engine of this name, for a model that `filtered` made."""
    if name != "reference" and can_capture(training):
        return CapturedEngine(training, gamma=gamma)
    if name == "fused":
        raise ConfigurationError(
            "engine='fused' was asked for, but Adver has it only for mf and ncf with the dense optimizer on cuda; "
            "use auto or reference"
        )
    return AdversarialEngine(training, gamma=gamma)


# `rerank_exact` is imported from its own file: SciPy's optimizers take most of a second to import.
__all__ = [
    "AdversarialEngine",
    "CapturedEngine",
    "Discriminator",
    "Filter",
    "FilteredUserTable",
    "GroupProbe",
    "Program",
    "Rerank",
    "Reranking",
    "can_capture",
    "filtered",
    "group_recovery",
    "make_adversarial_engine",
    "require_two_groups",
    "user_embeddings",
]
