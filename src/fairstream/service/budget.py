"""The privacy budget of groups: what updates may publish about them in a quarter, and what they have spent.

The unit is the squared μ of Gaussian differential privacy, which adds up over all that is published. Somebody who knows
everything but one person's group, and how the noise is made, guesses it right with probability Φ(μ / 2) at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, Engine, delete, func, insert, select

from fairstream.evaluation.private_groups import DELTA, guess_of, mu_of
from fairstream.evaluation.resampling import Array
from fairstream.service import schema
from fairstream.service.database import now, reading
from fairstream.service.people import in_parts
from fairstream.service.records import Record, Time
from fairstream.service.settings import Privacy

SHARES: Final = {"sizes": 0.05, "report": 0.6, "gate": 0.15, "target": 0.2}
"""How the budget is divided: the sizes of groups among all people, the numbers of periods, the gate, the target."""
DAY = 86_400_000_000
QUARTER: Final = 91 * DAY


class Spend(Record):
    """What was spent once."""

    time: Time
    what: str  # sizes, report, gate or target
    cost: float  # squared μ
    published: dict[str, Any]


@dataclass
class Budget:
    """What may be spent on groups at a time; it accrues evenly and is lost after a quarter.

    Each purpose has its share. It may spend what has accrued since it spent last, so that one update does not use up
    what later ones need; and in no quarter more than its share. The first numbers may cost all of it: what is known
    of an imported history can be seen at once.
    """

    privacy: Privacy
    spent: list[tuple[int, str, float]] = field(default_factory=list)
    at: int = 0
    waits: bool = False  # until imported history is replayed: its periods are closed within minutes, and one can pay
    new: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, engine: Engine, privacy: Privacy, *, waits: bool = False) -> Budget:
        rows, at = schema.privacy_spent.c, now()
        recent = select(rows.time, rows.what, rows.cost).where(rows.time > at - QUARTER)
        with reading(engine) as connection:
            spent = [(row.time, row.what, row.cost) for row in connection.execute(recent)]
        return cls(privacy, spent, at, waits)

    @property
    def is_off(self) -> bool:
        return self.privacy.epsilon_per_quarter == "off"

    def limit(self, what: str) -> float:
        """What a purpose may spend in a quarter."""
        epsilon = self.privacy.epsilon_per_quarter
        return math.inf if epsilon == "off" else SHARES[what] * mu_of(epsilon) ** 2

    def allowed(self, what: str) -> float:
        """What a purpose may spend now."""
        limit, last = self.limit(what), self._last(what)
        if self.is_off or self.waits:
            return limit if self.is_off else 0.0
        accrued = limit if last is None else limit * min(1.0, (self.at - last) / QUARTER)
        used = sum(cost for time, name, cost in self.spent if name == what and time > self.at - QUARTER)
        return max(0.0, min(accrued, limit - used))

    def when(self, what: str, cost: float) -> int | None:
        """When a cost will have accrued; None: never."""
        limit, last = self.limit(what), self._last(what)
        if cost > limit:
            return None
        return self.at if last is None else max(self.at, last + int(cost / limit * QUARTER))

    def spend(self, what: str, cost: float, published: dict[str, Any] | None = None) -> None:
        if not self.is_off:
            self.spent.append((self.at, what, cost))
            self.new.append({"time": self.at, "what": what, "cost": cost, "published": published or {}})

    def store(self, connection: Connection) -> None:
        """Store what was spent, in the transaction that publishes the numbers."""
        if self.new:
            connection.execute(insert(schema.privacy_spent), self.new)

    def _last(self, what: str) -> int | None:
        return max((time for time, name, _ in self.spent if name == what), default=None)


def spends(engine: Engine, what: str | None = None, limit: int | None = None) -> list[Spend]:
    """Return what was spent, the latest first."""
    rows = schema.privacy_spent
    query = select(rows).order_by(rows.c.seq.desc()).limit(limit)
    with reading(engine) as connection:
        chosen = query if what is None else query.where(rows.c.what == what)
        return [Spend(**row) for row in connection.execute(chosen).mappings()]


class PrivacyStatus(BaseModel):
    """What may be published about groups in a quarter, and how much of it the last 91 days have used."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    epsilon_per_quarter: float | str
    """The budget of a quarter; "off": numbers of groups are exact."""
    delta: float = Field(examples=[1e-6])
    """The probability with which the guarantee may fail."""
    spent: float
    """Share of the budget that the last 91 days have used."""
    left: float
    """Share of the budget that is left."""
    spent_by: dict[str, float] = Field(examples=[{"gate": 0.2}])
    """The same for sizes of groups, reports, the gate and the target."""
    max_guess: float = Field(examples=[0.73])
    """Highest probability with which somebody who knows all else guesses a group from all ever published."""
    max_guess_per_quarter: float = Field(examples=[0.73])
    """The same from what a quarter may publish."""

    @classmethod
    def of(cls, engine: Engine, privacy: Privacy) -> PrivacyStatus:
        budget = Budget.read(engine, privacy)
        costs = {what: sum(cost for _, name, cost in budget.spent if name == what) for what in SHARES}
        total = math.inf if budget.is_off else sum(map(budget.limit, SHARES))
        used = sum(costs.values())
        with reading(engine) as connection:
            ever = connection.scalar(select(func.sum(schema.privacy_spent.c.cost))) or 0.0
        return cls(
            epsilon_per_quarter=privacy.epsilon_per_quarter,
            delta=DELTA,
            spent=used / total,
            left=max(0.0, 1 - used / total),
            spent_by={what: cost / total for what, cost in costs.items()},
            max_guess=1.0 if budget.is_off else guess_of(ever),
            max_guess_per_quarter=1.0 if budget.is_off else guess_of(total),
        )

    @property
    def sentence(self) -> str | None:
        """What readers of groups' numbers must know; None where there is no noise."""
        if self.epsilon_per_quarter == "off":
            return None
        return (
            f"Numbers of groups carry noise on purpose, for privacy (epsilon = {self.epsilon_per_quarter:g} a quarter, "
            f"{self.spent:.0%} spent): whoever knows all else guesses a person's group from them with at most "
            f"{self.max_guess:.0%}."
        )


class LatestTests:
    """Each user's last test since numbers of groups were published: one record for each, so that each counts once."""

    def __init__(self, engine: Engine) -> None:
        rows = schema.tested_users.c
        with reading(engine) as connection:
            self._values = dict(connection.execute(select(rows.user_id, rows.value)).all())
        self._new, self._is_cleared = list[dict[str, Any]](), False

    def add(self, user_ids: Sequence[str], values: Array, t: int) -> None:
        """Take up the tests of a period."""
        self._new = [
            {"user_id": user_id, "t": t, "value": value}
            for user_id, value in zip(user_ids, values.tolist(), strict=True)
        ]
        self._values |= {row["user_id"]: row["value"] for row in self._new}

    def columns(self) -> tuple[list[str], Array]:
        """Return the users and their values."""
        return list(self._values), np.array(list(self._values.values()), np.float64)

    def clear(self) -> None:
        """Begin again: numbers were published."""
        self._new, self._is_cleared = [], True

    def store(self, connection: Connection) -> None:
        rows = schema.tested_users
        if self._is_cleared:
            connection.execute(delete(rows))
        for part in in_parts([row["user_id"] for row in self._new]):
            connection.execute(delete(rows).where(rows.c.user_id.in_(part)))
        if self._new:
            connection.execute(insert(rows), self._new)
