"""How λ is chosen: by a rule that is written down, and beside it by the past alone."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream.experiments.config import PAPER_TASKS as TASKS
from fairstream.paper.catalogue import KEPT, Entry, all_choices, best, choose
from fairstream.paper.settings import METRICS, QUICK, Setting
from paper_stores import CODES, PaperStore, always

pytestmark = pytest.mark.slow

shares = st.integers(0, 10).map(lambda tenth: tenth / 10)
FADE = next(family for family in QUICK.families("modcloth") if family.name == "FADE")


@given(st.dictionaries(st.integers(0, 9), st.tuples(shares, shares), min_size=1), shares)
def test_the_best_reaches_the_floor_if_any_does_and_none_of_those_is_better(tried: Any, floor: float) -> None:
    chosen = best(tried, floor)
    performance, gap = tried[chosen]
    fit = [other for other in tried.values() if other[0] >= floor]
    if fit:
        assert performance >= floor
        assert gap == min(other[1] for other in fit)
    else:
        assert performance == max(other[0] for other in tried.values())
    rivals = fit or tried.values()
    assert not any(other[0] >= performance and other[1] <= gap and other != tried[chosen] for other in rivals)


def entry(setting: Setting, seed: int = 0) -> Entry:
    return "modcloth", "MF", setting, seed


def test_a_choice_rests_on_the_means_of_the_first_seed(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    made.add(entry(Setting.of("Finetune")), always([12, 12, 12, 6, 6]))
    found = {0.5: [12, 12, 12, 8, 8], 1.0: [11, 11, 11, 9, 9], 4.0: [4, 4, 4, 4, 4]}
    for value, hits in found.items():
        made.add(entry(FADE.at(value)), always(hits))
        made.add(entry(FADE.at(value), seed=1), always([20, 20, 20, 20, 20]))  # which is no part of it
    choice = choose(made.catalogue, FADE, "modcloth", "MF", "F1@20")
    assert choice is not None
    performance = {value: fmean(hits) / 20 for value, hits in found.items()}
    gaps = {value: abs(fmean(hits[:3]) - fmean(hits[3:])) / 20 for value, hits in found.items()}
    assert choice.tried == {value: pytest.approx((performance[value], gaps[value])) for value in found}
    assert choice.chosen == 1.0  # 4.0 is fairer, and has lost too much: 0.2 of 0.48
    assert choice.reason == "smallest mean |PD| of those that keep 95 % of Finetune's F1@20"
    assert choice.by_the_past == (1.0, 1.0)
    assert choice.past_result == pytest.approx((performance[1.0], gaps[1.0]))


def test_where_none_keeps_enough_the_best_is_taken_and_it_is_said(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    made.add(entry(Setting.of("Finetune")), always([20, 20, 20, 20, 20]))
    made.add(entry(FADE.at(0.5)), always([10, 10, 10, 4, 4]))
    made.add(entry(FADE.at(1.0)), always([8, 8, 8, 5, 5]))
    choice = choose(made.catalogue, FADE, "modcloth", "MF", "F1@20")
    assert choice is not None
    assert choice.chosen == 0.5
    assert choice.reason.startswith("none keeps 95 % of Finetune's F1@20")
    assert set(choice.tried) == {0.5, 1.0}  # a training that diverged is no candidate


def test_nothing_is_chosen_where_there_is_nothing_to_measure_it_by(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    assert all_choices(made.catalogue) == []
    made.plan([entry(Setting.of("Finetune"))])
    made.add(entry(FADE.at(0.5)), always([10, 10, 10, 4, 4]))
    assert all_choices(made.catalogue) == []
    made.add(entry(Setting.of("Finetune")), always([10, 10, 10, 4, 4]))
    assert [(choice.method, choice.metric) for choice in all_choices(made.catalogue)] == [("FADE", m) for m in METRICS]


N_PERIODS = 4
hits = st.lists(st.integers(0, 20), min_size=len(CODES), max_size=len(CODES))
runs = st.fixed_dictionaries({(t, task): hits for t in range(N_PERIODS) for task in TASKS})


@settings(max_examples=8)
@given(data=st.data(), t=st.integers(1, N_PERIODS - 1))
def test_what_the_past_chooses_owes_nothing_to_what_comes_later(
    tmp_path_factory: pytest.TempPathFactory, data: Any, t: int
) -> None:
    made = PaperStore(tmp_path_factory.mktemp("store"))
    members = [Setting.of("Finetune"), *map(FADE.at, FADE.values)]
    found = {setting: data.draw(runs) for setting in members}
    for setting in members:
        made.add(entry(setting), found[setting])
    before = choose(made.catalogue, FADE, "modcloth", "MF", "F1@20")
    for setting in members:
        other = data.draw(runs)
        made.add(entry(setting), {at: found[setting][at] if at[0] < t else other[at] for at in other})
    after = choose(made.catalogue, FADE, "modcloth", "MF", "F1@20")
    assert before is not None
    assert after is not None
    assert len(before.by_the_past) == len(after.by_the_past) == N_PERIODS - 1
    assert before.by_the_past[:t] == after.by_the_past[:t]
    shown = [
        (fmean(found[FADE.at(value)][p, "remain"]) / 20, gap_of(found[FADE.at(value)][p, "remain"]))
        for p, value in enumerate(before.by_the_past, start=1)
    ]
    assert before.past_result == pytest.approx(tuple(fmean(column) for column in zip(*shown, strict=True)))


def gap_of(found: list[int]) -> float:
    return abs(fmean(found[:3]) - fmean(found[3:])) / 20


def test_the_past_keeps_to_the_same_floor(tmp_path: Path) -> None:
    """By Task-N of the periods before: what Task-R shows now would choose otherwise."""
    made = PaperStore(tmp_path / "store")
    fair_but_poor, rich = [4] * 5, [20, 20, 20, 19, 19]
    assert fmean(fair_but_poor) < KEPT * fmean(rich)
    remain = [(t, "remain") for t in range(3)]
    made.add(entry(FADE.at(0.5)), always(rich) | dict.fromkeys(remain, fair_but_poor))
    made.add(entry(FADE.at(1.0)), always(fair_but_poor) | dict.fromkeys(remain, rich))
    made.add(entry(Setting.of("Finetune")), always(rich))
    choice = choose(made.catalogue, FADE, "modcloth", "MF", "F1@20")
    assert choice is not None
    assert (choice.chosen, choice.by_the_past) == (1.0, (0.5, 0.5))
    made.add(entry(Setting.of("Finetune")), always(rich) | dict.fromkeys(remain, fair_but_poor))  # a low floor, now
    choice = choose(made.catalogue, FADE, "modcloth", "MF", "F1@20")
    assert choice is not None
    assert (choice.chosen, choice.by_the_past) == (0.5, (0.5, 0.5))
