"""What the gate lets through, and what it holds: by size, and only where chance does not explain it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import evaluation
from fairstream.evaluation import Evaluation
from fairstream.service.budget import DAY, Budget
from fairstream.service.gate import Check, Decision, compared, drift, finite
from fairstream.service.privacy import Release, ndcg_of, noise_margin
from fairstream.service.settings import Gate, Privacy

NAMES = ["majority", "minority"]
GATE = Gate(k=5, max_fall=0.1, max_rise=0.05, max_drift=0.5, max_user_share=0.1, min_group_size=20)


def judged(found: np.ndarray) -> Evaluation:
    """Of each group 200 users, with the one item that there was to find in first place or nowhere."""
    hits = np.zeros((len(found), 5), np.bool_)
    hits[:, 0] = found
    codes = np.repeat(np.array([0, 1], np.int16), len(found) // 2)
    nobody = np.zeros(len(found), np.bool_)
    tested = evaluation.UserResults(np.arange(len(found)), codes, nobody, hits, np.ones(len(found), np.int64))
    return Evaluation({}, len(found), None, {}, {}, tested, n_cold_users=0)


def shares(majority: float, minority: float, n: int = 200) -> np.ndarray:
    return np.concatenate([np.arange(n) < share * n for share in (majority, minority)])


def checks(before: np.ndarray, after: np.ndarray) -> dict[tuple[str, str | None], Check]:
    release = Release(b"secret", GATE.min_group_size, "test", Budget(Privacy(epsilon_per_quarter="off")))
    results = [judged(found).tested for found in (before, after)]
    values = map(ndcg_of, results)
    everyone = np.ones(len(before), np.bool_)
    found = compared(release.compare(*values, results[0].codes, NAMES, GATE.max_fall, everyone), GATE, "NDCG@5")
    return {(check.name, check.group): check for check in found}


def test_a_candidate_that_does_the_same_passes() -> None:
    found = checks(shares(0.6, 0.5), shares(0.6, 0.5))
    assert set(found) == {("performance", None), *(("performance", n) for n in NAMES), ("disparity", None)}
    assert all(check.ok and check.value == pytest.approx(0) for check in found.values())


@pytest.mark.parametrize(
    ("after", "held"),
    [
        ((0.6, 0.3), {("performance", None), ("performance", "minority"), ("disparity", None)}),
        ((0.4, 0.5), {("performance", None), ("performance", "majority")}),
        ((0.6, 0.495), set()),  # a fall of 1 %: within the limit
        ((0.6, 0.48), {("performance", "minority")}),  # a fall of 4 %, and surely one: no group may lose so much
        ((0.9, 0.5), {("disparity", None)}),  # nobody is worse off, but the gap is three times as large
        ((0.6, 0.6), set()),
    ],
)
def test_what_is_beyond_its_limit_is_held(after: tuple[float, float], held: set[tuple[str, str | None]]) -> None:
    found = checks(shares(0.6, 0.5), shares(*after))
    assert {which for which, check in found.items() if not check.ok} == held
    assert Decision(tuple(found.values())).promote == (not held)
    for which in held:
        assert found[which].sentence in Decision(tuple(found.values())).reason


def test_what_chance_explains_is_not_held() -> None:
    """Two users more of twenty lose than win: a fall of a fifth, and no proof of anything."""
    before, after = np.zeros((2, 60), np.bool_)
    before[[*range(10), *range(30, 40)]] = True
    after[[*range(10), *range(34, 42)]] = True
    check = checks(before, after)["performance", "minority"]
    assert check.value == pytest.approx(-0.2)
    assert check.interval is not None
    assert check.interval[1] > 0
    assert check.ok


def test_a_handful_of_hits_decides_nothing() -> None:
    """One user's list was worse: its interval would have no width."""
    before, after = np.zeros((2, 400), np.bool_)
    before[[3, 250]] = True
    after[250] = True
    found = checks(before, after)
    assert [(check.ok, check.is_tested, check.value) for check in found.values()] == [(True, False, None)]
    assert "2 users" in found["performance", None].sentence
    before[:40] = True
    after[:40] = True
    assert all(check.ok for check in checks(before, after).values())


