"""A method that retrains can begin at any period."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairstream import METHODS, ConfigurationError, Run
from fairstream.experiments.jobs import Source
from stores import small, source_of

pytestmark = pytest.mark.slow

RETRAINING = ("Retrain", "Retrain-Fair")


@pytest.mark.parametrize("protocol", ["strict", "paper"])
@pytest.mark.parametrize("model", ["mf", "ncf"])
@pytest.mark.parametrize("method", RETRAINING)
def test_any_period_alone_is_that_period_of_the_whole_run(
    source: Source, method: str, model: str, protocol: str
) -> None:
    config = small(method, model=model, protocol=protocol, n_periods=4)
    whole = Run(source.read(), config)
    for result in [whole.begin(), *whole]:
        alone = Run(source.read(), config)
        found = alone.retrain_at(result.t)
        assert alone.about() == whole.about()
        assert found.to_dict() == result.to_dict()


@pytest.mark.parametrize("method", [method for method in METHODS if method not in RETRAINING])
def test_other_methods_owe_something_to_the_periods_before(source: Source, method: str) -> None:
    with pytest.raises(ConfigurationError, match="only a method that retrains every period"):
        Run(source.read(), small(method)).retrain_at(1)


def test_so_does_who_is_ahead_where_it_is_found_on_the_way(source: Source) -> None:
    found = source_of(Path(source.source), advantaged="auto")
    with pytest.raises(ConfigurationError, match="with the advantaged group declared"):
        Run(found.read(), small("Retrain-Fair")).retrain_at(1)


@pytest.mark.parametrize("t", [-1, 3, 10])
def test_a_period_that_is_not_trained_on_is_refused(source: Source, t: int) -> None:
    with pytest.raises(ConfigurationError, match=f"t must be between 0 and 2, got {t}"):
        Run(source.read(), small("Retrain")).retrain_at(t)
