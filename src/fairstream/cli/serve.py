"""`fairstream serve`: run the HTTP API and the dashboard."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fairstream.cli.console import make_console, print_lines
from fairstream.cli.options import Every as Schedule
from fairstream.cli.options import Quiet, WorkspaceFolder
from fairstream.cli.workspaces import needing_live, opened
from fairstream.errors import ConfigurationError

if TYPE_CHECKING:
    from fastapi import FastAPI

_BACKLOG = 2048


def serve(
    folder: WorkspaceFolder,
    host: Annotated[str, typer.Option(help="Host to bind.", envvar="FAIRSTREAM_HOST")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind.", min=0, max=65535, envvar="FAIRSTREAM_PORT")] = 8000,
    workers: Annotated[int, typer.Option(help="Number of processes; each loads the model.", min=1, max=64)] = 1,
    every: Schedule = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="Least severe level that is logged.", envvar="FAIRSTREAM_LOG_LEVEL", case_sensitive=False),
    ] = "info",
    quiet: Quiet = False,
) -> None:
    """Run the HTTP API and dashboard.

    Requests to the API need a key (`fairstream keys add`). TLS is for a proxy in front. SIGTERM or Ctrl-C
    ends it: events that were accepted are stored, requests that were received are answered.
    """
    with needing_live():
        import uvicorn  # noqa: PLC0415 (an extra)
        from uvicorn.supervisors import Multiprocess  # noqa: PLC0415

        from fairstream.service.api.limits import Deadlines  # noqa: PLC0415
        from fairstream.service.settings import Every  # noqa: PLC0415
    with opened(folder) as workspace:  # what is wrong with it is said once, before any process is started
        limits, _ = workspace.config.limits, workspace.config.learning  # the second for what is wrong in it
    if every is not None:
        Every.parse(every)
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(host, port))
        if workers > 1:  # where the workers add up their counters
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = stack.enter_context(tempfile.TemporaryDirectory())
        config = uvicorn.Config(
            partial(_app, folder, every, log_level),
            factory=True,
            http=Deadlines,
            workers=workers,
            access_log=False,
            log_config=None,
            server_header=False,
            limit_concurrency=limits.max_connections,
            timeout_graceful_shutdown=20,  # longer than a database that hangs keeps a request waiting
            timeout_worker_healthcheck=60,
        )
        shown, bound = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
        print_lines(
            make_console(quiet=quiet),
            f"The dashboard is at http://{shown}:{bound}/ and the interface at http://{shown}:{bound}/v1/openapi.json",
        )
        if workers > 1:
            Multiprocess(config, sockets=[listening]).run()
        else:
            uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """A socket at this address, or a sentence that says why there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number and number > 0 else str(error)
        raise ConfigurationError(f"cannot listen at {host} port {port}: {why}; give another --host or --port") from None


def _app(folder: Path, every: str | None, log_level: str) -> FastAPI:
    """The application in a process of its own."""
    import torch  # noqa: PLC0415 (other commands need not wait for it)

    from fairstream.service.api import create_app  # noqa: PLC0415 (an extra)

    # One list is too little work for two threads, and the other cores have updates to do.
    torch.set_num_threads(1)
    # A line of the log names no thread, process or place in the code; to look them up took a fifth of the time of a
    # cached list. Python's "Logging HOWTO" has these switches.
    for switch in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks", "_srcfile"):
        setattr(logging, switch, None)
    # A model that is being loaded hands the interpreter over to waiting requests ten times as often as usual.
    sys.setswitchinterval(0.0005)
    return create_app(folder, every=every, log_level=log_level)
