"""How a workspace's model learns: the table `[learning]` of its file. It needs PyTorch, which `settings` does not."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from fairstream.evaluation import PeriodTask
from fairstream.methods import MethodConfig
from fairstream.service.gaps import SERVED_TASK


class Learning(MethodConfig):
    """How the model learns."""

    model: str = "blend"
    """The model: blend (sasrec, item-item, transitions and popularity), one of those alone, gru, mf, ncf, popularity, \
recent-popularity, or a registered one. It brings its own options of training."""
    method: str = "Finetune"
    """Finetune learns each period's events. FADE, FADE-Abs and the -Fair methods add a fairness loss; Retrain learns \
everything again."""
    target: Literal["least-regret", "none"] = "least-regret"
    """What each update does for groups: least-regret serves, of all levels tried on the periods so far, the one with \
the smallest largest regret; none."""
    target_task: PeriodTask = SERVED_TASK
    """The lists by which the target judges: event, as the service makes them, from all events before each request; \
moment, the same with one list for simultaneous events; next, one list for each user."""
    seed: int = Field(0, ge=0)
    """Seed of everything random."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Where updates run; the service itself answers from the CPU."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        self.recipe()
        default = type(self).model_fields["fairness_weight"].default
        if self.fairness_name is None and self.fairness_weight not in (0, default):
            raise ValueError(
                f"fairness_weight is {self.fairness_weight:g}, but {self.method} has no fairness loss; "
                f'set method = "FADE" or fairness = "signed"'
            )
        return self
