"""A service in front of a workspace on either database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace
from live_services import Running, add_model, make_keys, running


@pytest.fixture
def new_service(new_workspace: Callable[..., Workspace]) -> Iterator[Callable[..., tuple[Workspace, Running]]]:
    """Starts a service over a new workspace, with a model unless told otherwise."""
    with ExitStack() as stack:

        def make(*, with_model: bool = True, every: str | None = None, **options: Any) -> tuple[Workspace, Running]:
            workspace = new_workspace(**options)
            if with_model:
                add_model(workspace)
            client = stack.enter_context(running(workspace, make_keys(workspace), every=every))
            client.wait_until_ready()
            return workspace, client

        yield make


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workspace, Running]]:
    """One service with a model for the tests of a module that leave it as it is, or touch only users of their own."""
    with Workspace.create(tmp_path_factory.mktemp("shared") / "workspace", LiveConfig()) as workspace:
        add_model(workspace)
        with running(workspace, make_keys(workspace)) as client:
            client.wait_until_ready()
            yield workspace, client
