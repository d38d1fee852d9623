"""Runs cut into jobs: in any order, stopped anywhere, they leave what each run leaves by itself."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream import FairstreamError, RunConfig
from fairstream.experiments.identity import run_id
from fairstream.experiments.jobs import Epoch, Source, finish, jobs_for, plan_runs
from fairstream.experiments.store import Store
from stores import DIVERGING, alone, complete, contents, small

pytestmark = pytest.mark.slow

CONFIGS = [
    small("Finetune"),
    small("Rerank"),
    small("Pretrain"),
    small("Retrain"),
    small("FADE", update_epochs=2),
    small("FADE"),
    small("Pretrain-Fair"),
    small("Retrain-Fair"),
    small("FADE", seed=1),
]
N_JOBS = 3 + 2 * 2
"""Three beginnings, and two methods that retrain in two periods each."""


def store_in(factory: pytest.TempPathFactory) -> Store:
    store = Store(factory.mktemp("store"))
    with store.writing():
        return store


def name_of(source: Source, config: RunConfig) -> str:
    return f"runs/{run_id(source.read(), config)}.parquet"


@pytest.fixture(scope="module")
def undisturbed(source: Source) -> dict[str, bytes]:
    """What each run leaves by itself."""
    return {name_of(source, config): alone(source, config) for config in CONFIGS}


def test_jobs_leave_what_each_run_leaves_by_itself(
    source: Source, undisturbed: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = store_in(tmp_path_factory)
    jobs = jobs_for(store, plan_runs(source, CONFIGS))
    assert len(jobs) == N_JOBS
    complete(store, source, CONFIGS)
    assert contents(store) == undisturbed  # nothing in parts and pretrained either
    work: list[float] = []
    for job in (job for job in jobs if job.t is None):  # of a list that is out of date
        job.execute(store, "cpu", lambda epoch: work.append(epoch.work))
    assert work == []
    assert jobs_for(store, plan_runs(source, CONFIGS)) == []
    stamps = {path: path.stat().st_mtime_ns for path in store.folder.rglob("*.parquet")}
    complete(store, source, CONFIGS)
    assert {path: path.stat().st_mtime_ns for path in store.folder.rglob("*.parquet")} == stamps


@pytest.mark.parametrize("options", [{"model": "ncf"}, {"protocol": "paper"}], ids=str)
def test_so_they_do_for_other_models_and_protocols(
    source: Source, tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]
) -> None:
    configs = [small(method, **options) for method in ("Finetune", "Pretrain", "Retrain", "FADE", "Adver")]
    store = store_in(tmp_path_factory)
    complete(store, source, configs)
    assert contents(store) == {name_of(source, config): alone(source, config) for config in configs}


@settings(max_examples=8)
@given(data=st.data())
def test_after_any_jobs_in_any_order_the_rest_completes_it(
    source: Source, undisturbed: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    store = store_in(tmp_path_factory)
    jobs = data.draw(st.permutations(jobs_for(store, plan_runs(source, CONFIGS))))
    n_done = data.draw(st.integers(0, len(jobs)))
    for job in jobs[:n_done]:
        job.execute(store, "cpu", lambda epoch: None)
    if data.draw(st.booleans()):
        finish(store, plan_runs(source, CONFIGS))
    assert len(jobs_for(store, plan_runs(source, CONFIGS))) == len(jobs) - n_done
    complete(store, source, CONFIGS)
    assert contents(store) == undisturbed


class Stopped(BaseException):
    """Somebody pressed a key."""


@settings(max_examples=8)
@given(stops=st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_stopped_in_the_middle_of_jobs_it_can_be_completed(
    source: Source, undisturbed: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, stops: list[int]
) -> None:
    store = store_in(tmp_path_factory)
    for n_epochs in stops:

        def on_epoch(epoch: Epoch, left: list[int] = [n_epochs]) -> None:  # noqa: B006 (counts down)
            left[0] -= 1
            if left[0] == 0:
                raise Stopped

        with suppress(Stopped):
            for job in jobs_for(store, plan_runs(source, CONFIGS)):
                job.execute(store, "cpu", on_epoch)
    complete(store, source, CONFIGS)
    assert contents(store) == undisturbed


def test_options_that_are_not_used_are_no_reason_to_do_it_again(
    source: Source, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = store_in(tmp_path_factory)
    configs = [small("Retrain", fairness_weight=weight) for weight in (0.5, 1.0, 2.0)]
    assert jobs_for(store, plan_runs(source, configs)) == jobs_for(store, plan_runs(source, configs[:1]))
    complete(store, source, configs)
    assert contents(store) == {name_of(source, configs[0]): alone(source, configs[0])}


def test_work_adds_up_to_what_was_promised(source: Source, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = store_in(tmp_path_factory)
    for job in jobs_for(store, plan_runs(source, CONFIGS)):
        done: list[Epoch] = []
        job.execute(store, "cpu", done.append)
        assert sum(epoch.work for epoch in done) == pytest.approx(job.work)


def failure_of(source: Source, config: RunConfig) -> str:
    return name_of(source, config).replace("runs/", "failed/").replace(".parquet", ".json")


@pytest.mark.parametrize("first", ["Finetune", "Pretrain"])
def test_a_run_that_diverges_is_told_once_and_does_not_stop_those_that_begin_with_it(
    source: Source, tmp_path_factory: pytest.TempPathFactory, first: str
) -> None:
    configs = sorted((small(m, **DIVERGING) for m in ("Finetune", "Pretrain")), key=lambda c: c.method != first)
    bad, good = (small(method, **DIVERGING) for method in ("Finetune", "Pretrain"))
    with pytest.raises(FairstreamError) as reason:
        alone(source, bad)
    store = store_in(tmp_path_factory)
    (job,) = jobs_for(store, plan_runs(source, configs))
    assert [str(error) for error in job.execute(store, "cpu", lambda epoch: None)] == [
        f"Finetune (mf, seed 0): {reason.value}"
    ]
    left = contents(store)
    assert left.keys() == {name_of(source, good), failure_of(source, bad)}
    assert left[name_of(source, good)] == alone(source, good)
    assert store.failure(Path(failure_of(source, bad)).stem) == str(reason.value)
    assert jobs_for(store, plan_runs(source, configs)) == []
    assert job.execute(store, "cpu", lambda epoch: None) == []  # nor does an old job try again
    assert contents(store) == left


def test_a_beginning_that_diverges_is_told_of_all_that_begin_with_it(
    source: Source, tmp_path_factory: pytest.TempPathFactory
) -> None:
    configs = [small(method, learning_rate=1e19) for method in ("Finetune", "Pretrain")]
    store = store_in(tmp_path_factory)
    (job,) = jobs_for(store, plan_runs(source, configs))
    for error, config in zip(job.execute(store, "cpu", lambda epoch: None), configs, strict=True):
        assert re.match(f"{config.method} .*training diverged", str(error))
    assert contents(store).keys() == {failure_of(source, config) for config in configs}
    assert jobs_for(store, plan_runs(source, configs)) == []


@settings(max_examples=5)
@given(data=st.data())
def test_a_retraining_that_diverges_is_told_once_whatever_job_comes_first(
    source: Source, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    configs = [small(method, learning_rate=1e19) for method in ("Retrain", "Finetune")]
    store = store_in(tmp_path_factory)
    jobs = data.draw(st.permutations(jobs_for(store, plan_runs(source, configs))))
    sentences = "; ".join(str(error) for job in jobs for error in job.execute(store, "cpu", lambda epoch: None))
    assert [sentences.count(f"{config.method} (mf, seed 0): ") for config in configs] == [1, 1]
    finish(store, plan_runs(source, configs))
    assert contents(store).keys() == {failure_of(source, config) for config in configs}
    assert jobs_for(store, plan_runs(source, configs)) == []


@pytest.mark.parametrize("first", ["Finetune", "Rerank"])
def test_nor_does_one_that_cannot_even_begin(
    source: Source, tmp_path_factory: pytest.TempPathFactory, first: str
) -> None:
    too_long = small("Rerank", k=1000)
    configs = sorted([small("Finetune"), too_long], key=lambda config: config.method != first)
    store = store_in(tmp_path_factory)
    (job,) = jobs_for(store, plan_runs(source, configs))
    (error,) = job.execute(store, "cpu", lambda epoch: None)
    assert re.match(r"Rerank \(mf, seed 0\): k must be at most the \d+ items", str(error))
    assert contents(store) == {name_of(source, small("Finetune")): alone(source, small("Finetune"))}


def test_plugins_are_imported_by_whoever_does_the_job(source: Source, tmp_path_factory: pytest.TempPathFactory) -> None:
    """So that the names they register are known in worker processes too."""
    config = small("Finetune").model_copy(update={"plugins": ("no_such_module_of_mine",)})
    (job,) = jobs_for(store_in(tmp_path_factory), plan_runs(source, [small("Finetune")]))
    job = replace(job, runs=(replace(job.runs[0], config=config),))
    with pytest.raises(FairstreamError, match="the plugin no_such_module_of_mine cannot be imported"):
        job.execute(store_in(tmp_path_factory), "cpu", lambda epoch: None)
    with_plugin = small("Finetune", plugins=("json",))
    assert run_id(source.read(), with_plugin) == run_id(source.read(), small("Finetune"))
