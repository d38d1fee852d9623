"""Pages that show what the service does, and why; read from the database alone."""

from fairstream.live.dashboard.routes import router

__all__ = ["router"]
