"""Pages that show what the service does, and why; read from the database alone."""

from fairstream.service.dashboard.routes import router

__all__ = ["router"]
