"""Events in, fair recommendations out: a workspace, its updates, and the service in front of it."""
