"""What a learner can be told, with the paper's values as defaults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fairstream.configuration import Configuration
from fairstream.objectives import Surrogate


class Hyperparameters(Configuration):
    """The model, the loss and the optimisation. Where and from which seed it runs is said elsewhere."""

    model: Literal["mf", "ncf", "custom"] = "mf"
    """Base recommender: mf (matrix factorisation) or ncf (neural collaborative filtering)."""
    embedding_dim: int = Field(64, ge=1)
    """Length of the embeddings."""
    fairness_weight: float = Field(0.5, ge=0)
    """λ, the weight of the fairness loss; 0 switches it off."""
    surrogate: Surrogate = "hit"
    """What stands for the quality of a user's ranking in the fairness loss: hit (the paper's Differentiable Hit), \
neural-ndcg or approx-ndcg, which the paper compares with it."""
    temperature: float = Field(3.0, gt=0)
    """τ, how soft the relaxed ranking is; towards 0 it becomes the exact one."""
    n_negatives: int = Field(4, ge=1)
    """n, negative items per interaction in the recommendation loss."""
    n_fairness_negatives: int = Field(4, ge=1)
    """μ, negative items per interaction in the fairness loss."""
    pretrain_epochs: int = Field(100, ge=1)
    """Epochs of pre-training, and of every retraining from scratch."""
    update_epochs: int = Field(10, ge=1)
    """Epochs of fine-tuning per period."""
    batch_size: int = Field(256, ge=1)
    """Interactions per batch."""
    learning_rate: float = Field(1e-3, gt=0)
    """Adam's learning rate."""
    l2: float = Field(1e-4, ge=0)
    """L2 regularisation, inside Adam's gradient."""
    optimizer: Literal["row", "dense"] = "row"
    """row: Adam on the rows that a batch touches; dense: on every row at every step, as in the paper \
(the default under its protocol)."""
