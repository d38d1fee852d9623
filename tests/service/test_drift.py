"""A world that has really changed is learned, and a poisoned period is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from streams import at_random, named_stream, take_in

from fairstream import load
from fairstream.service.event_store import closed_periods
from fairstream.service.gate import Check, attainable
from fairstream.service.privacy import NO_GROUPS, Comparison
from fairstream.service.registry import in_service, model, models, n_unpromoted
from fairstream.service.settings import Gate, Privacy
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from fairstream.strategies import FineTune

PERIODS, PEOPLE = named_stream()
DRIFTED = Check("drift", False, "the events themselves have changed", 0.7, None, 0.5)


def other_tastes(events: pa.Table, shift: int = 75) -> pa.Table:
    """The same people with other tastes: everybody wants what others wanted before."""
    numbers = np.array([int(item[1:]) for item in events["item_id"].to_pylist()])
    return events.set_column(1, "item_id", pa.array([f"i{(n + shift) % 150}" for n in numbers]))


def comparison(before: float, after: float, n: int = 400) -> Comparison:
    rng = np.random.default_rng(0)
    return Comparison(*((rng.random(n) < share).astype(float) for share in (before, after)), NO_GROUPS, NO_GROUPS)


@pytest.mark.parametrize(
    ("before", "after", "popularity", "n_rejected", "ok"),
    [
        (0.05, 0.3, 0.1, 0, True),  # surely better than what is in service, and than popularity
        (0.05, 0.3, 0.6, 0, False),  # popularity would do better: more is attainable
        (0.05, 0.06, 0.05, 0, False),  # nothing was learned: it may be poison
        (0.05, 0.06, 0.05, 2, True),  # it has been so for two periods: this is the world now
        (0.05, 0.3, 0.6, 2, True),  # a model that never reaches popularity is not kept out for ever
        (0.3, 0.05, 0.05, 5, False),  # never what is surely worse
    ],
)
def test_after_drift_the_candidate_must_reach_what_is_attainable_now(
    before: float, after: float, popularity: float, n_rejected: int, ok: bool
) -> None:
    compares = comparison(before, after)
    reference = (np.random.default_rng(1).random(400) < popularity).astype(float)
    found = attainable(DRIFTED, compares, reference, n_rejected, Gate())
    assert (found.ok, found.accepted) == (ok, ok)
    assert f"recent popularity {reference.mean():.4f}" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", ["off", 1.0])
def test_a_world_that_has_really_changed_is_learned_with_the_periods_rejected_before(
    learned: Workspace, epsilon: Any
) -> None:
    # The noise comes from the secret, which is random otherwise: of many runs one rejected the model after the drift.
    learned = replace(
        learned, config=learned.config.with_options(privacy=Privacy(epsilon_per_quarter=epsilon)), secret=bytes(32)
    )
    outcomes = []
    for events in PERIODS[2:6]:
        take_in(learned, other_tastes(events))
        outcomes.append(update(learned))
    kinds = [outcome.kind for outcome in outcomes]
    first = kinds.index("promoted")
    assert kinds == ["rejected"] * first + ["promoted"] * (4 - first)
    assert first <= learned.config.gate.drift_patience
    row = model(learned.engine, str(outcomes[first].model))
    assert row.about["learned_rejected_periods"] == list(range(2, 2 + first))
    assert "the events have changed" in outcomes[first].reason
    scores = [period.evaluation["metrics"]["ndcg@20"]["mean"] for period in closed_periods(learned.engine)[1:]]
    assert scores[1] < 0.5 * scores[0]
    assert scores[-1] > 2 * scores[1]
    assert n_unpromoted(learned.engine) == 0


@pytest.mark.slow
def test_a_model_that_starts_afresh_still_knows_what_users_have_had(learned: Workspace) -> None:
    config = learned.config.with_options(gate=learned.config.gate.with_options(drift_patience=1))
    learned = replace(learned, config=config)
    for events in PERIODS[2:4]:
        take_in(learned, other_tastes(events))
        update(learned)
    row = models(learned.engine)[0]
    assert row.state == "promoted"
    recommender = load(learned.models.path(row.folder))
    user = PERIODS[0]["user_id"][0].as_py()
    had = PERIODS[0].filter(pc.equal(PERIODS[0]["user_id"], user))["item_id"].to_pylist()
    assert not set(recommender.recommend([user], k=100)["item_id"].to_pylist()) & set(had)
    assert isinstance(recommender.recipe.strategy, FineTune)  # starting afresh was for once


@pytest.mark.slow
def test_a_poisoned_period_is_rejected_and_left_out_when_the_next_is_as_before(learned: Workspace) -> None:
    before = in_service(learned.engine)
    take_in(learned, at_random(PERIODS[2], 1))
    outcome = update(learned)
    assert outcome.kind == "rejected"
    assert "the events themselves have changed" in outcome.reason
    assert outcome.reason.count("the events themselves have changed") == 1
    take_in(learned, PERIODS[3])
    assert update(learned).kind == "promoted"
    newest = models(learned.engine)[0]
    assert newest.parent == before.model
    assert newest.about["learned_rejected_periods"] == []
