"""Nobody's group follows from what is published: the attacks that told it, run against the numbers of today."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import SMALL, know, named_stream, take_in
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.evaluation import Evaluation, UserResults
from fairstream.evaluation.by_group import GroupScores
from fairstream.models import NO_LEVEL, levels_of
from fairstream.service.audit import entries
from fairstream.service.dashboard.overview import gap_chart, quality_chart
from fairstream.service.dashboard.reading import Overview
from fairstream.service.event_store import closed_periods
from fairstream.service.gaps import TOO_FEW, gap_in, level_of, score_in, too_noisy, why_no_gap
from fairstream.service.learning import Learning
from fairstream.service.privacy import (
    EVERYONE,
    MAX_CHANGE,
    RUNGS,
    SHARES,
    Comparison,
    GroupMeans,
    Normal,
    Release,
    ndcg_of,
    readable_from,
    reported,
    reported_regret,
)
from fairstream.service.registry import models
from fairstream.service.settings import Gate, Privacy
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from fairstream.strategies import LeastRegret, PeriodReplay

Maker = Callable[..., Workspace]
NAMES = ["majority", "minority"]
N_SECRETS = 4000
LEVELS = levels_of(NAMES)
FEW_LEVELS = [level for level in LEVELS if level == NO_LEVEL or level.weight in RUNGS]
OFF, ON = Privacy(epsilon="off"), Privacy(epsilon=1.0)


def published(truth: int, secret: int, privacy: Privacy, values: np.ndarray, codes: np.ndarray) -> GroupMeans:
    """What is published of a period whose last user is the target, of group `truth`, all others the attacker's."""
    codes = np.append(codes, truth)
    release = Release(secret.to_bytes(4, "big"), privacy, 20, "3 hash")
    return release.means("period", values, codes, NAMES, release.sizes("period sizes", codes, NAMES))


def right(guess: Callable[[GroupMeans], int], privacy: Privacy, values: np.ndarray, codes: np.ndarray) -> float:
    """How often a guess is right, over many secrets."""
    found = [guess(published(n % 2, n, privacy, values, codes)) == n % 2 for n in range(N_SECRETS)]
    return float(np.mean(found))


def by_threshold(groups: GroupMeans) -> int:
    """19 made-up users a group: the one that is reported has the twentieth."""
    if len(groups.sizes) == 1:
        return NAMES.index(next(iter(groups.sizes)))
    return int(groups.sizes.get("minority", 0) > groups.sizes.get("majority", 0))


def by_fraction(groups: GroupMeans) -> int:
    """38 made-up users a group, none with a hit: a denominator of 39 tells where the target is."""
    denominators = {
        name: Fraction(round(mean.value, 3)).limit_denominator(60).denominator for name, mean in groups.means.items()
    }
    return int(denominators.get("minority") == 39)


def by_mean(groups: GroupMeans) -> int:
    """The target alone has a hit, and everybody else is known: the group with the larger mean, if any is reported."""
    if len(groups.means) < 2:
        return 0
    return int(groups.means["minority"].value > groups.means["majority"].value)


def made_up(n: int, target_value: float) -> tuple[np.ndarray, np.ndarray]:
    """The values of n users a group with nothing found and of the target, and the groups of all but the target."""
    return np.append(np.zeros(2 * n), target_value), np.repeat([0, 1], n)


