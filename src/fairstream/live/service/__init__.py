"""The HTTP service of a workspace."""

from fairstream.live.service.app import create_app

__all__ = ["create_app"]
