"""The cells' effects are the numbers that one computes by hand, and the verdicts follow the rules."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairstream.experiment.paired import Interval
from fairstream.experiment.paper.catalogue import Entry
from fairstream.experiment.paper.cells import Cells, gain, reduction
from fairstream.experiment.paper.claims import STATEMENTS, all_claims, judged
from fairstream.experiment.paper.findings import Choice
from fairstream.experiment.paper.selection import all_choices
from fairstream.experiment.paper.settings import Setting
from fairstream.experiment.paper.time_claims import RATIOS, time_claims
from fairstream.experiment.paper.timing import seconds_table
from fairstream.experiment.results import TASKS
from paper_stores import CODES, PaperStore, always

FINETUNE, FADE = Setting.of("Finetune"), Setting.of("FADE", fairness_weight=1.0)
BEFORE, AFTER = [16, 16, 16, 8, 8], [14, 14, 14, 10, 10]


def chosen(dataset: str = "modcloth", model: Any = "MF") -> list[Choice]:
    return [
        Choice("FADE", dataset, model, metric, "fairness_weight", {}, 1.0, "", (), None)
        for metric in ("NDCG@20", "F1@20")
    ]


def entry(setting: Setting, seed: int = 0, dataset: str = "modcloth", model: Any = "MF") -> Entry:
    return dataset, model, setting, seed


def f1_only(cells: Cells) -> Cells:
    cells.all[:] = [cell for cell in cells.all if cell.metric == "F1@20"]
    return cells


def test_effects_are_those_computed_by_hand(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    made.add(entry(FINETUNE), always(BEFORE))
    made.add(entry(FADE), always(AFTER))
    cells = f1_only(Cells(made.catalogue, chosen()))
    expected = {
        gain("FADE", "Finetune"): 100 * (12.4 / 12.8 - 1),
        reduction("FADE", "Finetune", "performance"): -100 * (12.4 / 12.8 - 1),
        reduction("FADE", "Finetune"): 50.0,  # from 8 of 20 to 4 of 20
        gain("FADE", "Finetune", "disadvantaged"): 25.0,
        reduction("FADE", "Finetune", "advantaged"): 12.5,
    }
    for effect, value in expected.items():
        found = cells.mean(("FADE", "Finetune"), effect)
        assert found is not None
        interval, n_positive, n_cells = found
        assert interval.value == pytest.approx(value)
        assert (n_positive, n_cells) == (int(value > 0), 1)
        assert (interval.low, interval.high) == pytest.approx((value, value))  # all users of a group are alike
    assert cells.mean(("FADE", "Rerank"), gain("FADE", "Rerank")) is None


def test_a_share_of_nothing_is_no_effect(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    made.add(entry(FINETUNE), always([20] * 5))
    made.add(entry(FADE), always(AFTER))
    cells = Cells(made.catalogue, chosen())
    assert cells.mean(("FADE", "Finetune"), reduction("FADE", "Finetune")) is None
    assert cells.mean(("FADE", "Finetune"), gain("FADE", "Finetune")) is not None


def test_an_effect_is_the_mean_over_the_cells_that_have_both(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    parts = {("modcloth", "MF"): AFTER, ("modcloth", "NCF"): BEFORE, ("movielens-1m", "MF"): [18, 18, 18, 6, 6]}
    for (dataset, model), found in parts.items():
        made.add(entry(FINETUNE, 0, dataset, model), always(BEFORE))
        made.add(entry(FADE, 0, dataset, model), always(found))
    made.add(entry(FINETUNE, 0, "movielens-1m", "NCF"), always(BEFORE))  # alone
    choices = [choice for part in parts for choice in chosen(*part)]
    found = f1_only(Cells(made.catalogue, choices)).mean(("FADE", "Finetune"), reduction("FADE", "Finetune"))
    assert found is not None
    interval, n_positive, n_cells = found
    assert interval.value == pytest.approx(fmean([50.0, 0.0, -50.0]))
    assert (n_positive, n_cells) == (1, 3)


hits = st.lists(st.integers(-1, 20), min_size=len(CODES), max_size=len(CODES)).filter(
    lambda found: max(found[:3]) >= 0 and max(found[3:]) >= 0
)
runs = st.fixed_dictionaries({(t, task): hits for t in (0, 1, 2, 3) for task in TASKS})


@settings(max_examples=15)
@given(data=st.data(), n_seeds=st.integers(1, 3))
def test_a_cell_has_the_catalogues_means_over_periods_and_seeds(
    tmp_path_factory: pytest.TempPathFactory, data: Any, n_seeds: int
) -> None:
    """Of whoever was tested in each period, as the paper averages."""
    made = PaperStore(tmp_path_factory.mktemp("store"))
    tested = data.draw(runs)  # the same users for both methods and all seeds
    for setting in (FINETUNE, FADE):
        for seed in range(n_seeds):
            scale = data.draw(st.integers(0, 3))
            found = {at: [n if n < 0 else (n + 7 * scale) % 21 for n in row] for at, row in tested.items()}
            made.add(entry(setting, seed), found)
    made.plan([entry(setting, n_seeds) for setting in (FINETUNE, FADE)])  # a seed that is not there yet
    catalogue = made.catalogue
    cells = Cells(catalogue, chosen()).all
    assert [cell.metric for cell in cells] == ["NDCG@20", "F1@20"]
    for cell in cells:
        for method, setting in (("Finetune", FINETUNE), ("FADE", FADE)):
            for what in ("performance", "abs_pd", "advantaged", "disadvantaged"):
                entries = [entry(setting, seed) for seed in range(n_seeds)]
                means = [catalogue.mean(one, "R", cell.metric, what) for one in entries]
                assert cell.values[method, what][0] == pytest.approx(fmean(means))


def test_methods_without_a_seed_in_common_are_no_cells(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    made.add(entry(FINETUNE, 0), always(BEFORE))
    made.add(entry(FADE, 1), always(AFTER))
    assert Cells(made.catalogue, chosen()).all == []


number = st.floats(-200, 200)
intervals = st.tuples(number, number, number).map(lambda three: Interval(sorted(three)[1], min(three), max(three)))
RANK = {"does not hold": 0, "holds in part": 1, "holds": 2}


@given(intervals, st.floats(0.1, 100))
def test_an_effect_needs_direction_certainty_and_half_the_size(found: Interval, paper: float) -> None:
    verdict = judged("effect", found, paper)
    assert (verdict == "holds") == (found.low > 0 and found.value >= paper / 2)
    assert (verdict == "does not hold") == (found.value <= 0)
    assert (judged("effect", found, None) == "holds") == (found.low > 0)


@given(intervals, st.floats(0.1, 100), st.floats(0, 50))
def test_a_price_may_be_twice_as_high_and_a_lower_one_is_never_worse(
    found: Interval, paper: float, less: float
) -> None:
    verdict = judged("price", found, paper)
    assert (verdict == "holds") == (found.value <= 2 * paper)
    assert (verdict == "does not hold") == (found.value > 4 * paper)
    cheaper = Interval(found.value - less, found.low - less, found.high - less)
    assert RANK[judged("price", cheaper, paper)] >= RANK[verdict]


@given(intervals)
def test_a_likeness_has_no_sign(found: Interval) -> None:
    verdict = judged("likeness", found, None)
    assert verdict == judged("likeness", Interval(-found.value, -found.high, -found.low), None)
    assert (verdict == "holds") == (abs(found.value) <= 10)
    assert (verdict == "does not hold") == (abs(found.value) > 25)


def test_claims_are_told_by_question_and_those_without_runs_are_not_tested(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    made.add(entry(FINETUNE), always(BEFORE))
    made.add(entry(FADE), always(AFTER))
    catalogue = made.catalogue
    claims = list(all_claims(catalogue, all_choices(catalogue), seconds_table(made.store)))
    assert len(claims) == len(STATEMENTS) + len(RATIOS) + 5
    assert [claim.question for claim in claims] == sorted(claim.question for claim in claims)
    tested = {claim.text: claim for claim in claims if claim.verdict != "not tested"}
    assert set(tested) == {
        "FADE has a smaller |PD| than Finetune (by 48.91 % on average)",
        "FADE costs little performance against Finetune (by 2.44 % on average)",
        "FADE raises the disadvantaged group above Finetune's (by 2.06 % on average)",
        "FADE lowers the advantaged group below Finetune's (by 3.37 % on average)",
        "A larger λ lowers the advantaged group's performance and raises the disadvantaged group's",
    }
    fairer = tested["FADE has a smaller |PD| than Finetune (by 48.91 % on average)"]
    assert (fairer.verdict, fairer.reason) == ("holds", "positive in 2 of 2 cases (data set × model × metric, Task-R)")
    for claim in claims:
        assert (claim.ours is None) == (claim.verdict == "not tested")


@given(
    fast=st.lists(st.floats(0.5, 2), min_size=2, max_size=6),
    slow=st.lists(st.floats(100, 900), min_size=2, max_size=2),
    choosing=st.lists(st.floats(1, 9), min_size=6, max_size=6),
)
@settings(max_examples=15)
def test_times_are_compared_by_the_ratio_of_mean_seconds(
    tmp_path_factory: pytest.TempPathFactory, fast: list[float], slow: list[float], choosing: list[float]
) -> None:
    made = PaperStore(tmp_path_factory.mktemp("store"))
    for n, (method, times) in enumerate(
        {
            "Finetune": {"update_s": fast},
            "Retrain": {"update_s": slow},
            "FADE": {"update_s": [2.0]},
            "Rerank": {"update_s": [1.0] * 6, "rerank_s": choosing},
        }.items()
    ):
        options = {"fairness_weight": 1.0} if method == "FADE" else {}
        about = {"dataset": "modcloth", "model": "MF", "method": method, "options": options}
        made.store.write_times(str(n), {**about, **times})
    claims = {claim.text: claim for claim in time_claims(made.store, seconds_table(made.store))}
    retrained = claims["Finetune's update is 323 × faster than Retrain's"]
    assert retrained.ours == pytest.approx(fmean(slow) / fmean(fast))
    assert retrained.interval is not None
    assert retrained.interval[0] <= retrained.interval[1]
    assert (retrained.verdict == "holds") == (retrained.ours >= 161.5)
    reranked = claims["FADE's update is 94.11 × faster than Rerank's"]
    assert reranked.ours == pytest.approx((1.0 + fmean(choosing)) / 2.0)
    assert reranked.verdict == ("holds in part" if reranked.ours > 1 else "does not hold")
    assert claims["FADE's update is 10.23 × faster than Adver's"].verdict == "not tested"


@given(st.lists(number, min_size=30, max_size=60), number)
def test_an_interval_is_the_draws_spread_around_the_value(drawn: list[float], value: float) -> None:
    assume(len(set(drawn)) > 1)
    found = Interval.of(value, np.array(drawn))
    assert found.value == value
    assert found.low - 1e-9 <= value <= found.high + 1e-9
    low, middle, high = np.quantile(drawn, [0.025, 0.5, 0.975])
    assert found.high - found.low == pytest.approx(high - low)
    assert value - found.low == pytest.approx(middle - low, abs=1e-9)
    assert found.is_certain == (found.low > 0 or found.high < 0)
