"""The cells' effects are the numbers that one computes by hand, of the seeds that have chosen nothing."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream.experiments.config import PAPER_TASKS as TASKS
from fairstream.paper.catalogue import KEPT, Entry, best
from fairstream.paper.cells import FEW, PAST, Cell, Cells, difference, gain, reduction
from fairstream.paper.findings import Choice
from fairstream.paper.settings import FULL, JUDGED, METRICS, QUICK, Setting
from paper_stores import CODES, PaperStore, always

pytestmark = pytest.mark.slow

FINETUNE, FADE = Setting.of("Finetune"), Setting.of("FADE", fairness_weight=1.0)
BEFORE, AFTER = [16, 16, 16, 8, 8], [14, 14, 14, 10, 10]
ALL_PERIODS = range(JUDGED.stop)


def chosen(dataset: str = "modcloth", model: Any = "MF", value: float = 1.0, past: Any = ()) -> list[Choice]:
    return [Choice("FADE", dataset, model, metric, "fairness_weight", {}, value, "", past, None) for metric in METRICS]


def entry(setting: Setting, seed: int = 0, dataset: str = "modcloth", model: Any = "MF") -> Entry:
    return dataset, model, setting, seed


def weighted(value: float) -> Setting:
    return Setting.of("FADE", fairness_weight=value)


def judged(made: PaperStore, choices: list[Choice]) -> Cells:
    """By the seeds that have chosen nothing, where there are any."""
    catalogue = made.catalogue
    return Cells(catalogue, choices, catalogue.seeds[1:] or catalogue.seeds)


def f1_only(cells: Cells) -> Cells:
    cells.all[:] = cells.all[1::2]  # beside each cell of NDCG stands that of F1
    return cells


def f1_cell(cells: Cells) -> Cell:
    (cell,) = f1_only(cells).all
    return cell


def f1_of(found: list[int]) -> tuple[float, float]:
    """(performance, |PD|) of one period."""
    return fmean(found) / 20, abs(fmean(found[:3]) - fmean(found[3:])) / 20


def shown(cell: Cell, method: str) -> tuple[float, float]:
    return cell.values[method, "performance"][0], cell.values[method, "abs_pd"][0]


def test_effects_are_those_computed_by_hand(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    made.add(entry(FINETUNE), always(BEFORE))
    made.add(entry(FADE), always(AFTER))
    cells = f1_only(judged(made, chosen()))
    expected = {
        gain("FADE", "Finetune"): 100 * (12.4 / 12.8 - 1),
        reduction("FADE", "Finetune", "performance"): -100 * (12.4 / 12.8 - 1),
        difference("FADE", "Finetune", "performance"): 100 * (1 - 12.4 / 12.8),
        reduction("FADE", "Finetune"): 50.0,  # from 8 of 20 to 4 of 20
        difference("Finetune", "FADE"): 100.0,
        gain("FADE", "Finetune", "disadvantaged"): 25.0,
        reduction("FADE", "Finetune", "advantaged"): 12.5,
    }
    for effect, value in expected.items():
        found = cells.mean(("FADE", "Finetune"), effect)
        assert found is not None
        interval = found.interval
        assert interval.value == pytest.approx(value)
        assert (found.n_positive, found.n_cells) == (int(value > 0), 1)
        assert (interval.low, interval.high) == pytest.approx((value, value))  # all users of a group are alike
    assert cells.mean(("FADE", "Rerank"), gain("FADE", "Rerank")) is None


def test_a_share_of_nothing_is_no_effect(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    made.add(entry(FINETUNE), always([20] * 5))
    made.add(entry(FADE), always(AFTER))
    cells = judged(made, chosen())
    assert cells.mean(("FADE", "Finetune"), reduction("FADE", "Finetune")) is None
    assert cells.mean(("FADE", "Finetune"), gain("FADE", "Finetune")) is not None


def test_groups_that_are_too_small_for_the_protocol_have_no_gap(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store", protocol="strict")
    made.add(entry(FINETUNE), always(BEFORE))
    made.add(entry(FADE), always(AFTER))
    cells = judged(made, chosen())
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
    effect = f1_only(judged(made, choices)).mean(("FADE", "Finetune"), reduction("FADE", "Finetune"))
    assert effect is not None
    assert effect.interval.value == pytest.approx(fmean([50.0, 0.0, -50.0]))
    assert (effect.n_positive, effect.n_cells) == (1, 3)
    assert effect.by_dataset["modcloth"].value == pytest.approx(25.0)
    assert effect.by_dataset["movielens-1m"].value == pytest.approx(-50.0)


def test_a_model_with_fewer_periods_and_other_users_stands_beside_the_other(tmp_path: Path) -> None:
    """As in a quick look: NCF is tested in the first period alone, where the last user is not tested yet."""
    made = PaperStore(tmp_path / "store")
    for model, periods in (("MF", ALL_PERIODS), ("NCF", range(2))):
        for setting, found in ((FINETUNE, BEFORE), (FADE, AFTER)):
            first = always([*found[:-1], -1], range(2))
            made.add(entry(setting, model=model), always(found, periods) | first)
    effect = f1_only(judged(made, chosen() + chosen(model="NCF"))).mean(
        ("FADE", "Finetune"), reduction("FADE", "Finetune")
    )
    assert effect is not None
    assert (effect.interval.value, effect.n_cells) == (pytest.approx(50.0), 2)


tested_hits = st.lists(st.integers(-1, 20), min_size=len(CODES), max_size=len(CODES)).filter(
    lambda found: max(found[:3]) >= 0 and max(found[3:]) >= 0
)
some_runs = st.fixed_dictionaries({(t, task): tested_hits for t in (1, 2, 3) for task in TASKS})


@settings(max_examples=8)
@given(data=st.data(), n_seeds=st.integers(1, 3))
def test_a_cell_has_the_catalogues_means_over_periods_and_all_seeds_but_the_one_that_chose(
    tmp_path_factory: pytest.TempPathFactory, data: Any, n_seeds: int
) -> None:
    """Of whoever was tested in each period, as the paper averages."""
    made = PaperStore(tmp_path_factory.mktemp("store"))
    tested = data.draw(some_runs)  # the same users for both methods and all seeds
    for setting in (FINETUNE, FADE):
        for seed in range(n_seeds):
            scale = data.draw(st.integers(0, 3))
            found = {at: [n if n < 0 else (n + 7 * scale) % 21 for n in row] for at, row in tested.items()}
            made.add(entry(setting, seed), found)
    catalogue, cells = made.catalogue, judged(made, chosen())
    seeds = range(min(1, n_seeds - 1), n_seeds)
    for metric, cell in zip(METRICS, cells.all, strict=True):
        for method, setting in (("Finetune", FINETUNE), ("FADE", FADE)):
            for what in ("performance", "abs_pd", "advantaged", "disadvantaged"):
                means = [catalogue.mean(entry(setting, seed), "R", metric, what) for seed in seeds]
                assert cell.values[method, what][0] == pytest.approx(
                    fmean([mean for mean in means if mean is not None])
                )


def test_a_method_that_lacks_a_seed_is_not_judged(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    for seed in range(3):
        made.add(entry(FINETUNE, seed), always(BEFORE))
    for seed in (0, 1):
        made.add(entry(FADE, seed), always(AFTER))
    made.plan([entry(FADE, 2)])
    assert ["FADE" in cell for cell in judged(made, chosen()).all] == [False, False]
    made.add(entry(FADE, 2), always(AFTER))
    assert ["FADE" in cell for cell in judged(made, chosen()).all] == [True, True]


hits = st.lists(st.integers(0, 20), min_size=len(CODES), max_size=len(CODES))
MANY, FEW_VALUES = FULL.weights, FULL.few_weights["modcloth"]


@settings(max_examples=8)
@given(data=st.data(), n_seeds=st.integers(1, 2))
def test_with_few_tries_fade_has_the_best_of_the_few(
    tmp_path_factory: pytest.TempPathFactory, data: Any, n_seeds: int
) -> None:
    """Chosen by the first seed, shown by the last; the values that its rivals do not have are no part of it."""
    assert set(FEW_VALUES) < set(MANY)
    made = PaperStore(tmp_path_factory.mktemp("store"), quick=False)
    found = {(value, seed): data.draw(hits) for value in (0.0, MANY[0], *FEW_VALUES) for seed in range(n_seeds)}
    for (value, seed), row in found.items():
        made.add(entry(weighted(value) if value else FINETUNE, seed), always(row))
    expected = best({value: f1_of(found[value, 0]) for value in FEW_VALUES}, KEPT * f1_of(found[0.0, 0])[0])
    cell = f1_cell(judged(made, chosen(value=MANY[0])))
    assert shown(cell, FEW) == pytest.approx(f1_of(found[expected, n_seeds - 1]))
    assert shown(cell, "FADE") == pytest.approx(f1_of(found[MANY[0], n_seeds - 1]))


@settings(max_examples=8)
@given(data=st.data(), n_seeds=st.integers(1, 2))
def test_by_the_past_fade_is_in_each_period_what_was_chosen_for_it(
    tmp_path_factory: pytest.TempPathFactory, data: Any, n_seeds: int
) -> None:
    made = PaperStore(tmp_path_factory.mktemp("store"))
    past = data.draw(st.tuples(*[st.sampled_from(QUICK.weights)] * len(JUDGED)))
    found = {
        (value, seed): {t: data.draw(hits) for t in ALL_PERIODS} for value in QUICK.weights for seed in range(n_seeds)
    }
    for (value, seed), by_period in found.items():
        made.add(entry(weighted(value), seed), {(t, task): by_period[t] for t in ALL_PERIODS for task in TASKS})
    cell = f1_cell(judged(made, chosen(past=past)))
    by_hand = [f1_of(found[value, n_seeds - 1][t]) for t, value in zip(JUDGED, past, strict=True)]
    assert shown(cell, PAST) == pytest.approx(tuple(fmean(column) for column in zip(*by_hand, strict=True)))
    shorter = f1_cell(judged(made, chosen(past=past[:-1])))
    assert "FADE" in shorter
    assert PAST not in shorter
