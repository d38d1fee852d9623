"""The same work on a Ray cluster. Ray is imported when a cluster is asked for, never before."""

from fairstream.cluster.connection import PROCESS_BYTES, Cluster, connect

__all__ = ["PROCESS_BYTES", "Cluster", "connect"]
