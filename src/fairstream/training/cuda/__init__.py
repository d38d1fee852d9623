"""The step as Triton kernels in CUDA graphs. Imported only where the model is on a CUDA device."""

from __future__ import annotations

import importlib.util

import torch

from fairstream.models import ItemTable, MatrixFactorization, NeuralCollaborativeFiltering, UserTable
from fairstream.training.engine import Engine, Training
from fairstream.training.row_adam import RowAdam

_SETTINGS = ("lr", "betas", "eps")


def applies(training: Training) -> bool:
    """Whether there are kernels for this model, this optimizer and these shapes."""
    parameters = list(training.model.parameters())
    return (
        importlib.util.find_spec("triton") is not None
        and type(training.model) in {MatrixFactorization, NeuralCollaborativeFiltering}
        and all(p.is_cuda and p.dtype == torch.float32 and p.is_contiguous() and p.requires_grad for p in parameters)
        and all(type(table) in {UserTable, ItemTable} for table in training.model.tables())
        and _fits(training)
        and _is_plain_adam(training.optimizer)
    )


def make_cuda_engine(training: Training) -> Engine | None:
    """The engine whose kernels do this training, or None where none do."""
    if not applies(training):
        return None
    if isinstance(training.model, MatrixFactorization):
        from fairstream.training.cuda.mf import CudaMF  # noqa: PLC0415, needs Triton

        return CudaMF(training)
    from fairstream.training.cuda.ncf import CudaNCF  # noqa: PLC0415, needs Triton

    return CudaNCF(training)


def _fits(training: Training) -> bool:
    """Tiles are powers of two; the widths of embeddings, candidates and groups are held in registers."""
    model = training.model
    if isinstance(model, MatrixFactorization):
        d, least = model.user.embedding_dim, 1
    else:
        assert isinstance(model, NeuralCollaborativeFiltering)
        d, least = model.user_mlp.embedding_dim, 16
    is_power = d & (d - 1) == 0
    objective = training.objective
    most = 7 if objective.is_fair and objective.surrogate == "neural-ndcg" else 63  # has (1 + most)³ tangents
    return is_power and least <= d <= 128 and objective.n_drawn <= most and 1 <= len(training.signs) <= 32


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
