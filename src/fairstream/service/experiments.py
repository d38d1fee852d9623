"""Experiments: the model in service (arm A) and another one (arm B) side by side; `looks` has the tests.

While an experiment runs no update starts, because a promotion would change an arm. A rollback or promotion of the
service ends the experiment in the same transaction.
"""

from __future__ import annotations

import secrets
from typing import Any, Literal, Self

from pydantic import Field, computed_field, model_validator
from sqlalchemy import Connection, Engine, insert, select

from fairstream.configuration import Configuration
from fairstream.errors import WorkspaceError
from fairstream.service import registry, schema, updates
from fairstream.service.arms import Arms, Mode
from fairstream.service.audit import record
from fairstream.service.database import bump, now, reading
from fairstream.service.records import Record, Time, UnknownIdError
from fairstream.service.rules import replace_rules, rules_from_json
from fairstream.service.workspace import Workspace

_NONE = "there is no experiment yet; PUT /v1/experiment or `fairstream experiment start` starts one"
_rows = schema.experiments


class Options(Configuration):
    """What an experiment compares, and when it ends."""

    b: str = Field(min_length=1, max_length=32, examples=["m00001-5f2a9c1e"])
    """The other model, whose files are kept; the model in service only with other rules."""
    mode: Mode = "split"
    """split: each user gets lists of one model; interleave: lists that both models fill by turns; shadow: lists of B
    are made and measured, and never shown."""
    metric: Literal["click_through", "conversion"] = "click_through"
    """The metric that decides. Interleaving is decided by whose items users click first."""
    rules: list[dict[str, Any]] | None = Field(None, examples=[[{"at_most": {"n": 3, "per": "category"}}]])
    """Rules for the lists of B instead of those of `PUT /v1/rules`."""
    steps: list[float] = Field([0.01, 0.1, 0.5], min_length=1)
    """Shares of users that get B, one after the other; of a split at most half."""
    step_hours: float = Field(24, ge=0)
    """The minimum time of each share; the next one also needs 100 users of B."""
    max_users: int = Field(200_000, ge=200)
    """After this many users of both arms the experiment ends without a difference."""
    alpha: float = Field(0.05, gt=0, lt=1)
    """The probability that the experiment decides for a difference, or is rolled back, where there is none."""
    max_fall_of_click_through: float = Field(0.1, ge=0, lt=1)
    """B is rolled back if it loses significantly more than this share of A's click-through, …"""
    max_fall_of_conversion: float = Field(0.1, ge=0, lt=1)
    """… or of A's conversion, …"""
    max_rise_of_latency: float = Field(0.5, ge=0)
    """… or takes longer for a list by more than this share, …"""
    max_rise_of_fallback: float = Field(0.02, ge=0, le=1)
    """… or answers more users by popularity, as a share of users."""

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        most = 0.5 if self.mode == "split" else 1.0
        if sorted(set(self.steps)) != self.steps or not 0 < self.steps[0] <= self.steps[-1] <= most:
            raise ValueError(f"steps must rise, above 0 and up to {most:g}, got {self.steps}")
        return self


class Experiment(Record):
    """An experiment, its latest results, and how it ended."""

    id: str = Field(examples=["x5b7c9d21e0"])
    """Id of the experiment."""
    state: Literal["running", "ended"]
    """Whether it runs."""
    mode: Mode
    """How people get the lists of B."""
    a: str = Field(examples=["m00012"])
    """Model of arm A: the one in service when the experiment started."""
    b: str = Field(examples=["m00013"])
    """Model of arm B."""
    options: Options
    """What was asked for."""
    share: float
    """Share of users that get B."""
    started: Time
    """When it began."""
    step_since: Time
    """When the share was last changed."""
    ended: Time | None
    """When it ended; null before."""
    looks: dict[str, Any] = Field(examples=[{"users": {"A": 0, "B": 0}, "tests": {}}])
    """Users of each arm, and each test with its interval."""
    decision: dict[str, Any] | None = Field(examples=[{"outcome": "better", "sentence": "…"}])
    """The outcome and its sentence; null before."""

    def arms(self, secret: bytes) -> Arms:
        """Return who gets which arm."""
        return Arms(self.id, self.mode, self.a, self.b, self.share, secret)

    @computed_field(examples=[["No impressions yet."]])  # type: ignore[prop-decorator]
    @property
    def sentences(self) -> list[str]:
        """The state and the results, for people."""
        shares = {"split": "get B", "interleave": "get lists of both"}
        how = f"{self.share:.0%} of users {shares[self.mode]}" if self.mode in shares else "B is never shown"
        state = (
            f"has been running since {self.started:%Y-%m-%d %H:%M} UTC; {how}" if self.ended is None else "has ended"
        )
        lines = [f"Experiment {self.id} ({self.mode}) of model {self.a} (A) and {self.b} (B) {state}."]
        if self.mode == "shadow":
            lines.append(self.looks.get("shadow") or "No list has been compared yet.")
        elif any(users := self.looks.get("users", {}).values()):
            counts = ", ".join(f"{n:,} of {arm}" for arm, n in zip("AB", users, strict=True))
            lines.append(f"Users with impressions: {counts}.")
        else:
            lines.append("No impressions yet.")
        tests = self.looks.get("tests", {}).items()
        lines += [f"{name.replace('_', ' ')}: {test['sentence']}." for name, test in tests]
        if withheld := self.looks.get("groups", {}).get("withheld"):
            lines.append(f"No numbers of groups: {withheld}.")
        return lines + ([self.decision["sentence"]] if self.decision else [])