def test_without_noise_the_group_of_one_person_can_be_told_from_a_mean() -> None:
    """What the noise is there for: with exact means whoever made up all others knows the target's group for sure."""
    assert right(by_mean, OFF, *made_up(200, 1.0)) == 1.0


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("guess", "n", "value"), [(by_threshold, 19, 0.0), (by_fraction, 38, 1.0), (by_mean, 38, 1.0), (by_mean, 200, 1.0)]
)
def test_no_guess_at_a_group_is_much_better_than_a_coin(guess: Any, n: int, value: float) -> None:
    share = right(guess, ON, *made_up(n, value))
    assert share <= 0.5 + SHARES["period"] / 2 + 0.02  # what the budget of these numbers allows is 0.56


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_best_guess_from_all_that_an_update_publishes_stays_below_the_bound(epsilon: float) -> None:
    """Whoever knows everything but one person's group, and how the noise is made, guesses by the likelihoods."""
    n, half = 300, 0.5  # everybody's value is 0.5, but the target's is 1
    values, others = np.append(np.full(2 * n, half), 1.0), np.repeat([0, 1], n)
    everyone = float(values.mean())
    change = np.zeros((2 * n + 1, 5))
    change[-1, 1:] = -0.4  # the target's alone; cut off
    rights = []
    for secret in range(N_SECRETS // 2):
        truth, likelihoods = secret % 2, np.zeros(2)
        release, codes = Release(secret.to_bytes(4, "big"), Privacy(epsilon=epsilon), 20, "x"), np.append(others, truth)
        for what in ("period", "held-out", "replay"):
            sizes = release.sizes(f"{what} sizes", codes, NAMES)
            means = release.means(what, values, codes, NAMES, sizes).means
            of_size, of_sum = (2 / (epsilon * SHARES[name]) for name in (f"{what} sizes", what))
            for code, name in enumerate(NAMES if len(means) == 2 else ()):
                total = (means[name].value - everyone) * sizes[name]
                for world in (0, 1):
                    here = code == world
                    expected = n * (half - everyone) + here * (1 - everyone)
                    likelihoods[world] -= abs(sizes[name] - n - here) / of_size
                    likelihoods[world] -= abs(total - expected) / (of_sum * max(everyone, 1 - everyone))
        replay = release.replay(np.repeat(values[:, None], 5, axis=1) + change, codes, NAMES, FEW_LEVELS)
        for code, name in enumerate(NAMES if len(replay.groups) == 2 else ()):
            own = replay.groups[name]
            mean, scale = float(change[:, 1].mean()), 4 * 2 * MAX_CHANGE / (epsilon * SHARES["replay changes"])
            for moved, world in itertools.product(own.change[1:], (0, 1)):
                expected = -n * mean + (code == world) * (MAX_CHANGE - mean)
                likelihoods[world] -= abs((moved - mean) * own.n_users - expected) / scale
        rights.append((likelihoods[1] > likelihoods[0]) == truth)
    assert np.mean(rights) <= math.exp(epsilon) / (1 + math.exp(epsilon))


def replayed(secret: int, epsilon: Any, n: int = 4000, gain: float = 0.0) -> PeriodReplay:
    """A period of n users, half of each group, for whom levels change something by chance; `gain` for the minority."""
    rng = np.random.default_rng(secret)
    codes = rng.integers(0, 2, n)
    values = rng.uniform(0.1, 0.4, (n, 1)) + rng.uniform(-0.08, 0.08, (n, len(LEVELS)))
    values[:, 1:] += gain * (codes == 1)[:, None]
    return Release(secret.to_bytes(4, "big"), Privacy(epsilon=epsilon), 20, "x").replay(values, codes, NAMES, LEVELS)


def test_without_noise_a_replay_is_exact_and_with_it_few_levels_are_tried() -> None:
    exact, noisy = replayed(1, "off"), replayed(1, 1.0)
    assert exact.levels == tuple(LEVELS)
    assert noisy.levels == tuple(FEW_LEVELS)
    for name in NAMES:
        at = [LEVELS.index(level) for level in FEW_LEVELS]
        assert noisy.groups[name].change[0] == 0
        assert not set(noisy.groups[name].change[1:]) & {exact.groups[name].change[place] for place in at}
        assert noisy.groups[name].strata == ()  # how many users had which history would be exact
    assert replayed(1, 1.0) == noisy  # and the noise is the same each time
    assert replayed(1, 1.0, n=300).groups == {}  # means that noise would dominate say nothing


def test_a_replay_spends_no_more_than_its_share() -> None:
    """One person's group moves the released sums by so much, and the noise is so large: their ratio is the loss."""
    n, share = 3000, SHARES["replay changes"]
    values = np.full((2 * n + 1, len(LEVELS)), 0.5)
    values[-1, 1:] = 0.1  # the target's change, which is cut off
    mean = -MAX_CHANGE / (2 * n + 1)
    sums = np.zeros((300, 2, 2, 4))  # (secret, the target's group, group, level)
    for secret in range(300):
        for truth in (0, 1):
            release = Release(secret.to_bytes(4, "big"), ON, 20, "x")
            groups = release.replay(values, np.append(np.repeat([0, 1], n), truth), NAMES, LEVELS).groups
            for code, name in enumerate(NAMES):
                own = groups[name]
                sums[secret, truth, code] = (np.array(own.change[1:]) - mean) * own.n_users
    moved = np.abs(sums[:, 1] - sums[:, 0])[0]  # the same noise in both
    scale = np.abs(sums[:, 0] - np.median(sums[:, 0], axis=0)).mean()  # of Laplace's distribution
    assert 0.9 * share < moved.sum() / scale < 1.1 * share


def test_the_variance_of_a_replay_has_the_noise() -> None:
    z = []
    for secret in range(200):
        own = replayed(secret, 1.0).groups["minority"]
        z.append(np.array(own.change[1:]) / np.sqrt(own.variance[1:]))
    assert 0.8 < np.std(z) < 1.2
    assert abs(np.mean(z)) < 0.2


def test_noise_alone_serves_no_level_and_a_gain_that_is_there_does() -> None:
    target = LeastRegret()
    chosen = [target.decide({}, replayed(secret, 1.0)).level for secret in range(200)]
    assert np.mean([level != NO_LEVEL for level in chosen]) <= 0.05
    chosen = [target.decide({}, replayed(secret, 1.0, n=20_000, gain=0.04)).level for secret in range(20)]
    assert np.mean([level.group == "minority" for level in chosen]) >= 0.9


def test_regret_is_withheld_where_noise_would_dominate_it() -> None:
    level, hidden = FEW_LEVELS[1], {"regret": {}, "withheld": dict.fromkeys(NAMES, too_noisy(1.0))}
    wide, few, many = replayed(0, 0.5, n=4000), replayed(0, 1.0, n=300), replayed(0, 1.0, n=40_000)
    wide = wide._replace(  # as if the levels had changed ten times as much
        groups={name: own._replace(variance=tuple(100 * v for v in own.variance)) for name, own in wide.groups.items()}
    )
    for withheld in ([], [few], [wide]):
        assert reported_regret(withheld, level, NAMES, 1.0) == hidden
    shown = reported_regret([many], level, NAMES, 1.0)
    assert set(shown["regret"]) == set(NAMES)
    assert shown["withheld"] == {}
    assert set(reported_regret([], level, NAMES, "off")["withheld"].values()) == {TOO_FEW}


def test_the_shares_of_an_update_add_up_to_its_budget() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)


