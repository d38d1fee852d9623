"""Settings of gradient descent, and where training runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator

from fairstream.configuration import Configuration
from fairstream.errors import ConfigurationError
from fairstream.objectives import LOSSES
from fairstream.registry import CUSTOM
from fairstream.threads import Threads

EngineName = Literal["auto", "reference", "fused"]
_MIN_EPOCHS, _FEW_EPOCHS, _EVENTS_PER_EPOCH = 3, 12, 8_000
ScheduleName = Literal["constant", "cosine"]


class Training(Configuration):
    """Settings of gradient descent. The defaults are those of the model, else those of the paper.

    Parameters
    ----------
    loss
        Recommendation loss: "bpr" (the paper's), "sampled-softmax", "softmax" (over all items), a registered name, or
        a function of scores (B, 1 + n), with the positive in column 0, that returns a scalar.
    n_negatives
        n, negative items per interaction in the recommendation loss.
    pretrain_epochs
        Epochs of training from scratch: of `fit`, and of every retraining.
    pretrain_visits
        Events that training from scratch visits at most, over all epochs: a large log gets fewer epochs, at least 3.
        A small log, which a model soon knows by heart, gets one epoch for every 8,000 events, at least 12. None: no
        limit, the default if `pretrain_epochs` is given.
    batch_size
        Interactions per batch; for sequence models at most a 200th of the log's events, or 512.
    learning_rate, l2, schedule
        Adam's learning rate, the L2 regularisation inside its gradient, and the learning rate over the course of
        training from scratch: "constant" or "cosine".
    optimizer
        "row": Adam on the rows that a batch touches; "dense": on every row at every step, as in the paper.
    activity_exponent
        An event counts (the number of its user's events)^−exponent times, in sequence models with the softmax loss.
    threads
        PyTorch's threads. "auto" uses the cores of this process, by its affinity and the CPU quota of its container,
        and for gradient descent at most half of them and 4. The limit holds inside the calls of the recommender.

    Examples
    --------
    >>> Training(batch_size=512, learning_rate=2e-3)
    Training(batch_size=512, learning_rate=0.002)

    """

    loss: str | Callable[..., Any] = "bpr"
    """Recommendation loss: bpr (the paper's), sampled-softmax, softmax (over all items), or a registered one."""
    n_negatives: int = Field(4, ge=1)
    """n, negative items per interaction in the recommendation loss."""
    pretrain_epochs: int = Field(100, ge=1)
    """Epochs of pre-training, and of every retraining from scratch."""
    pretrain_visits: int | None = Field(None, ge=1)
    """Events that training from scratch visits at most, over all epochs: a large log gets fewer epochs (at least 3), \
a small one an epoch for every 8,000 events (at least 12). By default that of the model; no limit if pretrain_epochs \
is given."""
    batch_size: int = Field(256, ge=1)
    """Interactions per batch."""
    learning_rate: float = Field(1e-3, gt=0)
    """Adam's learning rate."""
    l2: float = Field(1e-4, ge=0)
    """L2 regularisation, inside Adam's gradient."""
    schedule: ScheduleName = "constant"
    """Learning rate of training from scratch: constant, or cosine (up at first, then down to 0)."""
    optimizer: Literal["row", "dense"] = "row"
    """row: Adam on the rows that a batch touches; dense: on every row at every step, as in the paper \
(the default under its protocol)."""
    activity_exponent: float = Field(0.0, ge=0)
    """An event counts (the number of its user's events)^−exponent times, in sequence models with the softmax \
loss: 0 lets heavy users decide, 1 gives every user the same weight."""
    threads: Threads = "auto"
    """PyTorch's threads; auto: as many as this process has cores, and for training at most half of them and 4."""

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, loss: Any) -> Any:
        return LOSSES.canonical(loss) if isinstance(loss, str) and loss != CUSTOM else loss

    @field_validator("threads", mode="before")
    @classmethod
    def _possible_threads(cls, threads: Any) -> Any:
        if threads == "auto" or (isinstance(threads, int) and not isinstance(threads, bool) and threads >= 1):
            return threads
        raise ValueError(f"threads must be 'auto' or a whole number from 1 on, got {threads!r}")

    def with_options(self, **options: Any) -> Self:
        """Return the same settings with some changed; those that were not given stay the model's own."""
        return type(self)(**{**self.given, **options})

    def epochs_on(self, n_events: int) -> int:
        """Return the epochs of training from scratch on a log of this size.

        >>> training = Training(pretrain_epochs=60, pretrain_visits=30_000_000)
        >>> [training.epochs_on(n) for n in (50_000, 200_000, 500_000, 10_000_000)]
        [12, 25, 60, 3]
        """
        if self.pretrain_visits is None:
            return self.pretrain_epochs
        least, most = max(_FEW_EPOCHS, n_events // _EVENTS_PER_EPOCH), self.pretrain_visits // max(1, n_events)
        return min(self.pretrain_epochs, least, max(_MIN_EPOCHS, most))

    def over(self, defaults: Mapping[str, Any]) -> Self:
        return type(self)(**{**defaults_for(defaults, self.model_fields_set, self.loss), **self.given})

    @property
    def given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}


def defaults_for(defaults: Mapping[str, Any], given: Any, loss: object) -> dict[str, Any]:
    """Return a model's defaults of training; its event weights apply to its own loss only."""
    own = {name: value for name, value in defaults.items() if name in Training.model_fields}
    if "loss" in given and loss != own.get("loss"):
        own.pop("activity_exponent", None)
    if "pretrain_epochs" in given:
        own.pop("pretrain_visits", None)
    return own


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
        has_cuda = torch.cuda.is_available()
        if self.device == "cuda" and not has_cuda:
            raise ConfigurationError("device='cuda' needs a CUDA device, and PyTorch finds none; use auto or cpu")
        return torch.device("cuda" if has_cuda and self.device != "cpu" else "cpu")
