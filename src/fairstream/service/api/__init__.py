"""The HTTP service of a workspace."""

from fairstream.service.api.app import create_app
from fairstream.service.api.shops import Shops, workspaces_in

__all__ = ["Shops", "create_app", "workspaces_in"]
