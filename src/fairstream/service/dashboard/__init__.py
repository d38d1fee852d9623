"""Pages that show what the service does and why, and the few buttons that change it."""

from fairstream.service.dashboard.routes import Health, Running, routes

__all__ = ["Health", "Running", "routes"]
