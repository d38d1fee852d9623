"""Who gets which arm of an experiment, and interleaved lists.

A keyed hash of the user and the experiment gives each user a number from 0 to 1. Users below `share` get B. Equally
many users above 1 − `share` get A and are compared with them, so that both arms see the same hours while the share
grows.
"""

from __future__ import annotations

import hmac
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["split", "interleave", "shadow"]


@dataclass(frozen=True)
class Arms:
    """A running experiment as each process needs it: who gets which arm."""

    id: str
    mode: Mode
    a: str
    b: str
    share: float
    key: bytes

    @property
    def both(self) -> str:
        """The model of an interleaved list."""
        return f"{self.a}+{self.b}"[:32]

    def position(self, user_id: str) -> float:
        """Return a number from 0 to 1 that only the secret, the experiment and the user determine."""
        digest = hmac.digest(self.key, f"experiment {self.id}\n{user_id}".encode(), "sha256")
        return int.from_bytes(digest[:6], "big") / 2**48

    def arm_of(self, user_id: str) -> str:
        """Return A or B; empty for users who get A and are not compared."""
        if self.mode == "shadow":
            return ""
        at = self.position(user_id)
        if at < self.share:
            return "B"
        return "A" if self.mode == "split" and at >= 1 - self.share else ""

    def stamp(self, user_id: str, items: Sequence[str], list_id: str | None) -> dict[str, Any]:
        """Return the model, arms and propensities of a list that the user saw."""
        arm, n = self.arm_of(user_id), len(items)
        if self.mode == "interleave" and arm:
            teams = _decode(self.id, items, list_id or "")
            if teams is None:  # nobody knows whose items these were
                return {"propensities": [1.0] * n}
            return {
                "model": self.both,
                "experiment": self.id,
                "arms": "".join(team for team, _ in teams),
                "propensities": [p for _, p in teams],
            }
        share = 1.0 if self.mode != "split" else self.share if arm == "B" else 1 - self.share
        stamp = {"model": self.b if arm == "B" else self.a, "propensities": [share] * n}
        return stamp | ({"experiment": self.id, "arms": arm} if arm else {})


def interleave(a: Sequence[str], b: Sequence[str], k: int, *, b_first: bool) -> list[tuple[str, str, float]]:
    """Draft a list by turns: each model adds its best item that the list does not have yet.

    One coin says which model begins, so that an item is shown with the probability 1/2 or 1. Each entry is an item, its
    team ("a" or "b") and this probability (Radlinski, Kurup and Joachims 2008 throw a coin before each pair of turns).

    >>> interleave(["x", "y", "z"], ["x", "v", "w"], 2, b_first=False)
    [('x', 'a', 1.0), ('v', 'b', 0.5)]
    """
    drafts = [_draft(a, b, k, begins) for begins in (b_first, not b_first)]
    return [(item, team, 1.0 if item in drafts[1] else 0.5) for item, team in drafts[0].items()]


def _draft(a: Sequence[str], b: Sequence[str], k: int, b_begins: bool) -> dict[str, str]:
    teams: dict[str, str] = {}
    turns = [("a", iter(a)), ("b", iter(b))]
    for n in range(2 * k):
        team, ranked = turns[(n + b_begins) % 2]
        if len(teams) < k and (item := next((item for item in ranked if item not in teams), None)) is not None:
            teams[item] = team
    return teams


def encode(experiment: str, entries: Sequence[tuple[str, str, float]]) -> str:
    """Return the id of an interleaved list, which holds each item's team: a capital where the propensity is 1."""
    marks = (f"{team.upper() if p == 1.0 else team}{_hash(item)}" for item, team, p in entries)
    return ".".join((experiment, secrets.token_hex(6), *marks))


def _decode(experiment: str, items: Sequence[str], list_id: str) -> list[tuple[str, float]] | None:
    """Return the team and propensity of each item; None if the list is not one of the experiment's."""
    name, *marks = list_id.split(".")
    team_of = {mark[1:]: mark[:1] for mark in marks[1:]}
    teams = [team_of.get(_hash(item), "") for item in items]
    if name != experiment or not all(team in ("a", "b", "A", "B") for team in teams):
        return None
    return [(team.lower(), 1.0 if team.isupper() else 0.5) for team in teams]


def _hash(item: str) -> str:
    return f"{zlib.crc32(item.encode()) & 0xFFFFF:x}"
