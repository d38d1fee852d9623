"""Several seeds in processes of their own: the same results as one run after the other, kept if asked for."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import fairstream
from fairstream import ConfigurationError, DataError, EventLog, ModelError, Record, run_seeds
from fairstream.experiments import Store
from fairstream.models import MFScorer
from stores import DIVERGING

pytestmark = pytest.mark.slow

FAST = {
    "pretrain_epochs": 2,
    "update_epochs": 1,
    "model_settings": {"embedding_dim": 8},
    "n_periods": 3,
    "min_group_size": 1,
    "n_resamples": 20,
    "device": "cpu",
}


def without_times(document: Any) -> dict[str, Any]:
    return {name: part for name, part in document.items() if name != "timing"}


def test_each_seed_gives_the_document_of_a_run_of_its_own(log: EventLog) -> None:
    epochs: list[tuple[int, int, int, int]] = []
    finished: list[Record] = []
    records = run_seeds(
        log,
        [7, 3],
        model="mf",
        method="fade",
        n_workers=2,
        on_progress=lambda *at: epochs.append(at),
        on_record=finished.append,
        **FAST,
    )
    assert [record.seed for record in records] == [7, 3]
    assert {record.seed for record in finished} == {7, 3}
    for record in records:
        run = fairstream.run(log, "FADE", model="mf", seed=record.seed, **FAST)
        list(run)
        assert without_times(record.document) == without_times(run.document())
        assert set(record.document["timing"]) == {"pretrain_s", "update_s"}
        # the epochs of a seed are reported in order and from the start
        own = [at for seed, *at in epochs if seed == record.seed]
        assert own == [[0, 1, 2], [0, 2, 2], [1, 1, 1], [2, 1, 1]][: len(own)] != []
    assert {seed for seed, *_ in epochs} == {7, 3}
    assert multiprocessing.active_children() == []


def test_a_method_whose_periods_are_computed_apart_gives_the_same_document(log: EventLog) -> None:
    (record,) = run_seeds(log, [1], model="mf", method="retrain-fair", n_workers=1, **FAST)
    run = fairstream.run(log, "Retrain-Fair", model="mf", seed=1, **FAST)
    list(run)
    assert without_times(record.document) == without_times(run.document())
    assert record.document["timing"]["pretrain_s"] > 0
    assert len(record.document["timing"]["update_s"]) == 2


def test_a_model_of_ones_own_is_used(log: EventLog) -> None:
    def tiny(n_users: int, n_items: int) -> MFScorer:
        return MFScorer(n_users, n_items, embedding_dim=2)

    options = {name: value for name, value in FAST.items() if name != "model_settings"}
    (record,) = run_seeds(log, [0], model=tiny, n_workers=1, **options)
    run = fairstream.run(log, model=tiny, **options)
    list(run)
    assert without_times(record.document) == without_times(run.document())
    with pytest.raises(ConfigurationError, match="register them and give their names"):
        run_seeds(log, [0], model=tiny, store="nowhere", **options)
    assert not Path("nowhere").exists()


def test_a_store_is_resumed(log: EventLog, tmp_path: Path) -> None:
    epochs: list[int] = []
    options: dict[str, Any] = {"method": "finetune", "n_workers": 1, **FAST}
    run_seeds(log, [0], model="mf", store=tmp_path, **options)
    finished: list[Record] = []
    records = run_seeds(
        log,
        [0, 1],
        model="mf",
        store=tmp_path,
        on_progress=lambda seed, *_: epochs.append(seed),
        on_record=finished.append,
        **options,
    )
    assert set(epochs) == {1}
    assert [record.seed for record in finished] == [1]
    kept = {record.seed: record.document for record in Store.opened(tmp_path).records()}
    assert {record.seed: record.document for record in records} == kept
    assert sorted(kept) == [0, 1]


def test_another_number_of_resamples_is_another_file(log: EventLog, tmp_path: Path) -> None:
    """Else a run that was stored without intervals would be shown in place of one with them."""
    for n_resamples in (0, 20):
        (record,) = run_seeds(log, [0], model="mf", store=tmp_path, n_workers=1, **{**FAST, "n_resamples": n_resamples})
        assert (record.about["summary"]["remain"]["ndcg@20"]["interval"] is None) == (n_resamples == 0)
    assert len(Store.opened(tmp_path).ids()) == 2


def test_the_error_of_a_run_is_raised(log: EventLog, tmp_path: Path) -> None:
    options = {**FAST, "learning_rate": 1e30, "seed": 1}
    with pytest.raises(ModelError) as alone:
        list(fairstream.run(log, **{"model": "mf", **options}))
    assert "training diverged" in str(alone.value)
    with pytest.raises(ModelError) as elsewhere:
        run_seeds(log, [options.pop("seed")], model="mf", **options)
    assert str(elsewhere.value) == f"Finetune (mf, seed 1): {alone.value}"


def test_a_run_that_failed_is_not_tried_again(log: EventLog, tmp_path: Path) -> None:
    epochs: list[Any] = []
    options: dict[str, Any] = {**FAST, "method": "finetune", **DIVERGING, "store": tmp_path, "n_workers": 1}
    with pytest.raises(ModelError, match="training diverged"):
        run_seeds(log, [0], model="mf", **options)
    with pytest.raises(ModelError, match=r"failed before: .*training diverged.*; remove failed/\w+\.json"):
        run_seeds(log, [0], model="mf", on_progress=lambda *at: epochs.append(at), **options)
    assert epochs == []


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"k": 1000}, ConfigurationError, "k must be at most"),
        ({"method": "FADEE"}, ConfigurationError, "method must be one of"),
        ({"colour": "red"}, ConfigurationError, "colour is not an option"),
        ({"period": "3000"}, DataError, "choose shorter or fewer periods"),
    ],
)
def test_what_cannot_be_honoured_is_raised_before_a_process_is_started(
    log: EventLog, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        run_seeds(log, [0, 1], model="mf", **{**FAST, "n_periods": None, **options})
    with pytest.raises(ConfigurationError, match="seed must be >= 0, got -1"):
        run_seeds(log, [0, -1], model="mf", **FAST)


def test_no_seeds_are_refused(log: EventLog) -> None:
    with pytest.raises(ConfigurationError, match="seed"):
        run_seeds(log, [], model="mf", **FAST)
