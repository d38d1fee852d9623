"""The same work on a Ray cluster. Ray is imported when a cluster is asked for, never before."""

from fairstream.cluster.connection import Cluster, connect

__all__ = ["Cluster", "connect"]