@given(st.lists(st.integers(0, 80), min_size=2, max_size=5), st.sampled_from([OFF, ON]), st.integers(0, 99))
def test_no_group_is_hidden_alone(counts: list[int], privacy: Privacy, secret: int) -> None:
    """One hidden group is everyone's mean minus the others'."""
    names = [f"g{n}" for n in range(len(counts))]
    release = Release(bytes([secret]), privacy, 20, "x")
    sizes = release.sizes("period sizes", np.repeat(np.arange(len(counts)), counts), names)
    assert len(names) - len(sizes) != 1
    if privacy is OFF:
        assert all(counts[names.index(name)] >= 20 for name in sizes)


def test_the_noise_is_the_same_each_time_and_other_for_other_events() -> None:
    def drawn(secret: bytes, label: str) -> GroupMeans:
        release, codes = Release(secret, ON, 20, label), np.repeat([0, 1], 500)
        sizes = release.sizes("period sizes", codes, NAMES)
        return release.means("period", np.linspace(0, 1, 1000), codes, NAMES, sizes)

    assert drawn(b"a", "1 x") == drawn(b"a", "1 x")
    assert len({drawn(s, label).means["minority"] for s in (b"a", b"b") for label in ("1 x", "2 x", "1 y")}) == 6


def test_intervals_cover_with_the_noise() -> None:
    """Group means of 400 users each, with ε = 1: 95 of 100 intervals hold the true mean, and 95 of 100 the true gap."""
    rng, covered = np.random.default_rng(0), []
    for secret in range(400):
        codes = np.repeat([0, 1], 400)
        values = (rng.random(800) < np.where(codes == 0, 0.4, 0.3)).astype(float)
        release = Release(secret.to_bytes(2, "big"), ON, 20, "x")
        groups = release.means("period", values, codes, NAMES, {"majority": 400.0, "minority": 400.0})
        covered.append([_holds(groups.means["minority"], 0.3), _holds(groups.gaps()["majority"], 0.1)])
    assert (np.mean(covered, axis=0) > 0.9).all()


def _holds(found: Normal, truth: float) -> bool:
    low, high = found.interval
    return low <= truth <= high


def results(users: np.ndarray, codes: np.ndarray, hits: np.ndarray) -> UserResults:
    found = np.zeros((len(users), 5), np.bool_)
    found[:, 0] = hits
    return UserResults(
        users,
        codes.astype(np.int16),
        np.zeros(len(users), np.bool_),
        found,
        np.ones(len(users), np.int64),
    )


