"""The child process of the service: `python -m fairstream.service.worker DIR ID` runs an update.

With `forget` instead of an id it completes the pending requests to forget. The outcome is in the rows of the database.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from fairstream.errors import FairstreamError
from fairstream.reporting import LOGGER
from fairstream.service.workspace import Workspace

FORGET = "forget"


def main(folder: str, task: str) -> int:
    """Run a task; an error is one sentence on standard error."""
    LOGGER.disabled = True  # notes about events are for people who call the library
    logging.basicConfig(format="%(message)s")
    from fairstream.service import updates  # noqa: PLC0415 (the service imports this module, too)
    from fairstream.service.forgetting import complete_forgetting  # noqa: PLC0415

    try:
        with Workspace.open(Path(folder)) as workspace:
            if task == FORGET:
                with workspace.updating():
                    complete_forgetting(workspace)
            else:
                updates.run(workspace, task)
    except FairstreamError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
