"""A pre-training that several runs share: each goes on as if it had done it itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream import Run
from fairstream.experiments.jobs import Pretrained, Source
from stores import small, stored

pytestmark = pytest.mark.slow

DONORS = {
    "Finetune": "Rerank",
    "Pretrain": "Retrain",
    "Retrain": "Pretrain",
    "Rerank": "Finetune",
    "FADE": "Retrain-Fair",
    "FADE-Abs": "FADE-Abs",
    "Adver": "Adver",
}
"""Of each method, another one that begins as it does."""


@pytest.fixture(scope="module")
def saved(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pretrained") / "one.safetensors"
    begun(source, "Finetune", path)
    return path


def begun(source: Source, method: str, path: Path, **options: Any) -> None:
    run = Run(source.read(), small(method, **options))
    run.begin()
    Pretrained.of(run).save(path)


def outcome(run: Run) -> tuple[bytes, dict[str, torch.Tensor]]:
    list(run)
    return stored(run).content(), run.learned()


@pytest.mark.parametrize("protocol", ["strict", "paper"])
@pytest.mark.parametrize("model", ["mf", "ncf"])
@pytest.mark.parametrize("method", DONORS)
def test_a_run_from_a_saved_beginning_is_the_run_that_did_it_itself(
    source: Source, tmp_path: Path, method: str, model: str, protocol: str
) -> None:
    options = {"model": model, "protocol": protocol, "pretrain_epochs": 1}
    begun(source, DONORS[method], tmp_path / "saved", **options)
    found = Pretrained.load(tmp_path / "saved")
    assert found is not None
    taken, own = (Run(source.read(), small(method, **options)) for _ in range(2))
    taken.on_progress = lambda t, done, total: periods.append(t)
    periods: list[int] = []
    taken.begin_from(found.weights, found.update)
    assert periods == []  # nothing is trained again
    (content, learned), (own_content, own_learned) = outcome(taken), outcome(own)
    assert content == own_content
    assert learned.keys() == own_learned.keys()
    assert all(torch.equal(learned[name], own_learned[name]) for name in learned)


def test_a_run_begins_with_a_model_that_reads_times(source: Source) -> None:
    log = source.read()
    log = replace(log, times=(1_600_000_000 + 86_400 * log.times).astype(np.int64))
    options = {"model": "sasrec", "pretrain_epochs": 1, "model_settings": {"embedding_dim": 8}}
    first, second = (Run(log, small("Finetune", **options)) for _ in range(2))
    first.begin()
    assert first.state.model.reads_times
    second.begin_from(first.learned(), first.pretrained.update)
    assert outcome(second)[0] == outcome(first)[0]


def test_several_runs_can_begin_with_one(source: Source, saved: Path) -> None:
    found = Pretrained.load(saved)
    assert found is not None
    contents = []
    for _ in range(2):
        run = Run(source.read(), small("Finetune"))
        run.begin_from(found.weights, found.update)
        contents.append(outcome(run)[0])
    assert contents[0] == contents[1]


def test_what_is_saved_is_what_is_loaded(source: Source, tmp_path: Path) -> None:
    run = Run(source.read(), small("FADE"))
    run.begin()
    made = Pretrained.of(run)
    made.save(tmp_path / "saved")
    next(run)  # which leaves what was taken alone
    found = Pretrained.load(tmp_path / "saved")
    assert found is not None
    assert found.update == made.update
    assert found.weights.keys() == made.weights.keys()
    assert all(torch.equal(found.weights[name], made.weights[name]) for name in found.weights)


@given(data=st.data())
def test_a_file_that_was_cut_short_is_nothing(saved: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    content = saved.read_bytes()
    cut = tmp_path_factory.mktemp("cut") / "cut"
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    assert Pretrained.load(cut) is None


def test_a_file_of_something_else_is_nothing(tmp_path: Path) -> None:
    weights = {"w": torch.zeros(2)}
    foreign = [
        b"PAR1" * 100,
        safetensors.torch.save(weights),
        safetensors.torch.save(weights, {"update": "no JSON"}),
        safetensors.torch.save(weights, {"update": "[]"}),
        safetensors.torch.save(weights, {"update": '{"t": 0, "seconds": 1, "report": null}'}),
        safetensors.torch.save(weights, {"update": '{"t": 0, "step": "retrain", "seconds": 1, "report": {"a": 1}}'}),
    ]
    for n, content in enumerate(foreign):
        (tmp_path / str(n)).write_bytes(content)
    assert [Pretrained.load(tmp_path / str(n)) for n in range(len(foreign) + 1)] == [None] * (len(foreign) + 1)
