"""The privacy budget of groups: what updates may publish about them in a quarter, and what they have spent.

The unit is the squared μ of Gaussian differential privacy, which adds up over all published numbers. An attacker who
knows everything but one person's group, and how the noise is made, guesses it right with probability Φ(μ / 2) at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, Engine, delete, insert, select

from fairstream.service import schema
from fairstream.service.database import now, reading
from fairstream.service.gaps import noise_words
from fairstream.service.people import in_parts
from fairstream.service.settings import Privacy

if TYPE_CHECKING:
    from fairstream.evaluation.resampling import Array

SHARES: Final = {"sizes": 0.05, "report": 0.6, "clicks": 0.025, "conversions": 0.025, "gate": 0.1, "target": 0.2}
"""How the budget is divided: the sizes of groups among all people, the numbers of periods, the people who clicked and
who converted, the gate, the target."""
DELTA: Final = 1e-6
DAY = 86_400_000_000
QUARTER: Final = 91 * DAY
_NORMAL = NormalDist()
_N_HALVINGS = 60


def mu_of(epsilon: float) -> float:
    """The μ of Gaussian privacy that is (ε, `DELTA`)-private.

    >>> round(mu_of(1.0), 3), round(mu_of(4.0), 3)
    (0.237, 0.838)
    """
    low, high = 0.0, 2 * math.sqrt(epsilon) + epsilon
    for _ in range(_N_HALVINGS):
        mu = (low + high) / 2
        delta = _NORMAL.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * _NORMAL.cdf(-mu / 2 - epsilon / mu)
        low, high = (mu, high) if delta < DELTA else (low, mu)
    return low


def guess_of(cost: float) -> float:
    """The largest probability of a right guess at a person's group after this cost.

    >>> guess_of(0.0), round(guess_of(1.0), 3)
    (0.5, 0.691)
    """
    return _NORMAL.cdf(math.sqrt(cost) / 2)


@dataclass
class Budget:
    """What may be spent on groups at a time; it accrues evenly and is lost after a quarter.

    Each purpose has its share. It may spend what has accrued since it spent last, so that one update does not use up
    what later ones need, and in no quarter more than its share. The first numbers may cost all of it, so that an
    imported history can be seen at once.
    """

    privacy: Privacy
    spent: list[tuple[int, str, float]] = field(default_factory=list)  # time, purpose and cost, the earliest first
    at: int = 0
    sizes: dict[str, float] = field(default_factory=dict)
    """The sizes of the groups among all people, as published last: costs are computed from them."""
    waits: bool = False  # until imported history is replayed: its periods are closed within minutes, and one can pay
    _n_stored: int = 0

    @classmethod
    def read(cls, engine: Engine, privacy: Privacy, *, waits: bool = False) -> Budget:
        """Read what was ever spent."""
        with reading(engine) as connection:
            rows = connection.execute(select(schema.privacy_spent).order_by(schema.privacy_spent.c.seq)).all()
        sizes = [row.published for row in rows if row.what == "sizes"]
        spent = [(row.time, row.what, row.cost) for row in rows]
        return cls(privacy, spent, now(), sizes[-1] if sizes else {}, waits, len(rows))

    @property
    def is_off(self) -> bool:
        return self.privacy.epsilon_per_quarter == "off"

    def limit(self, what: str) -> float:
        """What a purpose may spend in a quarter."""
        epsilon = self.privacy.epsilon_per_quarter
        return math.inf if epsilon == "off" else SHARES[what] * mu_of(epsilon) ** 2

    def used(self, what: str) -> float:
        """What a purpose has spent in the last quarter."""
        return sum(cost for time, name, cost in self.spent if name == what and time > self.at - QUARTER)

    def allowed(self, what: str) -> float:
        """What a purpose may spend now."""
        if self.is_off:
            return math.inf
        if self.waits:
            return 0.0
        limit, last = self.limit(what), self.last(what)
        accrued = limit if last is None else limit * min(1.0, (self.at - last) / QUARTER)
        return max(0.0, min(accrued, limit - self.used(what)))

    def when(self, what: str, cost: float) -> int | None:
        """When a cost will have accrued; None: never."""
        limit, last = self.limit(what), self.last(what)
        if cost > limit:
            return None
        return self.at if last is None else max(self.at, last + int(cost / limit * QUARTER))

    def spend(self, what: str, cost: float) -> None:
        if not self.is_off:
            self.spent.append((self.at, what, cost))

    def store(self, connection: Connection) -> None:
        """Store what was spent, in the transaction that publishes the numbers."""
        rows = [
            {"time": time, "what": what, "cost": cost, "published": self.sizes if what == "sizes" else {}}
            for time, what, cost in self.spent[self._n_stored :]
        ]
        if rows:
            connection.execute(insert(schema.privacy_spent), rows)

    def last(self, what: str) -> int | None:
        """When a purpose spent last."""
        return max((time for time, name, _ in self.spent if name == what), default=None)


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
        total = sum(map(budget.limit, SHARES))
        spent_by = {what: budget.used(what) / total for what in SHARES}
        spent, ever = sum(spent_by.values()), sum(cost for _, _, cost in budget.spent)
        return cls(
            epsilon_per_quarter=privacy.epsilon_per_quarter,
            delta=DELTA,
            spent=spent,
            left=max(0.0, 1 - spent),
            spent_by=spent_by,
            max_guess=1.0 if budget.is_off else guess_of(ever),
            max_guess_per_quarter=guess_of(total),
        )

    @property
    def sentence(self) -> str | None:
        """What readers of groups' numbers must know; None if they have no noise."""
        if (words := noise_words(self.epsilon_per_quarter)) is None:
            return None
        return (
            f"{words} {self.spent:.0%} of the budget is spent: an attacker who knows all else guesses a person's group "
            f"right with a probability of at most {self.max_guess:.0%}."
        )


class LatestTests:
    """Each user's last test since numbers of groups were published, so that each user counts once."""

    def __init__(self, engine: Engine) -> None:
        rows = schema.tested_users.c
        with reading(engine) as connection:
            self._values = dict(connection.execute(select(rows.user_id, rows.value)).all())
        self._new, self._is_cleared = list[dict[str, Any]](), False

    def add(self, user_ids: Sequence[str], values: Array, t: int) -> None:
        """Add the tests of a period."""
        self._new = [
            {"user_id": user_id, "t": t, "value": value}
            for user_id, value in zip(user_ids, values.tolist(), strict=True)
        ]
        self._values |= {row["user_id"]: row["value"] for row in self._new}

    def columns(self) -> tuple[list[str], Array]:
        """Return the users and their values."""
        return list(self._values), np.array(list(self._values.values()), np.float64)

    def clear(self) -> None:
        """Start again: numbers were published."""
        self._new, self._is_cleared = [], True

    def store(self, connection: Connection) -> None:
        rows = schema.tested_users
        if self._is_cleared:
            connection.execute(delete(rows))
        # Only rows that change, because others wait for this transaction: 300,000 rows take four seconds.
        for part in in_parts([row["user_id"] for row in self._new]):
            connection.execute(delete(rows).where(rows.c.user_id.in_(part)))
        if self._new:
            connection.execute(insert(rows), self._new)
