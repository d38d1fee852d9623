"""`status`, `update`, `models`, `periods`, `promote`, `rollback`, `audit`, `upgrade` and `keys` of a workspace."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from fairstream.cli.console import Json, Output, on_interrupt, print_error
from fairstream.cli.options import CommandGroup, WorkspaceFolder
from fairstream.cli.progress import reporting_compilation
from fairstream.cli.workspaces import opened, who
from fairstream.display import Table
from fairstream.errors import WorkspaceError
from fairstream.service import registry, updates
from fairstream.service.audit import differences, entries, verify
from fairstream.service.event_store import closed_periods
from fairstream.service.gaps import gap_in, noise_words, score_in, why_no_gap
from fairstream.service.keys import list_keys, make_key, revoke_key
from fairstream.service.status import Status
from fairstream.service.workspace import Workspace
from fairstream.text import MISSING, count, number

_EXIT_CODES = {"promoted": 0, "rejected": 3, "skipped": 4, "interrupted": 4, "failed": 5}
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Rows of a page.")]


def status(folder: WorkspaceFolder, *, output: Output) -> None:
    """Show the model in service, the last update, updates in a row without a promotion, and waiting events."""
    with opened(folder) as workspace:
        current = Status.of(workspace)
    output.print(*current.sentences())
    output.write(current.model_dump(mode="json"))


def models(
    folder: WorkspaceFolder,
    limit: Limit = 20,
    before: Annotated[
        str | None,
        typer.Option(help="Start after this id; the last of the previous page.", show_default="the first page"),
    ] = None,
    *,
    output: Output,
) -> None:
    """List the models, the newest first: which is in service, and why each was promoted or rejected."""
    with opened(folder) as workspace:
        current = registry.in_service(workspace.engine)
        page = registry.models(workspace.engine, before, limit + 1)
    rows = [
        {
            **model.model_dump(mode="json", include={"id", "t", "parent", "state", "created", "training_seconds"}),
            "in_service": current is not None and current.model == model.id,
            "reason": model.decision.get("reason"),
        }
        for model in page[:limit]
    ]
    following = rows[-1]["id"] if len(page) > limit else None
    cells = [
        [
            "●" if row["in_service"] else "",
            *(model.id, str(model.t), model.state, _when(model.created), f"{model.training_seconds:.1f}"),
            row["reason"] or "",
        ]
        for row, model in zip(rows, page, strict=False)
    ]
    headings = ["", "model", "period", "state", "created (UTC)", "seconds", "reason"]
    output.print(Table(headings, cells, "Models", align="llllllL"))
    output.print(*_page_notes(workspace, len(rows), following))
    output.write({"models": rows, "next": following})


def periods(
    folder: WorkspaceFolder,
    limit: Limit = 20,
    before: Annotated[
        int | None,
        typer.Option(
            help="Start after this id; of the previous page the earliest period.", show_default="the last periods"
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """List the closed periods: their events and users, and how the model in service did on each before learning it."""
    with opened(folder) as workspace:
        page = closed_periods(workspace.engine, before=before, limit=limit + 1)
    shown = page[-limit:]
    following = shown[0].t if len(page) > limit else None
    rows, cells = [], []
    for period in shown:
        score = score_in(period.evaluation)
        gap = gap_in(score)
        rows.append(
            {
                **period.model_dump(mode="json", include={"t", "closed", "n_events", "n_users", "n_late"}),
                "ndcg": score.get("mean"),
                "largest_gap": None if gap is None else asdict(gap),
                "evaluation": period.evaluation,
            }
        )
        counts = map(count, (period.n_events, period.n_users, period.n_late))
        side = gap.side if gap else why_no_gap(period.evaluation or {}) if score.get("by_group") else ""
        size = gap.size if gap else MISSING
        cells.append([str(period.t), _when(period.closed), *counts, number(score.get("mean")), size, side])
    headings = ["period", "closed (UTC)", "events", "users", "late", "NDCG", "largest gap", "whose"]
    output.print(Table(headings, cells, "Periods", align="llrrrrrL"))
    output.print(*_page_notes(workspace, len(rows), following))
    output.write({"periods": rows, "next": following})


def _page_notes(workspace: Workspace, n_rows: int, following: object) -> list[str]:
    """Return the hint to the next page, or "None yet.", and the note on privacy noise, if there is any."""
    more = [f"There are more: --before {following} shows the next page."] if following is not None else []
    noise = noise_words(workspace.config.privacy.epsilon_per_quarter)
    return [*(more if n_rows else ["None yet."]), *([] if noise is None else [noise])]


def _when(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def promote(
    folder: WorkspaceFolder,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Its id, as `fairstream models` lists it.", show_default=False)
    ],
    *,
    output: Output,
) -> None:
    """Promote a rejected or earlier model."""
    with opened(folder) as workspace:
        registry.promote(workspace, model, by=who())
    output.print(f"Model {model} is in service.")
    output.write({"model": model})


def rollback(folder: WorkspaceFolder, *, output: Output) -> None:
    """Return to the model that the current one was trained from."""
    with opened(folder) as workspace:
        model = registry.rollback(workspace, by=who())
    output.print(f"Model {model} is in service again.")
    output.write({"model": model})


def audit(
    folder: WorkspaceFolder,
    expect: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Hash that an entry must have, noted earlier.", show_default=False),
    ] = None,
    *,
    output: Output,
) -> None:
    """Verify the audit record and print it, oldest entry first.

    Each entry holds the hash of the one before it, keyed with the workspace's secret. Note the last hash elsewhere:
    --expect verifies later that the record up to it is unchanged. Compares the files of the kept models, the forgotten
    people and the number of events with the record. Exits with 2 if a database file is damaged or anything was changed.
    """
    rows = []
    with opened(folder) as workspace:
        workspace.check_files()
        n, last = verify(workspace.engine, expect), ""
        findings = list(differences(workspace))
        for entry in entries(workspace.engine):
            last, body = entry.hash, json.loads(entry.body)
            when = datetime.fromtimestamp(entry.time / 1e6, UTC)
            if output.json is not None:
                rows.append({**vars(entry), "time": when.isoformat(), "body": body})
            output.print(f"{entry.seq:5}  {_when(when)} UTC  {entry.kind:10}  {_short(body)}")
    output.print(f"{n} entries, each unchanged and in its place; the last hash is {last}")
    output.write({"n_entries": n, "last_hash": last, "findings": findings, "entries": rows})
    if findings:
        raise WorkspaceError("the workspace differs from its audit record: " + "; ".join(findings))


def _short(body: dict[str, Any]) -> str:
    """Return the words and numbers of an entry, without its tables."""
    plain = {name: value for name, value in body.items() if isinstance(value, str | int | float)}
    reason = body.get("decision", {}).get("reason") if isinstance(body.get("decision"), dict) else None
    about = body.get("about")
    control = about.get("control") if isinstance(about, dict) else None
    words = [*(f"{name} {value}" for name, value in plain.items()), *([reason] if reason else [])]
    return "; ".join([", ".join(words), *([control["sentence"]] if control else [])])


def upgrade(folder: WorkspaceFolder, *, output: Output) -> None:
    """Migrate a workspace's tables to this version of fairstream; stop its service first."""
    is_changed = Workspace.upgrade(folder)
    state = "were migrated to this version" if is_changed else "are up to date"
    output.print(f"The tables of {folder} {state}.")
    output.write({"folder": str(folder), "upgraded": is_changed})


