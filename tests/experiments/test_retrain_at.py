"""A method that retrains can begin at any period."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairstream import METHODS, ConfigurationError, Record
from fairstream.experiments import make_run, run_seeds
from fairstream.experiments.jobs import Source
from stores import FAST, small

pytestmark = pytest.mark.slow

RETRAINING = ("Retrain", "Retrain-Fair")


@pytest.mark.parametrize("protocol", ["strict", "paper"])
@pytest.mark.parametrize("model", ["mf", "ncf"])
@pytest.mark.parametrize("method", RETRAINING)
def test_any_period_alone_is_that_period_of_the_whole_run(
    source: Source, method: str, model: str, protocol: str
) -> None:
    config = small(method, model=model, protocol=protocol, n_periods=4)
    whole = make_run(source.read(), config)
    for result in [whole.begin(), *whole]:
        alone = make_run(source.read(), config)
        found = alone.retrain_at(result.t)
        assert alone.about() == whole.about()
        assert found.to_dict() == result.to_dict()


@pytest.mark.parametrize("method", [method for method in METHODS if method not in RETRAINING])
def test_other_methods_owe_something_to_the_periods_before(source: Source, method: str) -> None:
    with pytest.raises(ConfigurationError, match="only a method that retrains every period"):
        make_run(source.read(), small(method)).retrain_at(1)


def test_so_does_a_model_that_inherits(source: Source) -> None:
    with pytest.raises(ConfigurationError, match="only a method that retrains every period"):
        make_run(source.read(), small("Retrain", model="blend")).retrain_at(1)


@pytest.mark.parametrize("t", [-1, 3, 10])
def test_a_period_that_is_not_trained_on_is_refused(source: Source, t: int) -> None:
    with pytest.raises(ConfigurationError, match=f"t must be between 0 and 2, got {t}"):
        make_run(source.read(), small("Retrain")).retrain_at(t)


@pytest.mark.parametrize("model", ["blend", "sasrec"])
def test_a_store_has_what_a_run_gives(source: Source, model: str, tmp_path: Path) -> None:
    config = small("Retrain", model=model, n_periods=4)
    options = {name: getattr(config, name) for name in ("method", "model", "n_periods", *FAST)}
    whole = make_run(source.read(), config)
    for _ in whole:
        pass
    (record,) = run_seeds(source.read(), [config.seed], n_workers=1, store=tmp_path, **options)
    assert record.has_hits_of(Record.from_document(whole.document()))
