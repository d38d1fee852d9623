"""The controller holds a gap without being moved by noise, gives back what is not needed, and says what it does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import cooper
import numpy as np
import pytest
import torch
from cooper.optim import nuPI
from hypothesis import assume, given
from hypothesis import strategies as st

from fairstream.strategies import Control, DisparityController, Measured
from fairstream.strategies.controller import MAX_WEIGHT, Estimate

ZEROS = cooper.optim.torch_optimizers.nupi_optimizer.nuPIInitType.ZEROS
EPSILON = 0.02
Plant = Callable[[int, float], float]
"""(period, log weight of the group behind) → its true gap."""


def measured(gaps: dict[str, float], se: float = 0.004, lifts: dict[str, float] | None = None) -> Measured:
    about = {name: Estimate(lift, 1e-4) for name, lift in (lifts or {}).items()}
    return Measured({name: Estimate(gap, se**2) for name, gap in gaps.items()}, about)


def steps(controller: DisparityController, periods: list[Measured]) -> list[Control]:
    """The decisions of one period after the other, with what each says to remember as JSON keeps it."""
    made: list[Control] = []
    for period in periods:
        memory = json.loads(json.dumps(dict(made[-1].memory))) if made else {}
        made.append(controller.step(memory, period))
    return made


def simulate(plant: Plant, se: float, n: int, seed: int) -> tuple[list[float], list[float]]:
    """The true gaps and the log weights of a world that answers to the weights, measured with noise."""
    rng, controller = np.random.default_rng(seed), DisparityController(EPSILON)
    memory: Any = {}
    gaps, thetas, theta = [], [], 0.0
    for t in range(n):
        gaps.append(plant(t, theta))
        seen = gaps[-1] + rng.normal(0, se)
        control = controller.step(memory, measured({"few": seen, "many": -seen}, se))
        memory, theta = control.memory, math.log(control.weights.get("few", 1.0))
        thetas.append(theta)
    return gaps, thetas


@given(errors=st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=20), momentum=st.floats(0, 0.95))
def test_the_rule_is_that_of_cooper(errors: list[float], momentum: float) -> None:
    controller = DisparityController(EPSILON, integral=3.0, proportional=2.0, momentum=momentum)
    theirs = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    gains = {"Kp": torch.tensor(2.0), "Ki": torch.tensor(3.0)}
    rule = nuPI([theirs], lr=1.0, ema_nu=momentum, init_type=ZEROS, maximize=True, **gains)
    theta, smoothed = 0.0, 0.0
    for error in errors:
        theta, smoothed = controller.follow(theta, smoothed, error)
        theirs.grad = torch.tensor([error], dtype=torch.float64)
        rule.step()
        theirs.data.clamp_(min=0.0)  # the multiplier of an inequality
        assert theta == pytest.approx(float(theirs.detach()), abs=1e-6)


@given(seed=st.integers(0, 2**16), se=st.sampled_from([0.004, 0.012]))
def test_noise_alone_moves_nothing_much(seed: int, se: float) -> None:
    _, thetas = simulate(lambda t, theta: 0.0, se, 50, seed)
    assert max(thetas) < math.log(1.5)


@pytest.mark.few(1)
@pytest.mark.parametrize("response", [0.3, 0.5, 1.0])
def test_a_gap_that_answers_comes_down_to_what_is_accepted_and_stays(response: float) -> None:
    gaps = np.array([simulate(lambda t, theta: 0.04 * math.exp(-response * theta), 0.004, 40, s)[0] for s in range(10)])
    assert (gaps[:, 15:] < 1.25 * EPSILON).mean() > 0.95
    assert (gaps[:, 15:] > 0.5 * EPSILON).mean() > 0.95  # no more is taken than is needed


def test_a_step_is_answered_and_what_is_not_needed_is_given_back() -> None:
    def plant(t: int, theta: float) -> float:
        return (0.05 if 10 <= t < 30 else 0.0) * math.exp(-0.5 * theta)

    gaps, thetas = simulate(plant, 0.003, 60, 0)
    assert max(thetas[:10]) == 0.0
    assert np.mean(gaps[20:30]) < 1.3 * EPSILON
    assert thetas[-1] < 0.2 * max(thetas)


@pytest.mark.parametrize("integral", [0.01, 0.5])
def test_a_weight_never_rises_while_the_gap_is_surely_accepted_however_fast_slack_shrinks(integral: float) -> None:
    """The slow integral leaves the proportional part alone, which sees a gap that grows."""
    controller = DisparityController(EPSILON, integral=integral)
    memory, before, slacks = controller.start({"few": 8.0}), 8.0, []
    for gap in (-0.06, -0.06, 0.0, 0.018, 0.018, 0.018):
        control = controller.step(memory, measured({"few": gap, "many": -gap}, se=1e-4))
        pooled, after = control.gaps["few"], control.weights.get("few", 1.0)
        slacks.append(EPSILON - pooled.value - controller.z * pooled.se)
        assert slacks[-1] > 0
        assert after <= before
        memory, before = control.memory, after
    assert slacks[-1] < slacks[0] / 4
    assert before > 1.0


def test_a_group_that_is_ahead_never_counts_more_however_its_lead_changes() -> None:
    leads = [0.2, 0.05, 0.1, 0.0, 0.15]
    made = steps(DisparityController(EPSILON), [measured({"few": lead, "many": -lead}) for lead in leads])
    assert all("many" not in control.weights for control in made)


def test_a_group_that_vanishes_keeps_its_weight_until_it_returns() -> None:
    there, away = {"few": 0.03, "some": 0.03, "many": -0.03}, {"some": 0.03, "many": -0.03}
    made = steps(DisparityController(EPSILON), [measured(there)] * 2 + [measured(away)] * 3 + [measured(there)])
    weights = [control.weights["few"] for control in made]
    assert weights[1] == weights[2] == weights[4] < weights[5]
    assert [control.weights["some"] for control in made] == sorted(control.weights["some"] for control in made)


@given(gaps=st.dictionaries(st.sampled_from("abcdef"), st.floats(-0.1, 0.1), min_size=2))
def test_only_groups_that_are_surely_too_far_behind_count_more(gaps: dict[str, float]) -> None:
    assume(min(gaps.values()) <= 0)  # not every group is behind the others
    controller = DisparityController(EPSILON)
    control = controller.step({}, measured(gaps))
    assert set(control.weights) == {name for name, gap in gaps.items() if gap - controller.z * 0.004 > EPSILON}
    assert all(1 < weight <= MAX_WEIGHT for weight in control.weights.values())
    assert control.log_weight == pytest.approx(math.log(max(control.weights.values(), default=1.0)))
    assert {name for name in gaps if control.sign(name) > 0} == set(gaps) - set(control.weights)


def test_periods_are_pooled_by_their_precision_and_the_later_ones_count_more() -> None:
    noisy, sharp = measured({"few": 0.2, "many": -0.2}, 0.2), measured({"few": 0.0, "many": 0.0}, 0.002)
    assert steps(DisparityController(EPSILON), [noisy, sharp])[-1].weights == {}
    low, high = measured({"few": 0.0, "many": 0.0}), measured({"few": 0.06, "many": -0.06})
    watching = DisparityController(EPSILON, integral=0.0, proportional=0.0)
    rising, falling = (steps(watching, periods)[-1] for periods in ([low, high], [high, low]))
    assert "0.0353" in rising.reasons[0]  # (0.7 · 0 + 1 · 0.06) / 1.7
    assert "0.0247" in falling.reasons[0]


def test_a_target_out_of_reach_is_said_to_be() -> None:
    made = steps(DisparityController(EPSILON), [measured({"few": 0.08, "many": -0.08})] * 8)
    assert made[-1].weights["few"] == pytest.approx(MAX_WEIGHT)
    assert "cannot be met; its events count 64.00 times, and more is not accepted" in made[-1].reasons[0]
    assert "from now on, 1.00 times before" in made[0].reasons[0]


def test_the_weights_are_halved_where_a_group_loses_too_much_relative_to_popularity() -> None:
    gaps, controller = {"few": 0.08, "many": -0.08}, DisparityController(EPSILON, max_group_loss=0.05)
    plain, loses, keeps = (measured(gaps, lifts={"few": 0.1, "many": at}) for at in (0.5, 0.3, 0.49))
    made = steps(controller, [plain, *[loses] * 4])
    assert "many has lost 18% of its quality" in made[1].reasons[0]
    kept = steps(controller, [plain, *[keeps] * 4])
    assert made[-1].weights["few"] < made[0].weights["few"] < kept[-1].weights["few"]
    unchanged = steps(controller, [plain] * 3)
    assert not any("lost" in reason for control in unchanged for reason in control.reasons)


def test_of_two_groups_one_gives_back_before_the_other_counts_more() -> None:
    over = measured({"few": -0.06, "many": 0.06})
    control = steps(DisparityController(EPSILON), [measured({"few": 0.06, "many": -0.06})])[0]
    first = DisparityController(EPSILON).step(control.memory, over)
    assert 1 < first.weights["few"] < control.weights["few"]
    assert "many" not in first.weights
    later = steps(DisparityController(EPSILON), [measured({"few": 0.06, "many": -0.06}), *[over] * 6])[-1]
    assert later.weights["many"] > 1
    assert "few" not in later.weights


def test_it_starts_from_weights_that_there_are() -> None:
    controller = DisparityController(EPSILON)
    memory = controller.start({"few": 3.0})
    assert controller.unchanged(memory).weights == {"few": pytest.approx(3.0)}
    held, slack = (controller.step(memory, measured({"few": gap, "many": -gap})) for gap in (EPSILON, -0.05))
    assert held.weights == {"few": pytest.approx(3.0)}
    assert slack.weights.get("few", 1.0) < 2


def test_only_the_ratios_of_weights_matter_so_one_group_counts_once() -> None:
    controller = DisparityController(EPSILON)
    gaps = {"a": EPSILON, "b": EPSILON, "c": EPSILON}  # nothing is to be done
    control = controller.step(controller.start({"a": 2.0, "b": 4.0, "c": 8.0}), measured(gaps))
    assert control.weights == {"b": pytest.approx(2.0), "c": pytest.approx(4.0)}


def test_what_was_measured_under_other_weights_counts_less() -> None:
    far, near = measured({"few": 0.08, "many": -0.08}), measured({"few": EPSILON, "many": -EPSILON})
    with_same = steps(DisparityController(EPSILON, integral=0.0, proportional=0.0), [far, far, near])[-1]
    with_other = steps(DisparityController(EPSILON), [far, far, near])[-1]
    few, many = (with_other.gaps[name].value for name in ("few", "many"))
    assert few == pytest.approx(-many)  # two groups mirror each other
    pooled = [float(control.reasons[0].split(" is ")[1].split(" ")[0]) for control in (with_same, with_other)]
    assert EPSILON < pooled[1] < pooled[0]


def test_a_target_below_what_chance_gives_is_said_to_be() -> None:
    (control,) = steps(DisparityController(0.001), [measured({"few": 0.003, "many": -0.003}, 0.01)])
    assert "which is less than chance alone gives" in control.reasons[0]
    assert control.weights == {}


@given(data=st.data())
def test_gaps_are_differences_of_means_of_groups_that_are_large_enough(data: Any) -> None:
    rng, min_users = np.random.default_rng(data.draw(st.integers(0, 2**16))), data.draw(st.integers(1, 6))
    codes, values = rng.integers(-1, 4, 40), rng.random(40)
    found = Measured.of(values, codes, ("a", "b", "c", "d"), min_users)
    compared = [code for code in range(4) if (codes == code).sum() >= max(2, min_users)]
    assert set(found.gaps) == ({"abcd"[code] for code in compared} if len(compared) > 1 else set())
    for name, gap in found.gaps.items():
        is_own, is_compared = codes == "abcd".index(name), np.isin(codes, compared)
        own, rest = values[is_own], values[is_compared & ~is_own]
        assert gap.value == pytest.approx(rest.mean() - own.mean())
        assert gap.variance == pytest.approx(own.var(ddof=1) / len(own) + rest.var(ddof=1) / len(rest))
    twice = Measured.of(2 * values, codes, ("a", "b", "c", "d"), min_users, values)
    for lift in twice.log_lift_over_popularity.values():
        assert lift == (pytest.approx(math.log(2)), pytest.approx(0.0))


def test_a_group_that_has_come_to_the_front_is_said_to_be_ahead() -> None:
    controller = DisparityController(EPSILON)
    control = controller.step(controller.start({"few": 4.0}), measured({"few": -0.03, "many": 0.03}))
    assert control.reasons[0].startswith("few is 0.0300 ± 0.0040 ahead of the rest and may be 0.02 behind: ")
    assert control.gaps["few"].value == pytest.approx(-0.03)


@given(share=st.floats(0.01, 1), gap=st.floats(0.03, 0.3), theta=st.floats(0, 2))
def test_the_step_is_in_proportion_to_the_share_that_is_taken(share: float, gap: float, theta: float) -> None:
    controller = DisparityController(EPSILON)
    memory, period = controller.start({"few": math.exp(theta)}), measured({"few": gap, "many": -gap})
    whole, part = (math.log(controller.step(memory, period, size).weights["few"]) for size in (1.0, share))
    assert part - theta == pytest.approx(share * (whole - theta), abs=1e-9)
