"""The HTTP service of a workspace."""

from fairstream.service.api.app import create_app

__all__ = ["create_app"]
