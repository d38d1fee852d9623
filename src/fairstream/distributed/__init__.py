"""Everything that knows about Ray: the connection, tasks, and trainings by several workers.

The package is not called `cluster` because `fairstream.cluster` is the function that connects. Ray is imported
by the first connection, never before.
"""

from fairstream.distributed.connection import Cluster, cluster, current_cluster
from fairstream.distributed.tasks import PROCESS_BYTES, TrainWorker

__all__ = ["PROCESS_BYTES", "Cluster", "TrainWorker", "cluster", "current_cluster"]
