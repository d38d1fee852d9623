"""`fairstream serve`: answer over HTTP."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fairstream.cli.console import make_console
from fairstream.cli.workspaces import WorkspaceFolder, needing_live


def serve(
    folder: WorkspaceFolder,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at.", min=1, max=65535)] = 8000,
    every: Annotated[
        str | None, typer.Option(help='When to update: "1d", "6h", "30m", "90s" or "10000 events".')
    ] = None,
) -> None:
    """Take events, answer with recommendations, and show how it goes.

    Events and answers need a key (`fairstream keys add`). TLS is for a proxy in front of it. SIGTERM
    or Ctrl-C ends it: what was taken is stored, what was asked is answered.
    """
    with needing_live():
        import torch  # noqa: PLC0415 (other commands need not wait for it)
        import uvicorn  # noqa: PLC0415 (an extra)

        from fairstream.service.api import create_app  # noqa: PLC0415
        from fairstream.service.api.heads import BoundedHeads  # noqa: PLC0415 (an extra)
    # One list is too little work for two threads, and the other cores have updates to do.
    torch.set_num_threads(1)
    # A model that is being loaded hands the interpreter over to waiting requests ten times as often as usual.
    sys.setswitchinterval(0.0005)
    app = create_app(folder, every=every)
    shown = f"[{host}]" if ":" in host else host
    make_console(quiet=False).print(
        f"The dashboard is at http://{shown}:{port}/ and the interface at http://{shown}:{port}/v1/openapi.json",
        highlight=False,
        soft_wrap=True,
    )
    uvicorn.run(
        app,
        host=host,
        port=port,
        http=BoundedHeads,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=10,
    )
