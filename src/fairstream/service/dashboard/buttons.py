"""The buttons of the dashboard: what each one asks before it changes something, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from fairstream.errors import DataError
from fairstream.service import experiments, items, registry
from fairstream.service.audit import record
from fairstream.service.dashboard import web
from fairstream.service.database import writing
from fairstream.service.workspace import Workspace

Action = Callable[[Request, str, Mapping[str, str]], Awaitable[str]]
"""Performs the action of a button for a key and returns the sentence to show."""


class Button(NamedTuple):
    """A change that an admin confirms on a page of its own."""

    act: Action
    question: str  # names the fields of the form and of the path
    label: str
    kinds: tuple[str, ...]  # the entries of the audit log that tell who did it last
    back: str = "/"  # the page that shows the outcome


def buttons(workspace: Workspace, request_update: Callable[[str], Awaitable[object]]) -> dict[str, Button]:
    """Return the buttons by their paths."""

    async def start_update(_: Request, by: str, __: Mapping[str, str]) -> str:
        await request_update(by)
        return "The update has been started."

    async def promote(request: Request, by: str, _: Mapping[str, str]) -> str:
        model_id = request.path_params["id"]
        await run_in_threadpool(registry.promote, workspace, model_id, by=by)
        return f"Model {model_id} has been promoted."

    async def roll_back(_: Request, by: str, __: Mapping[str, str]) -> str:
        model_id = await run_in_threadpool(registry.rollback, workspace, by=by)
        return f"Rolled back to model {model_id}."

    def set_available(is_available: bool) -> Action:
        state = "restored" if is_available else "withdrawn"

        async def act(_: Request, by: str, form: Mapping[str, str]) -> str:
            item_id = web.plain_text(form.get("item"))
            if not item_id:
                raise DataError("an item's id must have 1 to 256 printable characters")
            await run_in_threadpool(change, item_id, by)
            return f"Item {item_id} has been {state}."

        def change(item_id: str, by: str) -> None:
            # Every serving process polls for such changes twice a second.
            items.set_available(workspace.engine, item_id, is_available)
            with writing(workspace.engine) as connection:
                record(connection, "item", {"item": item_id, "state": state, "by": by})

        return act

    async def start(_: Request, by: str, form: Mapping[str, str]) -> str:
        options = experiments.Options(**{name: form.get(name, "") for name in ("b", "mode", "metric")})
        experiment = await run_in_threadpool(experiments.start, workspace, options, by=by)
        return f"Experiment {experiment.id} has started."

    async def stop(_: Request, by: str, __: Mapping[str, str]) -> str:
        experiment = await run_in_threadpool(experiments.stop, workspace, by=by)
        return f"Experiment {experiment.id} has been stopped."

    async def promote_b(_: Request, by: str, __: Mapping[str, str]) -> str:
        model_id = await run_in_threadpool(experiments.promote, workspace, by=by)
        return f"Model {model_id} has been promoted."

    changed, tested = ("promote", "rollback"), ("experiment",)
    return {
        "/updates": Button(start_update, "Run an update now?", "Run an update", ("update",)),
        "/rollback": Button(roll_back, "Put the previous model back into service?", "Roll back", changed),
        "/models/{id}/promote": Button(promote, "Put model {id} into service for everyone?", "Promote", changed),
        "/experiments/start": Button(
            start, "Start an experiment with model {b}, decided by {metric}?", "Start", tested, "/experiments"
        ),
        "/experiments/stop": Button(
            stop, "Stop the experiment, and give everyone the model in service?", "Stop", tested, "/experiments"
        ),
        "/experiments/promote": Button(
            promote_b, "Put model B of the experiment into service for everyone?", "Promote B", changed, "/experiments"
        ),
        "/items/withdraw": Button(
            set_available(False), "Withdraw the item {item} from every list?", "Withdraw", ("item",), "/items"
        ),
        "/items/restore": Button(
            set_available(True), "Let the item {item} be recommended again?", "Restore", ("item",), "/items"
        ),
    }
