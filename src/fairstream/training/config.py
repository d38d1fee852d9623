"""What training can be told, with the paper's values as defaults; and where it runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field, field_validator, model_validator

from fairstream.configuration import Configuration
from fairstream.errors import ConfigurationError
from fairstream.models import MODELS, model_defaults
from fairstream.objectives import LOSSES, Surrogate
from fairstream.objectives.fairness import LEAST_TEMPERATURE
from fairstream.training.schedule import ScheduleName

EngineName = Literal["auto", "reference", "fused"]
FairnessWeight = Annotated[float, Field(ge=0)] | Literal["auto"]
CUSTOM = "custom"
"""The name that stands in a configuration for an object of the caller's own."""


class Hyperparameters(Configuration):
    """The model, the loss and the optimisation. Device and seed are in `RuntimeConfig`."""

    model: str = "mf"
    """Base recommender: mf (matrix factorisation), ncf (neural collaborative filtering), item-item (regression on \
the user's items in closed form), gru and sasrec (they read the user's latest items in order), popularity, \
recent-popularity, or a registered model. Models have defaults of their own for some of the options below."""
    embedding_dim: int = Field(64, ge=1)
    """Length of the embeddings."""
    feature_buckets: int = Field(4096, ge=1)
    """Rows that the features of items share, by their hash, in models that read them (gru, sasrec, blend)."""
    loss: str = "bpr"
    """Recommendation loss: bpr (the paper's), sampled-softmax, softmax (over all items), or a registered one."""
    fairness_weight: FairnessWeight = 0.5
    """λ, the weight of the fairness loss; 0 switches it off, auto computes it at every step from the gradients of \
the batch, as in the proof of the paper's Proposition 1 (two groups, fairness signed or absolute)."""
    fairness_ema_decay: float | None = Field(None, ge=0, lt=1)
    """Decay of the exponential moving average in which the fairness loss accumulates each group's mean \
across batches; 0: each batch for itself. By default 0 for signed and absolute (the paper's), 0.95 for \
largest and group-dro."""
    dro_step_size: float = Field(0.01, ge=0)
    """η, how fast the weights of the groups follow their losses in group-dro."""
    cvar_share: float = Field(0.2, gt=0, le=1)
    """α, the share of the interactions of a batch, its worst, that cvar is the mean loss of."""
    surrogate: Surrogate = "hit"
    """What stands for the quality of a user's ranking in the fairness loss: hit (the paper's Differentiable Hit), \
neural-ndcg or approx-ndcg, which the paper compares with it; log-likelihood or probability of the \
item among all items."""
    temperature: float = Field(3.0, ge=LEAST_TEMPERATURE)
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
    update_learning_rate: float | None = Field(None, gt=0)
    """Adam's learning rate in fine-tuning; by default the same."""
    schedule: ScheduleName = "constant"
    """Learning rate of training from scratch: constant, or cosine (up at first, then down to 0)."""
    activity_exponent: float = Field(0.0, ge=0)
    """An event counts (the number of its user's events)^−exponent times, in sequence models with the softmax \
loss: 0 lets heavy users decide, 1 gives every user the same weight."""
    l2: float = Field(1e-4, ge=0)
    """L2 regularisation, inside Adam's gradient."""
    group_weight: float = Field(1.0, gt=0)
    """How many times an event of a group that is behind counts: in models computed in closed form \
and in the softmax loss. Users whom a rare item could identify count once."""
    optimizer: Literal["row", "dense"] = "row"
    """row: Adam on the rows that a batch touches; dense: on every row at every step, as in the paper \
(the default under its protocol)."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_model(cls, given: Any) -> Any:
        """What is not given is what the model wants."""
        if not isinstance(given, dict) or not isinstance(given.get("model"), str):
            return given
        return {**model_defaults(given["model"], given.get("loss")), **given}

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str) -> str:
        return name if name == CUSTOM else MODELS.canonical(name)

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, name: str) -> str:
        return name if name == CUSTOM else LOSSES.canonical(name)


class RuntimeConfig(Configuration):
    """The seed, the device and the engine."""

    seed: int = Field(0, ge=0)
    """Seed of every random draw of the run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a CUDA device if there is one."""
    engine: EngineName = "auto"
    """How to compute: reference is plain PyTorch; fused does the same much faster, by kernels for some models or, \
on CUDA, by recording the step of any other and replaying it; auto takes fused where it can."""

    def torch_device(self) -> torch.device:
        """The device to compute on."""
        has_cuda = torch.cuda.is_available()
        if self.device == "cuda" and not has_cuda:
            raise ConfigurationError("device='cuda' was asked for, but PyTorch finds no CUDA device; use auto or cpu")
        return torch.device("cuda" if has_cuda and self.device != "cpu" else "cpu")
