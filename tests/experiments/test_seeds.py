"""Several seeds in processes of their own: what one run after the other would have given."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

import fairstream
from fairstream import ConfigurationError, DataError, EventLog, ModelError, run_seeds

FAST = {
    "pretrain_epochs": 2,
    "update_epochs": 1,
    "embedding_dim": 8,
    "n_periods": 3,
    "min_group_size": 1,
    "n_resamples": 20,
    "device": "cpu",
}


def without_times(document: Any) -> dict[str, Any]:
    return {name: part for name, part in document.items() if name != "timing"}


def test_each_seed_gives_the_document_of_a_run_of_its_own(log: EventLog) -> None:
    told: list[tuple[int, int, int, int]] = []
    records = run_seeds(log, [7, 3], method="fade", on_progress=lambda *at: told.append(at), **FAST)
    assert [record.seed for record in records] == [7, 3]
    for record in records:
        run = fairstream.run(log, "FADE", seed=record.seed, **FAST)
        list(run)
        assert without_times(record.document) == without_times(run.document())
        assert set(record.document["timing"]) == {"pretrain_s", "update_s"}
        # what is told of a seed is told in order and from the start
        own = [at for seed, *at in told if seed == record.seed]
        assert own == [[0, 1, 2], [0, 2, 2], [1, 1, 1], [2, 1, 1]][: len(own)] != []
    assert {seed for seed, *_ in told} == {7, 3}
    assert multiprocessing.active_children() == []


def test_what_goes_wrong_in_a_process_is_raised_as_it_was(log: EventLog) -> None:
    options = {**FAST, "learning_rate": 1e30, "seed": 1}
    with pytest.raises(ModelError) as alone:
        list(fairstream.run(log, **options))
    with pytest.raises(ModelError) as elsewhere:
        run_seeds(log, [options.pop("seed")], **options)
    assert str(elsewhere.value) == str(alone.value)
    assert "training diverged" in str(alone.value)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"k": 1000}, ConfigurationError, "k must be at most"),
        ({"method": "FADEE"}, ConfigurationError, "method must be one of"),
        ({"colour": "red"}, ConfigurationError, "colour is not an option"),
        ({"period": "3000"}, DataError, "choose shorter or fewer periods"),
    ],
)
def test_what_cannot_be_honoured_is_said_before_a_process_is_started(
    log: EventLog, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        run_seeds(log, [0, 1], **{**FAST, "n_periods": None, **options})
    with pytest.raises(ConfigurationError, match="seed must be >= 0, got -1"):
        run_seeds(log, [0, -1], **FAST)


def test_no_seeds_are_refused_in_a_sentence(log: EventLog) -> None:
    with pytest.raises(ConfigurationError, match="seed"):
        run_seeds(log, [], **FAST)
