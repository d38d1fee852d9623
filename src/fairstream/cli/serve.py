"""`fairstream serve`: run the HTTP API and the dashboard."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from fairstream.cli.console import Output, Quiet
from fairstream.cli.options import Every as Schedule
from fairstream.cli.options import WorkspaceFolder
from fairstream.cli.workspaces import opened
from fairstream.errors import ConfigurationError
from fairstream.service.api import create_app
from fairstream.service.api.limits import BoundedProtocol
from fairstream.service.settings import Every


def serve(
    folder: WorkspaceFolder,
    host: Annotated[str, typer.Option(help="Host to bind.", envvar="FAIRSTREAM_HOST")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind.", min=0, max=65535, envvar="FAIRSTREAM_PORT")] = 8000,
    workers: Annotated[int, typer.Option(help="Number of processes; each loads the model.", min=1, max=64)] = 1,
    every: Schedule = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="Lowest level to log.", envvar="FAIRSTREAM_LOG_LEVEL", case_sensitive=False),
    ] = "info",
    quiet: Quiet = False,
) -> None:
    """Run the HTTP API and dashboard.

    Requests to the API need a key (`fairstream keys add`). TLS is for a proxy in front. SIGTERM or Ctrl-C
    stops it after storing accepted events and answering received requests.
    """
    with opened(folder) as workspace:  # its errors are reported once, before any process starts
        limits, _ = workspace.config.limits, workspace.config.learning  # reading `learning` validates it
    if every is not None:
        Every.parse(every)
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(host, port))
        if workers > 1:  # where the workers add up their counters
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = stack.enter_context(tempfile.TemporaryDirectory())
        config = uvicorn.Config(
            partial(_app, folder, every, log_level),
            factory=True,
            http=BoundedProtocol,
            workers=workers,
            access_log=False,
            log_config=None,
            server_header=False,
            limit_concurrency=limits.max_connections,
            timeout_graceful_shutdown=20,  # longer than a database that hangs keeps a request waiting
            timeout_worker_healthcheck=60,
        )
        shown, bound = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
        Output(quiet=quiet).print(
            f"The dashboard is at http://{shown}:{bound}/ and the interface at http://{shown}:{bound}/v1/openapi.json"
        )
        if workers > 1:
            Multiprocess(config, sockets=[listening]).run()
        else:
            uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket at this address; raises ConfigurationError if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number and number > 0 else str(error)
        raise ConfigurationError(f"cannot listen at {host} port {port}: {why}; give another --host or --port") from None


def _app(folder: Path, every: str | None, log_level: str) -> FastAPI:
    """Create the application in a worker process."""
    # One list is too little work for two threads, and the other cores have updates to do.
    torch.set_num_threads(1)
    return create_app(folder, every=every, log_level=log_level)