def test_whoever_has_just_appeared_counts_in_no_group() -> None:
    users, codes, hits = np.arange(100), np.repeat([0, 1], 50), np.ones(100, np.bool_)
    tested = results(users, codes, hits)
    release = Release(b"s", OFF, 20, "x")
    assert set(Comparison.of(release, tested, tested, NAMES, 100).groups_before.sizes) == set(NAMES)
    assert Comparison.of(release, tested, tested, NAMES, 69).groups_before.sizes == {}  # 19 of the minority


PERIODS, PEOPLE = named_stream()


def period_of(users: list[str], t: int) -> pa.Table:
    """Twelve events of each user, as everybody's made-up ones would be."""
    start = PERIODS[t]["time"][0].as_py()
    rows = [(user, f"i{(7 * n + 13 * t + at) % 150}") for at, user in enumerate(users) for n in range(12)]
    return pa.table(
        {
            "user_id": [user for user, _ in rows],
            "item_id": [item for _, item in rows],
            "time": pa.array([start] * len(rows), pa.timestamp("us")),
        }
    )


def attacked(workspace: Workspace, truth: str) -> dict[str, Any]:
    """The review's attack: 19 made-up users a group, the target beside them, and many without a group."""
    accomplices = [f"{name}{n}" for name in NAMES for n in range(19)]
    crowd = [f"nobody{n}" for n in range(122)]
    groups = {user: user.rstrip("0123456789") for user in accomplices} | {"target": truth}
    know(workspace, pa.table({"user_id": list(groups), "value": list(groups.values())}))
    for t in range(3):
        take_in(workspace, period_of([*accomplices, *crowd, "target"], t))
        update(workspace)
    period, newest = closed_periods(workspace.engine)[-1], models(workspace.engine)[0]
    record = [json.loads(entry.body) for entry in entries(workspace.engine)][-1]
    kept = {"period": period.evaluation, "decision": newest.decision, "about": newest.about, "record": record}
    return json.loads(json.dumps(kept))


def keys_by_group(value: Any) -> Mapping[str, int]:
    """How often each group is a key of anything that was kept."""
    text = json.dumps(value)
    return {name: text.count(f'"{name}":') for name in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, "off"])
def test_the_attack_of_made_up_users_learns_the_same_whatever_the_truth(new_workspace: Maker, epsilon: Any) -> None:
    """End to end, through an update: before, exactly the target's group was reported. Now both or none are."""
    options = {
        "learning": Learning(model="item-item", group_weight=1.0),
        "gate": Gate(min_tested_users=20, max_user_share=1.0, max_drift=1.0),
        "privacy": Privacy(epsilon=epsilon),
    }
    for truth in NAMES:
        workspace = new_workspace(**options)
        workspace = replace(workspace, secret=b"the same in both worlds")
        found = attacked(workspace, truth)
        assert set(found["period"]["levels"]) == {EVERYONE}
        assert list(found["period"]["withheld"]) == NAMES
        assert found["period"]["metrics"]["hit@20"]["by_group"] == {}
        counts = keys_by_group(found)
        assert counts["majority"] == counts["minority"]
        assert not any(check["group"] for check in found["decision"]["checks"])


FOUR = ["18-29", "30-44", "45-64", "65+"]


