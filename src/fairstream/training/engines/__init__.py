"""Engines that are faster than the reference. `unsupported` of each says which jobs it cannot run."""

from __future__ import annotations

import torch

from fairstream.models import ItemTable, MFScorer, UserTable
from fairstream.objectives import DisparityLoss, Objective, bpr_loss
from fairstream.training.engine import TrainingJob
from fairstream.training.row_adam import RowAdam


def unsupported_mf(job: TrainingJob) -> str | None:
    """Return why a job is not the paper's training of matrix factorisation (in float32), or None where it is."""
    model, objective, fairness = job.model, job.objective, job.objective.fairness
    reasons = {
        # A derived class, or a table of another class, may compute other scores.
        f"there is none for {type(model).__name__}": type(model) is not MFScorer,
        "its parameters are not plain float32, or some are frozen": not all(
            p.dtype == torch.float32 and p.is_contiguous() and p.requires_grad for p in model.parameters()
        ),
        "its tables are not the usual ones": not all(type(table) in (UserTable, ItemTable) for table in model.tables()),
        "its objective has a custom formula": type(objective) is not Objective,
        "its loss is not bpr": objective.loss is not bpr_loss,
        "there is an extra loss": job.extra_loss is not None,
        "its learning rate changes from step to step": job.schedule is not None,
        "its optimizer is not plain Adam": not _is_plain_adam(job.optimizer),
    }
    if objective.is_fair:
        surrogate = getattr(fairness, "surrogate", "")
        reasons |= {
            "its fairness loss is not the paper's": type(fairness) is not DisparityLoss,
            f"the surrogate {surrogate} is not compiled": surrogate != "hit",
        }
    return next((reason for reason, applies in reasons.items() if applies), None)


def disparity_loss(objective: Objective) -> DisparityLoss:
    """Return the fairness loss of a supported job; if its weight is 0, any loss gives the same result."""
    return objective.fairness if isinstance(objective.fairness, DisparityLoss) else DisparityLoss()


def _is_plain_adam(optimizer: torch.optim.Optimizer) -> bool:
    if type(optimizer) not in {RowAdam, torch.optim.Adam}:
        return False
    groups = optimizer.param_groups
    share_settings = all(group[name] == groups[0][name] for group in groups for name in ("lr", "betas", "eps"))
    variants = ("amsgrad", "maximize", "decoupled_weight_decay")
    # Of PyTorch's variants only the fused one counts its steps on the device.
    is_plain = all(group.get("fused", True) and not any(group.get(name) for name in variants) for group in groups)
    return share_settings and is_plain
