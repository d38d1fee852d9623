"""Ranking metrics: functions of (lists, truth) that return one value a user, or one number for all users."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairstream.data import Rows
from fairstream.errors import ConfigurationError
from fairstream.evaluation.lists import Floats, Lists, Mask, Truth
from fairstream.registry import Registry

Metric = Callable[[Any, Any], Any]
"""(`Lists` of U users, `Truth`) → (U,) values, or one number."""
METRICS: Registry[Metric] = Registry("metric")
"""Metrics by name."""


class HitCounts(NamedTuple):
    """The part of `Lists` and `Truth` that is stored: enough to compute the built-in metrics again."""

    hits: Mask
    n_positives: Rows | Floats


HasHits = Lists | HitCounts
HasPositives = Truth | HitCounts


def dcg(lists: HasHits) -> Floats:
    """Σ_r hit_r / log₂(r + 1)."""
    discounted: Floats = lists.hits @ _discounts(lists.hits.shape[1])
    return discounted


def true_ndcg(lists: HasHits, truth: HasPositives) -> Floats:
    """DCG over that of the best possible list, which has min(k, positives) hits in front.

    >>> true_ndcg(*_hits([[1, 0]], [2])).round(4)
    array([0.6131])
    """
    return _over_ideal(lists, truth.n_positives)


def retrieved_ndcg(lists: HasHits, truth: HasPositives) -> Floats:
    """DCG over that of the best order of the hits in the list: the paper's NDCG.

    One hit at rank 1 scores 1, however many were missed.

    >>> retrieved_ndcg(*_hits([[1, 0]], [2]))
    array([1.])
    """
    return _over_ideal(lists, lists.hits.sum(axis=1))


def recall(lists: HasHits, truth: HasPositives) -> Floats:
    """Hits / positives."""
    return np.asarray(lists.hits.sum(axis=1) / truth.n_positives)


def precision(lists: HasHits, truth: HasPositives) -> Floats:
    """Hits / k."""
    return np.asarray(lists.hits.mean(axis=1))


def hit(lists: HasHits, truth: HasPositives) -> Floats:
    """1 if there is any hit, else 0."""
    return np.asarray(lists.hits.any(axis=1), dtype=np.float64)


def mrr(lists: HasHits, truth: HasPositives) -> Floats:
    """1 / rank of the first hit, 0 where there is none.

    >>> mrr(*_hits([[0, 1, 1], [0, 0, 0]], [2, 2]))
    array([0.5, 0. ])
    """
    return np.asarray((lists.hits / np.arange(1, lists.hits.shape[1] + 1)).max(axis=1))


def f1(lists: HasHits, truth: HasPositives) -> Floats:
    """The harmonic mean of precision (hits / k) and recall (hits / positives) = 2 hits / (k + positives).

    >>> f1(*_hits([[1, 0]], [2]))
    array([0.5])
    """
    return np.asarray(2 * lists.hits.sum(axis=1) / (lists.hits.shape[1] + truth.n_positives))


BUILT_IN: Mapping[str, Metric] = {
    "ndcg": true_ndcg,
    "recall": recall,
    "precision": precision,
    "f1": f1,
    "hit": hit,
    "mrr": mrr,
    "true_ndcg": true_ndcg,
    "retrieved_ndcg": retrieved_ndcg,
}
"""The metrics that read only the hits, by name."""
DEFAULT_METRICS: Mapping[str, Metric] = {
    name: BUILT_IN[name] for name in ("ndcg", "recall", "precision", "f1", "hit", "mrr")
}
"""The metrics of an evaluation that names none, the main one first."""
for _name, _metric in BUILT_IN.items():
    METRICS.register(_name, _metric)


@dataclass(frozen=True)
class MetricAtK:
    """A metric, its cut-off, and the name of its results."""

    name: str  # NAME@K
    metric: Metric
    k: int

    def __call__(self, lists: Lists, truth: Truth) -> Floats:
        """Return (U,) values or one number, checked."""
        result = self.metric(lists.cut(self.k), truth)
        try:
            value = np.asarray(result, dtype=np.float64)
        except (TypeError, ValueError):
            raise ConfigurationError(f"the metric {self.name} must return numbers; it returned {result!r}") from None
        if value.shape not in ((), (len(lists.items),)) or not np.isfinite(value).all():
            problem = "not all of them finite" if value.shape in ((), (len(lists.items),)) else f"shape {value.shape}"
            raise ConfigurationError(
                f"the metric {self.name} must return one finite value for each of the {len(lists.items)} users, or one "
                f"number for all of them; it returned {problem}"
            )
        return value


def built_in(name: str, named: Mapping[str, Metric] = DEFAULT_METRICS) -> MetricAtK | None:
    """Return the built-in metric with the name NAME@K; None: the hits alone do not determine it.

    >>> built_in("ndcg@5").metric is true_ndcg, built_in("my_metric@5")
    (True, None)
    """
    base, _, k = name.rpartition("@")
    metric = {**BUILT_IN, **named}.get(base)
    return None if metric is None else MetricAtK(name, metric, int(k))


def resolve_metrics(
    metrics: Sequence[str] | Mapping[str, Metric] | None, k: int, defaults: Mapping[str, Metric]
) -> list[MetricAtK]:
    """Resolve names such as "ndcg" or "ndcg@10", or functions by such names; None: the defaults of the protocol.

    k is the cut-off of names without one. The defaults precede registered metrics of the same name.

    >>> [metric.name for metric in resolve_metrics(["recall@5", "MRR"], 20, {})]
    ['recall@5', 'mrr@20']
    """
    if isinstance(metrics, str):
        metrics = [metrics]
    if metrics is not None and not (isinstance(metrics, Collection) and all(isinstance(name, str) for name in metrics)):
        raise ConfigurationError(f"metrics must be names, or functions by name, got {metrics!r}")
    if metrics is not None and not metrics:
        raise ConfigurationError("metrics must name at least one metric, got none; leave it out for the defaults")
    resolved: dict[str, MetricAtK] = {}
    for name in defaults if metrics is None else metrics:
        base, at, cutoff = name.rpartition("@") if "@" in name else (name, "", "")
        if not base or (at and not (cutoff.isdecimal() and int(cutoff) > 0)):
            raise ConfigurationError(f"a metric is named NAME or NAME@K with a number K > 0, got {name!r}")
        if isinstance(metrics, Mapping):
            metric = metrics[name]
            if not callable(metric):
                raise ConfigurationError(f"the metric {name} must be a function of (lists, truth), got {metric!r}")
        elif base.lower() in defaults:
            base = base.lower()
            metric = defaults[base]
        else:
            base, metric = METRICS.canonical(base), METRICS[base]
        at_k = int(cutoff) if at else k
        resolved[f"{base}@{at_k}"] = MetricAtK(f"{base}@{at_k}", metric, at_k)
    return list(resolved.values())


def _over_ideal(lists: HasHits, n_ideal: Rows | Floats) -> Floats:
    k = lists.hits.shape[1]
    best = np.concatenate([[0.0], np.cumsum(_discounts(k))])
    ideal = best[np.minimum(n_ideal, k).astype(np.int64)]
    return np.divide(dcg(lists), ideal, out=np.zeros(len(ideal)), where=ideal > 0)


def _discounts(k: int) -> Floats:
    return 1.0 / np.log2(np.arange(2, k + 2))


def _hits(hits: Sequence[Sequence[int]], n_positives: Sequence[int]) -> tuple[HitCounts, HitCounts]:
    """Arguments of a built-in metric, for the examples."""
    stored = HitCounts(np.array(hits, np.bool_), np.array(n_positives))
    return stored, stored