def listed(connection: Connection, limit: int) -> list[Experiment]:
    """Return the experiments, the latest first, which is the running one if one runs."""
    rows = connection.execute(select(_rows).order_by(_rows.c.started.desc(), _rows.c.id).limit(limit))
    return [Experiment(**row) for row in rows.mappings()]


def running(connection: Connection) -> Experiment | None:
    """Return the running experiment."""
    return next((each for each in listed(connection, 1) if each.state == "running"), None)


def get(engine: Engine) -> Experiment:
    """Return the running experiment, else the last one."""
    with reading(engine) as connection:
        return latest(connection)


def latest(connection: Connection) -> Experiment:
    """Return the last experiment, which is the running one if one runs."""
    for experiment in listed(connection, 1):
        return experiment
    raise UnknownIdError(_NONE)


def start(workspace: Workspace, options: Options, *, by: str) -> Experiment:
    """Start an experiment; a `WorkspaceError` says why it cannot start."""
    rules_from_json(options.rules or [], workspace.config.items.properties)
    updates.fail_dead(workspace)
    with registry.deciding(workspace.engine) as (connection, current):
        updates.refuse_if_open(connection)
        if (other := registry.running_experiment(connection)) is not None:
            raise WorkspaceError(f"experiment {other} is running; end it before another one starts")
        if current is None:
            raise WorkspaceError("there is no model in service yet to compare with; the first update makes one")
        if options.b == current and options.rules is None:
            raise WorkspaceError(f"model {current} is in service already; name another one, or rules for arm B")
        registry.require_kept(workspace, connection, options.b)
        id_, moment = f"x{secrets.token_hex(5)}", now()
        row = insert(_rows).values(
            id=id_,
            state="running",
            mode=options.mode,
            a=current,
            b=options.b,
            options=options.model_dump(),
            share=options.steps[0],
            started=moment,
            step_since=moment,
            looks={},
        )
        connection.execute(row)
        record(connection, "experiment", {"id": id_, "started": options.model_dump(), "a": current, "by": by})
        bump(connection, "experiment")
        return latest(connection)


def stop(workspace: Workspace, *, by: str) -> Experiment:
    """End the running experiment: everybody gets the model in service."""
    with registry.deciding(workspace.engine) as (connection, _):
        if registry.end_experiment(connection, "stopped", f"It was stopped by {by}.", by=by) is None:
            raise WorkspaceError("no experiment is running")
        return latest(connection)


def promote(workspace: Workspace, *, by: str) -> str:
    """Put B of the running experiment into service, with its rules, which ends the experiment."""
    with registry.deciding(workspace.engine) as (connection, current):
        if (experiment := running(connection)) is None:
            raise WorkspaceError("no experiment is running; `fairstream promote` puts any model into service")
        registry.end_experiment(connection, "promoted", "B was put into service.", by=by)
        if (rules := experiment.options.rules) is not None:
            replace_rules(connection, rules_from_json(rules, workspace.config.items.properties), by=by)
        if rules is None or experiment.b != current:
            registry.change_model(workspace, connection, current, experiment.b, "promote", by)
    return experiment.b
