"""The dashboard: what the service does and why, and the buttons that change it."""
