"""The step as Triton kernels in CUDA graphs. Imported only where the model is on a CUDA device."""

from __future__ import annotations

import importlib.util

import torch

from fairstream.models import ItemTable, MatrixFactorization, NeuralCollaborativeFiltering, UserTable
from fairstream.objectives import DisparityLoss, bpr_loss
from fairstream.training.engine import Engine, TrainingJob
from fairstream.training.row_adam import RowAdam

_SETTINGS = ("lr", "betas", "eps")


def unsupported(job: TrainingJob) -> str | None:
    """Why there are no kernels for a job, or None where there are."""
    model, objective = job.model, job.objective
    parameters = list(model.parameters())
    reasons = {
        "Triton is not installed": importlib.util.find_spec("triton") is None,
        f"there is none for {type(model).__name__}": type(model)
        not in {MatrixFactorization, NeuralCollaborativeFiltering},
        "its parameters are not plain float32": not all(
            p.is_cuda and p.dtype == torch.float32 and p.is_contiguous() and p.requires_grad for p in parameters
        ),
        "its tables are not the usual ones": not all(type(table) in {UserTable, ItemTable} for table in model.tables()),
        "its loss is not bpr": objective.loss is not bpr_loss,
        "there is an extra loss": job.extra_loss is not None,
        "its fairness loss is not the paper's": type(objective.fairness) is not DisparityLoss,
        "its optimizer is not plain Adam": not _is_plain_adam(job.optimizer),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    return reason or (None if _fits(job) else "its embeddings or candidates are too wide")


def engines(job: TrainingJob) -> tuple[type[Engine], ...]:
    """The engines for CUDA, fastest first."""
    if importlib.util.find_spec("triton") is None:
        return ()
    from fairstream.training.cuda.mf import CudaMF  # noqa: PLC0415, needs Triton
    from fairstream.training.cuda.ncf import CudaNCF  # noqa: PLC0415, needs Triton

    return (CudaMF,) if isinstance(job.model, MatrixFactorization) else (CudaNCF,)


def _fits(job: TrainingJob) -> bool:
    """Tiles are powers of two; the widths of embeddings, candidates and groups are held in registers."""
    model = job.model
    if isinstance(model, MatrixFactorization):
        d, least = model.user.embedding_dim, 1
    else:
        assert isinstance(model, NeuralCollaborativeFiltering)
        d, least = model.user_mlp.embedding_dim, 16
    is_power = d & (d - 1) == 0
    objective = job.objective
    most = (
        7 if objective.is_fair and getattr(objective.fairness, "surrogate", "") == "neural-ndcg" else 63
    )  # has (1 + most)³ tangents
    return is_power and least <= d <= 128 and objective.n_drawn <= most and 1 <= len(job.signs) <= 32


def _is_plain_adam(optimizer: torch.optim.Optimizer) -> bool:
    groups = optimizer.param_groups
    if type(optimizer) not in {RowAdam, torch.optim.Adam}:
        return False
    share_settings = all(group[name] == groups[0][name] for group in groups for name in _SETTINGS)
    # Of PyTorch's, only the fused one keeps its count of steps on the device.
    variants = ("amsgrad", "maximize", "decoupled_weight_decay")
    return share_settings and not any(
        not group.get("fused", True) or any(group.get(variant) for variant in variants) for group in groups
    )