def stored(hits: np.ndarray, codes: np.ndarray, secret: int, epsilon: Any = 1.0) -> dict[str, Any]:
    """What an update stores of a period with these users, as JSON."""
    tested = results(np.arange(len(hits)), codes, hits)
    release = Release(secret.to_bytes(4, "big"), Privacy(epsilon=epsilon), 20, "x")
    sizes = release.sizes("period sizes", codes, FOUR)
    groups = release.means("period", ndcg_of(tested), codes, FOUR, sizes).readable()
    everyone = GroupScores.from_dict({"mean": float(hits.mean())})
    found = reported(
        Evaluation({"ndcg@5": everyone}, len(hits), None, {}, {}, tested, n_cold_users=0), groups, FOUR, None, epsilon
    )
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.slow
@pytest.mark.parametrize("n", [500, 2000, 8000])
def test_groups_that_are_served_alike_are_shown_so(n: int) -> None:
    """The truth is a gap of 0: numbers that are shown hold it within their margins, others are withheld and say why."""
    held, stated, n_shown, n_draws, reasons = [], 0, 0, 300, set()
    for secret in range(n_draws):
        rng = np.random.default_rng(secret)
        codes = rng.choice(4, n, p=[0.34, 0.30, 0.28, 0.08])
        hits = rng.random(n) < 0.14
        found = stored(hits, codes, secret)
        score = score_in(found)
        for code, name in enumerate(FOUR):
            if name in found["levels"]:
                _, (low, high) = found["levels"][name]
                held.append(low <= hits[codes == code].mean() <= high)
                assert found["noise"][name] <= hits.mean() / 3 + 1e-4
                assert "±" in level_of(found, name)
            else:
                assert score["by_group"][name] is None
                reasons.add(level_of(found, name))
        gap = gap_in(score)
        if gap is not None:
            assert gap.value < 1.5 * hits.mean()
            n_shown += 1
            stated += not gap.may_be_chance
        else:
            assert "too few people" in why_no_gap(found)
    assert reasons <= {too_noisy(1.0), TOO_FEW}
    assert (too_noisy(1.0) in reasons) == (n < 8000)
    assert len(held) == 0 or np.mean(held) >= 0.9
    assert stated <= 0.06 * n_draws
    assert (n_shown > 0) == (n > 500)


def test_a_gap_that_is_there_is_named_with_its_side_and_margin() -> None:
    rng, named = np.random.default_rng(0), 0
    for secret in range(50):
        codes = rng.choice(4, 20_000)
        gap = gap_in(score_in(stored(rng.random(20_000) < np.array([0.08, 0.15, 0.15, 0.15])[codes], codes, secret)))
        assert gap is not None
        named += gap.words.startswith("the group “18-29” is 0.0") and gap.words.endswith("behind everyone else")
    assert named >= 48


def test_the_guide_says_from_how_many_users_groups_are_shown() -> None:
    guide = (Path(__file__).parents[2] / "docs/how-to/live.md").read_text()
    for quality in (0.05, 0.1, 0.2):
        assert f"| {quality:g} | {readable_from(1.0, quality):,} |" in guide


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 12.0])
def test_no_page_command_or_file_states_a_gap_between_groups_that_are_alike(
    new_workspace: Maker, tmp_path: Path, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups drawn by lot, four periods: at ε = 0.5 noise would be all there is to see, at 12 the groups are shown."""
    secret = b"always the same secret of a test"
    monkeypatch.setattr("fairstream.service.workspace.secrets.token_bytes", lambda n: secret[:n])
    workspace = new_workspace(
        **{**SMALL, "privacy": Privacy(epsilon=epsilon), "gate": Gate(min_tested_users=50, min_group_size=2)}
    )
    rng = np.random.default_rng(3)
    know(workspace, pa.table({"user_id": PEOPLE["user_id"], "value": rng.choice(NAMES, len(PEOPLE))}))
    said: list[str] = []
    for events in PERIODS[:4]:
        take_in(workspace, events)
        assert update(workspace, said.append).kind == "promoted", said[-1]
    assert any(f"carry noise on purpose, for privacy (epsilon = {epsilon:g})" in sentence for sentence in said)
    is_shown = epsilon > 1
    evaluations = [period.evaluation for period in closed_periods(workspace.engine)[1:]]
    for evaluation in evaluations:
        gap = gap_in(score_in(evaluation))
        assert (gap is not None) == is_shown
        assert gap is None or gap.may_be_chance
        assert all("too few people" in reason for reason in evaluation["withheld"].values())
        by_group = score_in(evaluation)["by_group"]
        assert {name for name, mean in by_group.items() if mean is None} == set(evaluation["withheld"])
    overview = Overview(workspace)
    drawn = {line.name: len(line.points) for line in quality_chart(overview).lines}
    for name in NAMES:
        assert drawn.get(name, 0) == sum(name in evaluation["levels"] for evaluation in evaluations)
    assert len(gap_chart(overview, workspace.config).lines[0].points) == (3 if is_shown else 0)
    pages = [
        CliRunner().invoke(app, [command, str(workspace.folder)], env={"COLUMNS": "250"}, catch_exceptions=False).stdout
        for command in ("status", "periods")
    ]
    for page in pages:
        assert ("may be chance" in page) == is_shown
        assert ("too few people" in page) != is_shown
        assert not any(f"{name} behind" in page or f"{name} ahead" in page for name in NAMES)
    assert ("carry noise on purpose" in pages[0]) == is_shown
