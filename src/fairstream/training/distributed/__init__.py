"""One training by several workers, data-parallel over users."""

from fairstream.training.distributed.actors import ActorGroup
from fairstream.training.distributed.engine import (
    Checkpoints,
    DistributedEngine,
    Progress,
    ShardWorker,
    WorkerDiedError,
    WorkerGroup,
)
from fairstream.training.distributed.exchange import Exchange
from fairstream.training.distributed.shards import cut_job, unsupported
from fairstream.training.distributed.threads import ThreadGroup

__all__ = [
    "ActorGroup",
    "Checkpoints",
    "DistributedEngine",
    "Exchange",
    "Progress",
    "ShardWorker",
    "ThreadGroup",
    "WorkerDiedError",
    "WorkerGroup",
    "cut_job",
    "unsupported",
]
