"""The verdicts follow the rules, and each says what it rests on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairstream.evaluation import Estimate
from fairstream.paper.catalogue import all_choices
from fairstream.paper.cells import FEW, PAST
from fairstream.paper.claims import STATEMENTS, all_claims, judged
from fairstream.paper.findings import Claim
from fairstream.paper.settings import JUDGED, METRICS, Setting
from fairstream.paper.timing import RATIOS
from paper_stores import PaperStore, always

FINETUNE, FADE = Setting.of("Finetune"), Setting.of("FADE", fairness_weight=1.0)
FADE_AT_4 = Setting.of("FADE", fairness_weight=4.0)  # the one of few tries on ModCloth
BEFORE, AFTER = [16, 16, 16, 8, 8], [14, 14, 14, 10, 10]
ALL_PERIODS = range(JUDGED.stop)

number = st.floats(-200, 200)
intervals = st.tuples(number, number, number).map(lambda three: Estimate(sorted(three)[1], (min(three), max(three))))
RANK = {"does not hold": 0, "holds in part": 1, "holds": 2}


def moved(found: Estimate, by: float) -> Estimate:
    return Estimate(found.value + by, (found.low + by, found.high + by))


@given(intervals, st.floats(0.1, 100))
def test_an_effect_needs_direction_certainty_and_half_the_size(found: Estimate, paper: float) -> None:
    verdict = judged("effect", found, paper)
    assert (verdict == "cannot be told") == (found.low <= 0 <= found.high)
    assert (verdict == "does not hold") == (found.high < 0)
    assert (verdict == "holds") == (found.low > 0 and found.value >= paper / 2)
    assert judged("effect", found, None) == ("holds" if verdict == "holds in part" else verdict)


@given(intervals)
def test_what_is_no_worse_must_not_be_certainly_worse(found: Estimate) -> None:
    assert judged("no worse", found, None) == ("does not hold" if found.high < 0 else "holds")


@given(intervals, st.floats(0.1, 100), st.floats(0, 50))
def test_a_price_ends_below_twice_the_papers_and_a_lower_one_is_never_worse(
    found: Estimate, paper: float, less: float
) -> None:
    verdict = judged("price", found, paper)
    assert (verdict == "holds") == (found.high <= 2 * paper)
    assert (verdict == "does not hold") == (found.value > 4 * paper)
    assert RANK[judged("price", moved(found, -less), paper)] >= RANK[verdict]


@given(intervals, st.floats(0, 50))
def test_a_likeness_ends_below_a_tenth_and_a_closer_one_is_never_worse(found: Estimate, less: float) -> None:
    verdict = judged("likeness", found, None)
    assert (verdict == "holds") == (found.high <= 10)
    assert (verdict == "does not hold") == (found.value > 25)
    assert RANK[judged("likeness", moved(found, -less), None)] >= RANK[verdict]


def test_claims_are_told_by_question_and_those_without_runs_are_not_tested(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    made.add(("modcloth", "MF", FINETUNE, 0), always(BEFORE))
    made.add(("modcloth", "MF", FADE, 0), always(AFTER))
    catalogue = made.catalogue
    claims = all_claims(catalogue, all_choices(catalogue))
    assert len(claims) == len(STATEMENTS) + len(RATIOS) + 5
    assert [claim.question for claim in claims] == sorted(claim.question for claim in claims)
    assert len({claim.text for claim in claims}) == len(claims)
    assert {claim.text for claim in claims if claim.verdict != "not tested"} == {
        "FADE has a smaller |PD| than Finetune (by 48.91 % on average)",
        "FADE costs little performance against Finetune (by 2.44 % on average)",
        "FADE raises the disadvantaged group's performance against Finetune's (by 2.06 % on average)",
        "FADE lowers the advantaged group's performance against Finetune's (by 3.37 % on average)",
        "A larger λ lowers the advantaged group's performance and raises the disadvantaged group's",
    }
    for claim in claims:
        assert (claim.ours is None) == (claim.verdict == "not tested")


def claims_of(
    folder: Path,
    hits: dict[Any, list[int]],
    *,
    n_seeds: int = 1,
    others: dict[str, list[int]] | None = None,
    n_seeds_of_others: int | None = None,
) -> dict[str, Claim]:
    """The claims, by their text, of a store where FADE is the same by whatever choice."""
    made = PaperStore(folder)
    settings = {Setting.of(method): row for method, row in (others or {}).items()}
    if others and "Adver" in others:
        settings[Setting.of("Adver", adversary_weight=10.0)] = settings.pop(Setting.of("Adver"))
    for (dataset, model), row in hits.items():
        for setting, found in {FINETUNE: BEFORE, FADE: row, FADE_AT_4: row, **settings}.items():
            for seed in range(n_seeds_of_others or n_seeds if setting in settings else n_seeds):
                made.add((dataset, model, setting, seed), always(found, ALL_PERIODS))
    choices = [
        replace(choice, chosen=1.0, by_the_past=(1.0,) * len(JUDGED)) if choice.method == "FADE" else choice
        for choice in all_choices(made.catalogue)
    ]
    assert {(choice.dataset, choice.model) for choice in choices} == set(hits)
    return {claim.text: claim for claim in all_claims(made.catalogue, choices)}


EVERYWHERE = "FADE has a smaller |PD| than Finetune (by 48.91 % on average)"
ON_AVERAGE = f"{PAST} has a smaller |PD| than Finetune"
CASES = "cases (data set × model × metric, Task-R)"


@pytest.mark.few(1)
@pytest.mark.parametrize("elsewhere", [AFTER, BEFORE, [17, 17, 17, 8, 8]], ids=["as well", "not", "the reverse"])
def test_what_the_paper_says_of_all_cases_holds_in_part_where_it_does_not_show_in_all(
    tmp_path: Path, elsewhere: list[int]
) -> None:
    equal = [12, 12, 12, 12, 12]
    claims = claims_of(tmp_path / "store", {("modcloth", "MF"): equal, ("modcloth", "NCF"): elsewhere})
    everywhere, on_average = claims[EVERYWHERE], claims[ON_AVERAGE]
    assert everywhere.ours is not None
    assert everywhere.ours >= 48.91 / 2
    assert everywhere.ours == on_average.ours
    assert on_average.verdict == "holds"
    assert everywhere.verdict == ("holds" if elsewhere == AFTER else "holds in part")
    assert everywhere.reason.startswith(f"above 0 in {4 if elsewhere == AFTER else 2} of 4 {CASES}")


ALL_PARTS = [(dataset, model) for dataset in ("movielens-1m", "modcloth") for model in ("MF", "NCF")]


@pytest.mark.slow
@pytest.mark.parametrize("n_seeds", [1, 2, 3])
@pytest.mark.parametrize("n_parts", [1, 4])
def test_a_reason_says_how_many_cases_and_seeds_it_rests_on(tmp_path: Path, n_parts: int, n_seeds: int) -> None:
    claims = claims_of(tmp_path / "store", dict.fromkeys(ALL_PARTS[:n_parts], AFTER), n_seeds=n_seeds)
    n_cells = n_parts * len(METRICS)
    left = "" if n_parts == 4 else f"; {8 - n_cells} more are not run"
    seeds = "; 2 seeds" if n_seeds == 3 else "; 1 seed"
    reason = claims[EVERYWHERE].reason
    assert reason.startswith(f"above 0 in {n_cells} of {n_cells} {CASES}{left}; ")
    assert reason.endswith(seeds)
    assert ("; movielens-1m " in reason, "; modcloth " in reason) == (n_parts == 4,) * 2


def test_what_the_further_seeds_leave_out_is_judged_by_the_first(tmp_path: Path) -> None:
    claims = claims_of(
        tmp_path / "store", {("modcloth", "MF"): AFTER}, n_seeds=3, others={"Rerank": BEFORE}, n_seeds_of_others=1
    )
    assert "; 2 seeds" in claims[EVERYWHERE].reason
    assert "; 1 seed" in claims["Rerank is about as unequal as Finetune"].reason
    assert claims["Rerank is about as unequal as Finetune"].verdict == "holds"


def test_a_reason_says_what_a_reader_has_to_know_of_a_method(tmp_path: Path) -> None:
    hits = {("modcloth", "MF"): AFTER}
    claims = claims_of(tmp_path / "store", hits, others={"Adver": BEFORE, "Rerank": [16, 16, 16, 9, 9]})
    few = "with λ from as few values as the other has"
    past = "with λ chosen in each period by the periods before"
    less_trained = "Adver is pre-trained for fewer epochs than the others"
    price = "the rule that chooses λ keeps 95 %"
    remarks = {
        EVERYWHERE: [],
        ON_AVERAGE: [past],
        "FADE costs little performance against Finetune (by 2.44 % on average)": [price],
        f"{PAST} costs little performance against Finetune (by 2.44 % on average)": [past, price],
        f"{FEW} has a smaller |PD| than Rerank": [few],
        f"{FEW} has a smaller |PD| than Adver (by 36.53 % on average)": [few, less_trained],
        "Rerank is about as unequal as Finetune": [],
    }
    for text, expected in remarks.items():
        assert claims[text].reason.split("; ")[3:] == expected, text


@given(st.lists(number, min_size=30, max_size=60), number)
def test_an_interval_is_the_draws_spread_around_the_value(drawn: list[float], value: float) -> None:
    assume(len(set(drawn)) > 1)
    found = Estimate.of_draws(value, np.array(drawn))
    assert found.value == value
    assert found.low - 1e-9 <= value <= found.high + 1e-9
    low, middle, high = np.quantile(drawn, [0.025, 0.5, 0.975])
    assert found.high - found.low == pytest.approx(high - low)
    assert value - found.low == pytest.approx(middle - low, abs=1e-9)
    assert found.excludes_zero == (found.low > 0 or found.high < 0)