def test_a_rise_of_the_gap_that_chance_explains_is_not_held() -> None:
    """The gap rises to twice its limit, but half of sixty users changed sides: that proves nothing."""
    before, after = np.zeros((2, 60), np.bool_)
    before[[*range(15), *range(30, 45)]] = True
    after[[*range(7, 24), *range(37, 51)]] = True
    check = checks(before, after)["disparity", None]
    assert check.value == pytest.approx(0.1)
    assert check.interval is not None
    assert check.interval[0] < 0
    assert check.ok


def test_groups_too_small_to_judge_are_not_told_of() -> None:
    found = checks(shares(0.6, 0.5, n=10), shares(0.6, 0.1, n=10))
    assert set(found) == {("performance", None)}


LEVELS = {"was": st.floats(0.1, 0.9), "fall": st.floats(-0.5, 0.95), "half": st.floats(0.001, 0.3)}


@given(**LEVELS)
def test_drift_is_a_large_fall_that_the_intervals_leave_no_doubt_of(was: float, fall: float, half: float) -> None:
    value = was * (1 - fall)
    levels = [{"minority": [level, [level - half, level + half]]} for level in (value, was)]
    (check,) = drift(*levels, GATE, {})
    assert check.ok == (not (1 - value / was > 0.5 and value + half < was - half))
    assert f"± {half:.3f}" in check.sentence


@given(**LEVELS)
def test_drift_that_noise_could_make_is_none(was: float, fall: float, half: float) -> None:
    value, noise = was * (1 - fall), half / 2
    levels = [{"minority": [level, [level - half, level + half]]} for level in (value, was)]
    (check,) = drift(*levels, GATE, {"minority": (noise, noise)})
    margin = noise_margin(noise) * np.hypot(1, value / was) / was
    assert check.ok == (not (1 - value / was - margin > 0.5 and value + half < was - half))


def test_of_what_there_was_nothing_before_there_is_no_drift() -> None:
    assert list(drift({"minority": [0.1, [0.0, 0.2]]}, {}, GATE, {})) == []


def test_numbers_that_are_none_are_held() -> None:
    assert finite(None).ok
    assert not finite("learning left numbers in user.weight that are not finite").ok


FOUR = ["18-29", "30-44", "45-64", "65+"]
N_DRAWS = 300


def noisy_checks(n: int, before: float, after: list[float], secret: int) -> list[Check]:
    """n tested users of four groups, 8 % of them of the last one, with the noise of a secret in the fifth week."""
    rng = np.random.default_rng(secret)
    codes = rng.choice(4, n, p=[0.34, 0.30, 0.28, 0.08])
    luck = rng.random(n)
    values = [ndcg_of(judged(luck < shares[codes]).tested) for shares in (np.full(4, before), np.array(after))]
    sizes = {name: float((codes == code).sum()) for code, name in enumerate(FOUR)}
    budget = Budget(Privacy(), at=7 * DAY, sizes=sizes)
    release = Release(secret.to_bytes(4, "big"), GATE.min_group_size, "test", budget)
    everyone = np.ones(n, np.bool_)
    comparison = release.compare(*values, codes.astype(np.int16), FOUR, GATE.max_fall, everyone)
    return list(compared(comparison, GATE, "NDCG@5"))


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [1000, 2000, 5000])
def test_noise_rejects_no_candidate_that_is_better_for_everybody(n: int) -> None:
    """A shop of some 2,000 users, a candidate that is 30 % better: before, 3 to 4 of 100 were rejected."""
    decisions = [Decision(tuple(noisy_checks(n, 0.14, [0.182] * 4, secret))) for secret in range(N_DRAWS)]
    assert [decision.reason for decision in decisions if not decision.promote] == []
    for decision in decisions:
        not_tested = [check for check in decision.checks if not check.is_tested]
        assert all(check.value is None and "too few people" in check.sentence for check in not_tested)
        assert all(check.group in decision.reason for check in not_tested if check.group is not None)
    if n == 1000:
        assert all(not check.is_tested for check in decisions[0].checks if check.group is not None)


def test_a_candidate_that_is_much_worse_for_a_group_of_a_large_shop_is_rejected() -> None:
    for secret in range(30):
        found = noisy_checks(30_000, 0.14, [0.07, 0.18, 0.18, 0.18], secret)
        rejects = {(check.name, check.group) for check in found if not check.ok}
        assert ("performance", "18-29") in rejects, [check.sentence for check in found]
        assert ("performance", None) not in rejects