def update(
    folder: WorkspaceFolder,
    update_id: Annotated[
        str | None, typer.Option("--id", help="Id of a requested update.", show_default="a new one")
    ] = None,
    *,
    afresh: Annotated[
        bool, typer.Option("--afresh", help="Make a first model of all stored events, compared with none.")
    ] = False,
    output: Output,
) -> None:
    """Evaluate the model in service on the events since the last update, train on them, and let the gate decide.

    Exit codes: 0 promoted, 3 rejected by the gate, 4 skipped (too little to judge by), 5 failed.
    """
    with (
        opened(folder) as workspace,
        on_interrupt(lambda: _outcome(workspace)),
        reporting_compilation(quiet=output.quiet),
    ):
        done = updates.run(workspace, update_id, output.print, by=who(), afresh=afresh)
    outcome = f"Update {done.id} {done.state}: {done.reason}"
    output.print(outcome)
    if output.console.quiet and done.state != "promoted":
        print_error(outcome)
    output.write(done.model_dump(mode="json"))
    raise typer.Exit(_EXIT_CODES[done.state])


def _outcome(workspace: Workspace) -> str:
    """Return the state that an interrupted update leaves."""
    last = updates.listed(workspace.engine, limit=1)
    if last and last[0].state in ("promoted", "rejected", "skipped"):
        return f"update {last[0].id} had ended already: {last[0].state}"
    return "the model in service is the one before, and the events wait for the next update"


keys_app = CommandGroup(help="Create, list and revoke API keys.", no_args_is_help=True)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is, or what it is for.", show_default=False)]


@keys_app.command()
def add(
    folder: WorkspaceFolder,
    name: _Name,
    scope: Annotated[
        Literal["ingest", "attributes", "read", "admin"],
        typer.Option(help="What it may do; admin: everything.", show_default=False, case_sensitive=False),
    ],
    json: Json = None,
) -> None:
    """Create a key and print it, once: only its hash is stored."""
    output = Output(json)
    with opened(folder) as workspace:
        key = make_key(workspace.engine, name, scope)
    if json is None:
        typer.echo(key)
    output.write({"name": name, "scope": scope, "key": key})


@keys_app.command("list")
def list_(folder: WorkspaceFolder, *, output: Output) -> None:
    """List all keys by name, revoked ones too; the keys themselves are not stored."""
    with opened(folder) as workspace:
        keys = list_keys(workspace.engine)
    headings = ("name", "scope", "created", "revoked")
    cells = [(key.name, key.scope, _moment(key.created), key.revoked and _moment(key.revoked)) for key in keys]
    output.print(Table(headings, [[cell or "" for cell in row] for row in cells], "Keys", align="llll"))
    output.write({"keys": [dict(zip(headings, row, strict=True)) for row in cells]})


@keys_app.command()
def revoke(folder: WorkspaceFolder, name: _Name, *, output: Output) -> None:
    """Revoke a key."""
    with opened(folder) as workspace:
        revoke_key(workspace.engine, name)
    output.print(f"The key {name!r} is revoked.")
    output.write({"name": name, "revoked": True})


def _moment(micros: int) -> str:
    return f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
