"""`fairstream serve`: run the HTTP API and the dashboard."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
import uvicorn
from uvicorn.supervisors import Multiprocess

from fairstream.cli.console import Output, Quiet, print_error
from fairstream.cli.options import Every as Schedule
from fairstream.cli.workspaces import opened
from fairstream.errors import ConfigurationError, FairstreamError
from fairstream.service.api import Shops, workspaces_in
from fairstream.service.api.limits import BoundedProtocol
from fairstream.service.doctor import most_connections
from fairstream.service.settings import Every, Limits


def serve(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Workspaces, or folders that hold some.", show_default=False)
    ],
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

    Several workspaces are each at /w/NAME/, by the name of the folder; one alone is also at /. Requests to the API
    need a key (`fairstream keys add`). TLS is for a proxy in front. SIGTERM or Ctrl-C stops it after storing accepted
    events and answering received requests.
    """
    shops, max_connections = workspaces_in(folders), 0
    for folder in shops:
        try:
            with opened(folder) as workspace:  # its errors are reported once, before any process starts
                _ = workspace.config.learning  # reading it validates it
                max_connections = max(max_connections, workspace.config.limits.max_connections)
        except FairstreamError as error:
            if len(shops) == 1:
                raise
            print_error(f"{folder.name} cannot be served yet: {error}")
    max_connections = _connections(max_connections or Limits().max_connections)
    if every is not None:
        Every.parse(every)
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(host, port))
        if workers > 1:  # where the workers add up their counters
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = stack.enter_context(tempfile.TemporaryDirectory())
        config = uvicorn.Config(
            partial(_app, shops, every, log_level),
            factory=True,
            http=BoundedProtocol,
            workers=workers,
            access_log=False,
            log_config=None,
            server_header=False,
            limit_concurrency=max_connections,
            timeout_graceful_shutdown=20,  # longer than a database that hangs keeps a request waiting
            timeout_worker_healthcheck=60,
        )
        shown, bound = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
        Output(quiet=quiet).print(
            *(
                f"The dashboard is at http://{shown}:{bound}{root}/ and a description of the interface at "
                f"http://{shown}:{bound}{root}/docs"
                for root in ([""] if len(shops) == 1 else [f"/w/{folder.resolve().name}" for folder in shops])
            )
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


def _connections(wanted: int) -> int:
    """Let this process open as many files as it may; return the number of connections for which that is enough."""
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    if wanted > (possible := most_connections()):
        print_error(
            f"too few files may be open for {wanted} connections (limits.max_connections), so there will be "
            f"{possible}; raise the limit (ulimit -n, LimitNOFILE=)"
        )
    return min(wanted, possible)


def _app(folders: list[Path], every: str | None, log_level: str) -> Shops:
    """Create the application in a worker process."""
    # One list is too little work for two threads, and the other cores have updates to do.
    torch.set_num_threads(1)
    return Shops(folders, every=every, log_level=log_level)
