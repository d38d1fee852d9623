"""Evaluation protocols: what may be known, who is tested, what is ranked, and which NDCG.

`paper` is what produced the published numbers; `strict` repairs all of it, and `paper+ranking`
repairs one thing, to show its effect on the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from fairstream.evaluation.metrics import (
    BUILT_IN,
    Metric,
    MetricAtK,
    f1,
    hit,
    mrr,
    precision,
    recall,
    retrieved_ndcg,
    true_ndcg,
)


@dataclass(frozen=True)
class Protocol:
    """Four weaknesses of the published protocol; each is repaired where it is True.

    >>> Protocol.named("strict").full_ranking, Protocol.named("paper+ndcg")
    (True, Protocol(point_in_time=False, full_ranking=False, true_ndcg=True, cold_users=False))
    """

    point_in_time: bool = False
    """+leak: negatives and catalogue as of the period; else the user's future is excluded and all
    items are known ahead."""
    full_ranking: bool = False
    """+ranking: against all items known, less the user's own; else against 100 sampled ones."""
    true_ndcg: bool = False
    """+ndcg: over the best possible list; else over the best order of the hits in the list."""
    cold_users: bool = False
    """+cold-users: users without history are tested too, on the fallback; else they are left out."""

    @classmethod
    def named(cls, name: str) -> Protocol:
        """The protocol of a name such as `strict`, `paper` or `paper+leak+ndcg`."""
        base, *repairs = name.split("+")
        if base not in ("paper", "strict") or (base == "strict" and repairs) or set(repairs) - set(REPAIRS):
            raise ValueError(
                f"protocol must be strict, paper, or paper with repairs such as paper+ranking "
                f"(there are {', '.join(REPAIRS)}), got {name!r}"
            )
        if base == "strict":
            return cls(**dict.fromkeys(REPAIRS.values(), True))
        return replace(cls(), **dict.fromkeys((REPAIRS[repair] for repair in repairs), True))

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics by name, the main one first."""
        rest: dict[str, Metric] = {"recall": recall, "precision": precision, "f1": f1, "hit": hit, "mrr": mrr}
        if self.true_ndcg:
            return {"ndcg": true_ndcg, **rest}
        return {"ndcg": retrieved_ndcg, **rest, "true_ndcg": true_ndcg}

    def built_in(self, name: str) -> MetricAtK | None:
        """The metric that stored hits give under the name NAME@K; None: only stored values can.

        >>> Protocol.named("paper").built_in("ndcg@5").metric is retrieved_ndcg
        True
        """
        base, _, k = name.rpartition("@")
        metric = {**BUILT_IN, **self.metrics}.get(base)
        return None if metric is None else MetricAtK(name, metric, int(k))


REPAIRS = dict(zip(("leak", "ranking", "ndcg", "cold-users"), (field.name for field in fields(Protocol)), strict=True))
"""Name of each repair → the field that it sets."""
