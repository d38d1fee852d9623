"""The fused engine for matrix factorisation on a CPU: one pass a batch, compiled, nothing allocated."""

from fairstream.training.cpu.engine import FusedEngine

__all__ = ["FusedEngine"]
