"""Alerts: promotions and problems, posted as JSON to the webhook of `[alerts]`."""

from __future__ import annotations

import hmac
import logging
import time
from http.client import HTTPException
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fairstream.service.database import canonical, now
from fairstream.service.workspace import Workspace

Kind = Literal["promoted", "rejected", "failed", "skipped", "experiment"]
_TIMEOUT_SECONDS = 5.0
_WAIT_SECONDS = (0.5, 2.0)  # before the second and the third attempt
_log = logging.getLogger(__name__)


def alert(workspace: Workspace, kind: Kind, message: str, **details: Any) -> bool:
    """Log an alert and post it to the webhook, if there is one; return whether the webhook accepted it.

    It raises nothing, but may take 18 seconds: call it after the transaction, and off the event loop. With
    `[alerts] secret` the header `X-Fairstream-Signature` is `sha256=` and the HMAC of the body in hexadecimal.
    """
    _log.log(logging.INFO if kind == "promoted" else logging.WARNING, "%s: %s", kind, message)
    alerts = workspace.config.alerts
    if alerts.webhook is None:
        return False
    name = workspace.folder.resolve().name
    content = {**details, "workspace": name, "kind": kind, "message": message, "time": now()}
    body, headers = canonical(content).encode(), {"Content-Type": "application/json"}
    if alerts.secret is not None:
        headers["X-Fairstream-Signature"] = f"sha256={hmac.digest(alerts.secret.encode(), body, 'sha256').hex()}"
    for seconds in (*_WAIT_SECONDS, None):
        try:
            request = Request(alerts.webhook, body, headers)  # noqa: S310 (checked with the configuration)
            with urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310
                return True
        except (OSError, HTTPException, ValueError) as error:  # ValueError: the address cannot be read
            problem = str(error)
            if isinstance(error, HTTPError):
                error.close()
        if seconds is not None:
            time.sleep(seconds)
    _log.warning("the webhook of [alerts] did not accept an alert in %d attempts: %s", len(_WAIT_SECONDS) + 1, problem)
    return False
