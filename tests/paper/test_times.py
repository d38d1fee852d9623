"""The time table: seconds of one device, in the paper's terms, and what is claimed of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream.experiments.jobs import Source
from fairstream.experiments.pool import OnJobs
from fairstream.experiments.store import Store
from fairstream.paper.findings import TIMES, Claim
from fairstream.paper.settings import QUICK
from fairstream.paper.timing import PRICES, RATIOS, TIMED, measured_seconds, seconds_table, time_claims, time_methods

pytestmark = pytest.mark.slow

seconds = st.lists(st.floats(0.5, 900), min_size=1, max_size=6)
OPTIONS = {"FADE": {"fairness_weight": 1.0}, "FADE[NeuralNDCG]": {"surrogate": "neural-ndcg"}}
NewStore = Callable[[], Store]


@pytest.fixture(scope="module")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> NewStore:
    def made() -> Store:
        store = Store(tmp_path_factory.mktemp("store"))
        with store.writing():
            return store

    return made


def write(store: Store, series: str, times: Mapping[str, Any], *, part: Any = ("modcloth", "MF")) -> None:
    """As `time_methods` would have."""
    dataset, model = part
    about = {"dataset": dataset, "model": model, "method": series.partition("[")[0], "options": OPTIONS.get(series, {})}
    content = {**about, "device": "cpu", **times}
    name = f"{dataset} {model} {series} {content['device']}"
    store.write_note("running_times", {**(store.note("running_times") or {}), name: content})


def claims_of(store: Store) -> dict[tuple[str, str], Claim]:
    """By the faster method and the slower one."""
    found = time_claims(store)
    return {(fast, slow): claim for (_, fast, slow, _), claim in zip(RATIOS, found, strict=True)}


@given(times=seconds, epochs=st.integers(1, 200), choosing=st.floats(0, 9))
def test_retraining_is_scaled_to_the_papers_epochs_and_reranking_counts(
    new_store: NewStore, times: list[float], epochs: int, choosing: float
) -> None:
    store = new_store()
    write(store, "Retrain", {"update_s": times, "epochs": epochs})
    write(store, "Finetune", {"update_s": times})
    write(store, "Rerank", {"update_s": times, "rerank_s": [choosing] * len(times)})
    measured = measured_seconds(store)
    part = ("modcloth", "MF")
    assert measured[*part, "Retrain"] == pytest.approx([100 / epochs * one for one in times])
    assert measured[*part, "Finetune"] == pytest.approx(times)
    assert measured[*part, "Rerank"] == pytest.approx([one + choosing for one in times])


@given(
    where=st.dictionaries(
        st.sampled_from(["Finetune", "FADE", "FADE[NeuralNDCG]", "Retrain", "Rerank"]),
        st.sets(st.sampled_from(["cpu", "one GPU", "another GPU"]), min_size=1),
        min_size=1,
    )
)
def test_all_times_are_of_the_device_that_most_were_measured_on(
    new_store: NewStore, where: dict[str, set[str]]
) -> None:
    store, speed = new_store(), {"cpu": 9.0, "one GPU": 2.0, "another GPU": 1.0}
    for series, devices in where.items():
        for device in devices:
            write(store, series, {"update_s": [speed[device]], "device": device})
    measured = measured_seconds(store)
    by_device = {device: {series for series, devices in where.items() if device in devices} for device in speed}
    (taken,) = {times[0] for times in measured.values()}
    (device,) = (device for device in speed if speed[device] == taken)
    assert {series for *_, series in measured} == by_device[device]
    assert len(measured) == max(map(len, by_device.values()))


@given(times=st.dictionaries(st.sampled_from(["Finetune", "FADE", "FADE[NeuralNDCG]", "Rerank"]), seconds))
@settings(max_examples=10)
def test_the_table_has_every_cell_of_the_papers_measured_or_not(
    new_store: NewStore, times: dict[str, list[float]]
) -> None:
    store = new_store()
    for series, found in times.items():
        write(store, series, {"update_s": found}, part=("movielens-1m", "NCF"))
    table = seconds_table(store)
    cells = {(cell.dataset, str(cell.model), cell.method): cell for cell in table}
    assert len(cells) == len(table) == len(TIMES) * len(TIMED)
    for part, of_paper in TIMES.items():
        for method, paper in of_paper.items():
            assert cells[*part, method].paper == paper
    ours = {where: cell.ours for where, cell in cells.items() if cell.ours is not None}
    assert ours == {("movielens-1m", "NCF", series): pytest.approx(fmean(found)) for series, found in times.items()}


@given(fast=seconds, slow=seconds, other=seconds)
def test_methods_are_compared_by_the_ratio_of_mean_seconds_where_both_were_timed(
    new_store: NewStore, fast: list[float], slow: list[float], other: list[float]
) -> None:
    store = new_store()
    for part in (("modcloth", "MF"), ("movielens-1m", "NCF")):
        write(store, "Finetune", {"update_s": fast}, part=part)
        write(store, "Retrain", {"update_s": slow if part[1] == "MF" else other}, part=part)
    write(store, "Finetune", {"update_s": [1e6]}, part=("modcloth", "NCF"))  # alone
    claims = claims_of(store)
    claim = claims["Finetune", "Retrain"]
    assert claim.text == "Finetune's update is 323 × faster than Retrain's"
    assert claim.ours == pytest.approx(fmean([fmean(slow), fmean(other)]) / fmean(fast))
    assert claim.ours is not None
    assert claim.interval is not None
    assert claim.interval[0] <= claim.ours * (1 + 1e-9)
    assert claim.ours <= claim.interval[1] * (1 + 1e-9)
    assert claim.verdict == ("holds" if claim.ours >= 161.5 else "holds in part" if claim.ours > 1 else "does not hold")
    assert "2 of 4 data sets and models" in claim.reason
    assert {pair for pair, one in claims.items() if one.verdict != "not tested"} == {("Finetune", "Retrain")}


def test_what_ours_is_not_is_said_of_rerank_alone(new_store: NewStore) -> None:
    store = new_store()
    for series in ("FADE", "Rerank", "Finetune"):
        write(store, series, {"update_s": [1.0]})
    remark = "ours is the fast solution, not the integer program"
    claims = claims_of(store)
    assert remark in claims["FADE", "Rerank"].reason
    assert remark not in claims["Finetune", "FADE"].reason


@pytest.mark.parametrize("pair", sorted(PRICES))
@given(ratio=st.floats(0.1, 10))
def test_what_fairness_costs_holds_while_it_is_small(new_store: NewStore, pair: tuple[str, str], ratio: float) -> None:
    store = new_store()
    plain, fair = pair
    write(store, plain, {"update_s": [1.0]})
    write(store, fair, {"update_s": [ratio]})
    claim = claims_of(store)[pair]
    paper = {"FADE": "1.27", "Retrain-Fair": "1.06"}[fair]
    assert claim.text == f"{fair}'s update takes only {paper} × as long as {plain}'s"
    assert claim.ours is not None
    assert claim.ours == pytest.approx(ratio)
    assert claim.verdict == ("holds" if claim.ours <= 1.5 else "holds in part" if claim.ours <= 2 else "does not hold")


def test_what_has_been_timed_is_not_timed_again(new_store: NewStore, long_source: Source) -> None:
    def on_stage(name: str, jobs: Any) -> OnJobs:
        told.append(name)
        return lambda work, n: told.append(n)

    def timed() -> Any:
        time_methods(store, {"modcloth": long_source}, [("modcloth", "MF")], short, "paper", "cpu", on_stage)
        return store.note("running_times")

    short = replace(QUICK, n_periods=2, pretrain_epochs={("modcloth", "MF"): 20})
    store, told = new_store(), list[Any]()
    times = timed()
    assert told == ["running times, one at a time", *range(1, len(TIMED) + 1)]
    assert timed() == times
    measured = {cell.method for cell in seconds_table(store) if cell.ours is not None}
    assert measured == {cell.method for cell in seconds_table(store)}
    retrained = [cell for cell in times.values() if cell["method"] in ("Retrain", "Retrain-Fair")]
    assert [cell["epochs"] for cell in retrained] == [20] * 2
    (reranked,) = (cell for cell in times.values() if cell["method"] == "Rerank")
    assert len(reranked["rerank_s"]) == len(reranked["update_s"]) == short.n_periods - 1
