"""`frontier`: what each level of a lever costs on the past, from the past alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fairstream as fs
from fairstream.data.groups import Groups
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Estimate, GroupScores, MetricAtK, UserResults
from fairstream.evaluation.metrics import hit
from fairstream.experiments.levers import check_levels, make_levels
from fairstream.models import Level, tilts
from fairstream.periods import cut_periods
from fairstream.randomness import Randomness
from fairstream.text import signed
from support import make_recommender

STREAM = fs.synthetic_stream(n_users=400, n_items=80, n_events=9000, seed=2)
N_PERIODS, RATIO = 3, 0.7
QUICK: dict[str, Any] = {"n_periods": N_PERIODS, "n_resamples": 50, "min_group_size": 5}


def read(events: pa.Table = STREAM.events, **options: Any) -> fs.EventLog:
    return fs.read_events(events, users=STREAM.users, **{"group": "community", "advantaged": "majority", **options})


LOG = read()


def recommender(model: str = "item-item", **options: Any) -> fs.FairRecommender:
    return make_recommender(model, device="cpu", seed=3, **options)


@pytest.fixture(scope="module")
def frontier() -> fs.Frontier:
    return recommender().frontier(LOG, lever="group_weight", levels=[1, 3, 8], **QUICK)


def as_json(frontier: fs.Frontier) -> dict[str, Any]:
    """Everything but the measured times."""
    document = {**frontier.to_dict(), "pretrain_seconds": None}
    return {**document, "levels": [{**level, "seconds": None} for level in document["levels"]]}


def summary_of_a_run(log: fs.EventLog, model: str, task: str = "next", **options: Any) -> dict[str, Any]:
    job = fs.run(
        log,
        model=model,
        metrics=["ndcg@20"],
        tasks=[task],
        seed=3,
        device="cpu",
        pretrain_ratio=RATIO,
        n_blocks=N_PERIODS + 1,
        n_periods=N_PERIODS + 1,
        n_resamples=QUICK["n_resamples"],
        min_group_size=QUICK["min_group_size"],
        **options,
    )
    list(job)
    return job.summary()[task]["ndcg@20"]


def test_the_larger_group_is_the_one_that_was_larger_when_training_began() -> None:
    """Most users of all are of the group that comes later, which nobody knows before the first test."""
    early, late = [f"e{n}" for n in range(30)], [f"l{n}" for n in range(60)]
    first = [(user, f"i{(n + k) % 20}") for k in range(14) for n, user in enumerate((*early, *late[:10]))]
    then = [(user, f"i{(n + 14 + k) % 20}") for k in range(4) for n, user in enumerate((*early, *late[10:]))]
    users, items = zip(*first, *then, strict=True)
    log = fs.read_events(
        pa.table({"user": users, "item": items, "time": range(len(users))}),
        users=pa.table({"user": [*early, *late], "group": ["early"] * len(early) + ["late"] * len(late)}),
        group="group",
    )
    assert log.require_groups().names[0] == "late"
    frontier = recommender().frontier(log, levels=[1, 3], **{**QUICK, "n_periods": 2}, pretrain_ratio=0.6)
    assert frontier.groups[0] == "early"


# ── what it is equal to ──────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("task", ["event", "next"])
def test_without_a_lever_it_is_a_plain_run(task: Any) -> None:
    log = read(advantaged="majority")
    frontier = recommender().frontier(log, levels=[1, 2], task=task, **QUICK)
    assert frontier.baseline.scores.to_dict() == summary_of_a_run(log, "item-item", task, fairness_weight=0.0)


@pytest.mark.slow
def test_without_a_lever_a_trained_model_is_a_plain_run_too() -> None:
    epochs = {"pretrain_epochs": 2, "update_epochs": 1}
    frontier = recommender("mf", **epochs).frontier(LOG, lever="fairness_weight", levels=[0, 4], **QUICK)
    assert frontier.baseline.scores.to_dict() == summary_of_a_run(LOG, "mf", fairness_weight=0.0, **epochs)
    assert frontier.levels[1].scores.mean != frontier.baseline.scores.mean


def test_at_a_level_a_closed_form_is_a_run_with_that_weight(frontier: fs.Frontier) -> None:
    for level in frontier.levels[1:]:
        run = summary_of_a_run(LOG, "item-item", group_weight=level.value)
        assert level.quality == pytest.approx(run["mean"], abs=1e-4)
        assert level.gap.value == pytest.approx(run["performance_disparity"], abs=1e-4)


@pytest.mark.slow
def test_features_of_items_are_read_as_in_a_run() -> None:
    ids = pa.array(np.unique(STREAM.events["item_id"].to_numpy()))
    items = pa.table({"item_id": ids, "kind": [f"kind{i % 7}" for i in ids.to_pylist()]})
    log = read(items=items)
    epochs = {"pretrain_epochs": 1, "update_epochs": 1, "model_settings": {"embedding_dim": 8}}
    frontier = recommender("gru", **epochs).frontier(log, lever="group_weight", levels=[1, 2], **QUICK)
    assert frontier.baseline.scores.to_dict() == summary_of_a_run(log, "gru", fairness_weight=0.0, **epochs)


@pytest.mark.slow
def test_the_events_that_a_recommender_knows_are_its_past(frontier: fs.Frontier) -> None:
    rec = recommender().fit(read(STREAM.events.slice(0, 6000)))
    rec.update(STREAM.events.slice(6000, 2000), users=STREAM.users)
    rec.observe(STREAM.events.slice(8000), users=STREAM.users)
    state = rec.state
    assert as_json(rec.frontier(lever="group_weight", levels=[1, 3, 8], **QUICK)) == as_json(frontier)
    assert rec.state is state


@pytest.mark.slow
def test_repeated_events_belong_to_the_past_that_a_recommender_knows() -> None:
    log = read(STREAM.events.take(np.repeat(np.arange(3000), 2)), repeats="all")
    own = recommender("item-item").fit(log).frontier(levels=[1, 3], **QUICK)
    given = recommender("item-item").frontier(log, levels=[1, 3], **QUICK)
    assert own.period_ends[-1] == len(log) == 6000
    assert [level.scores for level in own.levels] == [level.scores for level in given.levels]


@pytest.mark.slow
def test_every_level_starts_from_the_pretraining_without_a_lever() -> None:
    """An update that learns nothing shows what the levels start from: the same model, whatever the lever.

    Not the lever of group weights: an update weighs a period's counts by them before it trains.
    """
    rec = recommender("gru", pretrain_epochs=1, update_epochs=1, embedding_dim=8, update_learning_rate=1e-12)
    levels = rec.frontier(LOG, lever="fairness_weight", levels=[0, 8], **QUICK).levels
    assert levels[0].scores.by_group == levels[1].scores.by_group


@pytest.mark.slow
def test_it_is_the_same_every_time(frontier: fs.Frontier) -> None:
    again = recommender().frontier(LOG, lever="group_weight", levels=[8, 1, 3, 3], **QUICK)
    assert as_json(again) == as_json(frontier)


# ── what it may know ─────────────────────────────────────────────────────────────────────


def test_the_periods_are_the_last_events(frontier: fs.Frontier) -> None:
    cut = cut_periods(len(LOG), pretrain_ratio=RATIO, n_periods=N_PERIODS + 1, n_blocks=N_PERIODS + 1)
    assert frontier.period_ends == cut.ends
    assert cut.ends[-1] == len(LOG)


def test_progress_begins_with_one_pretraining_and_never_goes_back() -> None:
    calls: list[tuple[str, float]] = []
    rec = recommender("mf", pretrain_epochs=2, update_epochs=2)
    options: dict[str, Any] = {"lever": "fairness_weight", "levels": [0, 1], **QUICK}
    rec.frontier(LOG, on_progress=lambda stage, share: calls.append((stage, share)), **options)
    stages = list(dict.fromkeys(stage for stage, _ in calls))
    assert stages == ["pre-training", "0 of 2 runs", "1 of 2 runs", "2 of 2 runs"]
    shares = [share for _, share in calls]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


# ── levers ───────────────────────────────────────────────────────────────────────────────


def test_the_weights_help_those_behind(frontier: fs.Frontier) -> None:
    none, *_, heaviest = frontier.levels
    assert none.behind == "minority"
    before, after = none.scores.by_group["minority"], heaviest.scores.by_group["minority"]
    assert before is not None
    assert after is not None
    assert after > before
    assert heaviest.gap_change.high < 0
    assert heaviest.quality_change.value == pytest.approx(heaviest.quality - none.quality)
    assert heaviest.gap_change.value == pytest.approx(heaviest.gap.value - none.gap.value)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "options", "lever"),
    [
        ("item-item", {}, "group_weight"),
        ("blend", {}, "group_weight"),
        ("blend", {}, "level"),
        ("sasrec", {}, "group_weight"),
        ("sasrec", {"loss": "bpr"}, "fairness_weight"),
        ("mf", {"method": "Finetune"}, "fairness_weight"),
    ],
)
def test_every_lever_has_an_effect(model: str, options: dict[str, Any], lever: Any) -> None:
    training = {} if model == "item-item" else {"pretrain_epochs": 1, "update_epochs": 1}
    rec = recommender(model, **options, **training)
    small = read(STREAM.events.slice(0, 1500))
    levels: list[Any] = {"fairness_weight": [0, 1], "group_weight": [1, 6], "level": [1, "alone"]}[lever]
    frontier = rec.frontier(small, lever=lever, levels=levels, **{**QUICK, "n_periods": 1})
    assert any("the signed one is weighed" in note for note in frontier.notes) == ("method" in options)
    assert frontier.levels[0].scores != frontier.levels[1].scores  # it has an effect


@pytest.mark.slow
def test_the_other_lever_and_an_accepted_disparity_are_off(frontier: fs.Frontier) -> None:
    rec = recommender(fairness_weight=2.0, max_gap=0.9)
    given = rec.frontier(LOG, lever="group_weight", levels=[1, 3, 8], **QUICK)
    assert given.max_gap == 0.9
    assert [level.scores for level in given.levels] == [level.scores for level in frontier.levels]
    assert given.setting == {"group_weight": 1.0, "fairness_weight": 0.0, "target": "none"}


@pytest.mark.slow
def test_what_an_accepted_disparity_may_cost_is_off_too(frontier: fs.Frontier) -> None:
    held = recommender(target="least-regret", max_group_loss=0.05)
    given = held.frontier(LOG, lever="group_weight", levels=[1, 3, 8], **QUICK)
    assert [level.scores for level in given.levels] == [level.scores for level in frontier.levels]


def test_weights_that_training_does_not_know_are_noted() -> None:
    rec = recommender("mf", pretrain_epochs=1, update_epochs=1)
    frontier = rec.frontier(LOG, lever="group_weight", levels=[1, 2], **{**QUICK, "n_periods": 1})
    assert any("takes no event weights" in note for note in frontier.notes)


@pytest.mark.slow
def test_a_metric_of_ones_own() -> None:
    def first_hit(lists: Any, truth: Any) -> Any:
        return lists.hits[:, 0].astype(float)

    rec = recommender(metrics={"first@7": first_hit})
    options: dict[str, Any] = {"lever": "group_weight", "levels": [1, 8], **QUICK}
    frontier = rec.frontier(LOG, metric="first@7", **options)
    assert frontier.metric == "first@7"
    plain = recommender().frontier(LOG, metric="hit@1", **options)
    assert frontier.baseline.quality == pytest.approx(plain.baseline.quality)
    with pytest.raises(ConfigurationError, match="first@7 is a custom metric; choose another metric, or the lever"):
        rec.frontier(LOG, metric="first@7", **QUICK)


def test_a_model_that_does_not_read_popularity_has_levels_for_newcomers_only() -> None:
    frontier = recommender("item-item").frontier(LOG, levels=[1, 2], **QUICK)
    assert "levels reach newcomers only: item-item does not read popularity" in frontier.notes
    assert not any("newcomers only" in note for note in recommender("popularity").frontier(LOG, **QUICK).notes)


# ── the levels of popularity ─────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def by_level() -> fs.Frontier:
    return recommender("popularity").frontier(LOG, **QUICK)


def test_by_default_the_levels_of_the_group_behind_are_shown(by_level: fs.Frontier) -> None:
    assert (by_level.lever, by_level.target_groups) == ("level", ("minority",))
    names = [by_level.name_of(level) for level in by_level.levels]
    assert names == ["none", "1.5", "2", "3", "5", "8", "13", "20", "50", "alone"]
    none, *_, alone = by_level.levels
    assert alone.scores.by_group["minority"] > none.scores.by_group["minority"]  # type: ignore[operator]
    largest = [max(regret.value for regret in level.regret_to_best.values()) for level in (none, alone)]
    assert none.regret_to_best["minority"].value == largest[0] > 0.03
    assert alone.regret_to_best["minority"].value < 0.02
    table = by_level.to_arrow()
    assert table["minority_regret_to_best"][0].as_py() == largest[0]
    assert "largest regret" in repr(by_level)


def test_at_a_level_a_frontier_has_what_a_run_would_have_served(by_level: fs.Frontier) -> None:
    """The lists at a level of one run without levels are those of recommenders that serve it."""
    chosen = by_level.levels[5]
    job = fs.run(
        LOG,
        "Finetune",
        model="popularity",
        metrics=["ndcg@20"],
        tasks=["next"],
        seed=3,
        device="cpu",
        pretrain_ratio=RATIO,
        n_blocks=N_PERIODS + 1,
        n_periods=N_PERIODS + 1,
        min_group_size=5,
    )
    job.begin()
    served = []
    for t in range(1, N_PERIODS + 1):
        next(job)
        level = Level("minority", chosen.value)
        state = replace(job.state, level=level, tilt=tilts(job.state.history, job.groups, [level])[0])
        served.append(job._evaluate("next", t, job._evaluator, state)["ndcg@20"].mean)
    assert chosen.quality == pytest.approx(np.mean(served), abs=1e-6)
    assert chosen.quality != pytest.approx(by_level.baseline.quality, abs=1e-3)


AGES = np.array(["young", "middle", "old"])


@pytest.fixture(scope="module")
def ages() -> fs.EventLog:
    """The minority is old, half of the majority young, half of it middle-aged, so that old is furthest behind."""
    community = np.array(STREAM.users["community"].to_pylist())
    rng = np.random.default_rng(0)
    age = np.where(community == "minority", "old", AGES[rng.integers(0, 2, len(community))])
    people = STREAM.users.append_column("age", pa.array(age.tolist()))
    return fs.read_events(STREAM.events, users=people, group="age")


@pytest.mark.parametrize(("lever", "values"), [("level", [1.0, 2.0, 5.0, 13.0, 1000.0]), ("group_weight", [1.0, 8.0])])
def test_of_several_groups_only_the_one_furthest_behind_is_raised(
    ages: fs.EventLog, lever: Any, values: list[float]
) -> None:
    levels: list[float] | None = None if lever == "level" else values
    frontier = recommender("popularity").frontier(ages, lever=lever, levels=levels, **QUICK)
    assert frontier.target_groups == ("old",)
    assert [level.value for level in frontier.levels] == values
    none, *_, last = frontier.levels
    changes = {name: last.scores.by_group[name] - none.scores.by_group[name] for name in AGES}  # type: ignore[operator]
    assert max(changes, key=changes.__getitem__) == "old"
    assert changes["old"] > 0.01
    assert none.behind == "old"


def test_a_weight_is_for_the_group_that_it_names(ages: fs.EventLog) -> None:
    def trainer(fairness: Any) -> Any:
        return fs.FairRecommender("item-item", fairness=fairness, device="cpu")._trainer

    groups = ages.require_groups()
    assert trainer(fs.GroupWeight(3.0, "old")).fixed_weights(groups) == {"old": 3.0}
    two = LOG.require_groups()
    assert trainer(fs.GroupWeight(3.0)).fixed_weights(two) == {"minority": 3.0}
    assert trainer(fs.GroupWeight(3.0, "majority")).fixed_weights(two) == {"majority": 3.0}
    with pytest.raises(ConfigurationError, match="for the group 'rich', but the groups of age are"):
        trainer(fs.GroupWeight(3.0, "rich")).fixed_weights(groups)
    with pytest.raises(ConfigurationError, match="--weighted-group"):
        trainer(fs.GroupWeight(3.0)).fixed_weights(groups)


# ── statistics ───────────────────────────────────────────────────────────────────────────


def results(hits: np.ndarray[Any, Any], codes: np.ndarray[Any, Any]) -> UserResults:
    n = len(codes)
    return UserResults(
        np.arange(n),
        codes.astype(np.int16),
        np.zeros(n, np.bool_),
        hits[:, None] > 0,
        np.ones(n, np.int64),
    )


def test_of_several_groups_the_one_furthest_behind_counts() -> None:
    rng, codes = np.random.default_rng(0), np.repeat([0, 1, 2], 200)
    rates = {1.0: (0.5, 0.4, 0.1), 4.0: (0.4, 0.2, 0.35)}
    tests = {value: [results(rng.random(600) < np.take(rate, codes), codes)] for value, rate in rates.items()}
    none, other = make_levels(
        tests,
        MetricAtK("hit@1", hit, 1),
        ("a", "b", "c"),
        off=1.0,
        min_group_size=20,
        n_resamples=200,
        randomness=Randomness(0),
        seconds=dict.fromkeys(tests, 0.0),
    )
    for level, behind in ((none, "c"), (other, "b")):
        means = {name: tests[level.value][0].hits[codes == code].mean().item() for code, name in enumerate("abc")}
        rest = np.mean([value for name, value in means.items() if name != behind])
        assert level.behind == behind
        assert level.gap.value == pytest.approx(rest - means[behind])
        assert level.gap.interval is not None
        assert level.gap.interval[0] < level.gap.value < level.gap.interval[1]
    assert other.gap_change.value == pytest.approx(other.gap.value - none.gap.value)
    assert other.gap_change.excludes_zero


# ── the recommendation ───────────────────────────────────────────────────────────────────


def level(value: float, quality: float, gap: float, *, p_value: float = 0.001, base: float = 0.2) -> fs.FrontierLevel:
    estimate = Estimate(gap, (gap - 0.01, gap + 0.01), p_value, 0.005)
    scores = GroupScores(quality, None, {"M": quality + gap / 2, "F": quality - gap / 2}, {}, *[None] * 7)
    quality_change = Estimate(quality - base, (quality - base - 0.001, quality - base + 0.001))
    gap_change = Estimate(gap - 0.05, (gap - 0.06, gap - 0.04))
    return fs.FrontierLevel(value, scores, estimate, "F" if gap > 0 else "M", quality_change, gap_change, 0.1, True)


def of(*levels: fs.FrontierLevel, **options: Any) -> fs.Frontier:
    given: dict[str, Any] = {"max_gap": None, "max_loss": None, **options}
    about: Any = ("group_weight", "ndcg@20", "event", "gender", ("M", "F"), ("F",), 900, (70, 80, 90, 100))
    return fs.Frontier(*about, levels, pretrain_seconds=1.0, **given)


NONE, CHEAP, FAIR, OVERDONE = level(1, 0.2, 0.05), level(2, 0.199, 0.035), level(4, 0.19, 0.01), level(8, 0.17, -0.02)


@pytest.mark.parametrize(
    ("options", "value", "words"),
    [
        ({}, 2, "group_weight 2 of F, the smallest gap at a loss of at most 1.0 %"),
        ({"max_loss": 0.1}, 4, "group_weight 4 of F, the smallest gap at a loss of at most 10.0 %"),
        ({"max_loss": 0.0}, 1, "no lever. No level has a smaller gap at a loss of at most 0.0 %"),
        ({"max_gap": 0.04}, 2, "the best quality with a gap of at most 0.04, though its interval reaches beyond"),
        ({"max_gap": 0.048}, 2, "a gap of at most 0.048, and so is its whole interval"),
        ({"max_gap": 0.03}, 4, "group_weight 4 of F, the best quality with a gap of at most 0.03"),
        ({"max_gap": 0.03, "max_loss": 0.02}, 2, "No level that was tried brings the gap to 0.03 at a loss"),
        ({"max_gap": 0.001}, 2, "No level that was tried brings the gap to 0.001."),
        ({"max_gap": 0.07}, 1, "no lever, since the gap is at most 0.07, and so is its whole interval"),
    ],
)
def test_what_is_recommended(options: dict[str, Any], value: float, words: str) -> None:
    frontier = of(NONE, CHEAP, FAIR, OVERDONE, **options)
    assert frontier.recommended.value == value
    weighted = {} if value == 1 else {"weighted_group": "F"}
    assert frontier.setting == {"group_weight": value, "fairness_weight": 0.0, "target": "none", **weighted}
    assert frontier.fairness == (None if value == 1 else fs.GroupWeight(value, "F"))
    assert words in " ".join(frontier.verdicts())


@pytest.mark.parametrize(("max_gap", "value", "held"), [(None, 2, 0.035), (0.03, 4, 0.03), (0.001, 2, 0.035)])
def test_a_recommended_level_of_popularity_is_a_target(max_gap: float | None, value: float, held: float) -> None:
    """A level cannot be set by hand: updates choose it, and hold the gap that it gives."""
    frontier = replace(of(NONE, CHEAP, FAIR, OVERDONE, max_gap=max_gap), lever="level")
    assert f"Recommended: the level F × {value:g}, " in " ".join(frontier.verdicts())
    assert frontier.target == fs.MaxGap(held, task="event")
    assert frontier.fairness is None
    assert frontier.setting == {"max_gap": held}
    assert replace(frontier, max_gap=0.9).setting == {"target": "none"}


@pytest.mark.parametrize("options", [{}, {"max_gap": 0.01}])
def test_a_gap_that_may_be_chance_is_left_alone(options: dict[str, Any]) -> None:
    frontier = of(level(1, 0.2, 0.05, p_value=0.3), CHEAP, **options)
    assert frontier.recommended is frontier.baseline
    verdicts = " ".join(frontier.verdicts())
    assert "chance alone may explain (p = 0.300)" in verdicts
    assert "Recommended: no lever" in verdicts


def test_a_narrowing_that_may_be_chance_is_called_so() -> None:
    unsure = replace(CHEAP, gap_change=Estimate(-0.015, (-0.04, 0.01)))
    assert any("cannot be told from chance" in verdict for verdict in of(NONE, unsure).verdicts())
    assert not any("cannot be told from chance" in verdict for verdict in of(NONE, CHEAP).verdicts())


def test_levelling_down_is_called_so() -> None:
    up, down = (level(2, quality, 0.035) for quality in (0.199, 0.1985))
    assert up.scores.by_group["F"] == pytest.approx(0.1815)
    worse = replace(down, scores=replace(down.scores, by_group={"M": 0.205, "F": 0.17}))
    assert not any("levels down" in verdict for verdict in of(NONE, up).verdicts())
    assert any("That levels down: F is no better off" in verdict for verdict in of(NONE, worse).verdicts())


def test_a_lever_for_the_wrong_group_is_called_so() -> None:
    turned = [level(1, 0.2, -0.05), level(2, 0.199, -0.06)]
    said = "The lever is for F, which was furthest behind in the first test, but here M is behind"
    assert any(said in verdict for verdict in of(*turned).verdicts())
    assert not any("The lever is for" in verdict for verdict in of(NONE, CHEAP).verdicts())


def test_the_front(frontier: fs.Frontier) -> None:
    for one in frontier.levels:
        is_dominated = any(
            other.quality >= one.quality
            and other.size <= one.size
            and (other.quality > one.quality or other.size < one.size)
            for other in frontier.levels
        )
        assert one.is_on_front != is_dominated


def test_the_table_has_a_row_for_each_level(frontier: fs.Frontier) -> None:
    table = frontier.to_arrow()
    assert table["group_weight"].to_pylist() == [1.0, 3.0, 8.0]
    assert table["minority"].to_pylist() == [level.scores.by_group["minority"] for level in frontier.levels]
    assert sum(table["is_recommended"].to_pylist()) == 1


# ── bad input ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": [2, 4]}, "must include 1, which does nothing, and another value to compare with it, got 2, 4"),
        ({"levels": [1]}, "and another value to compare with it, got 1"),
        ({"levels": []}, "must include 1"),
        ({"levels": [1, -2]}, "group_weight must be > 0, got -2"),
        ({"levels": [1, 0]}, "group_weight must be > 0, got 0"),
        ({"levels": [1, float("nan")]}, "group_weight must be"),
        ({"levels": ["a"]}, "group_weight must be a number"),
        ({"lever": "weight"}, "lever must be one of level, group_weight, fairness_weight, got 'weight'"),
        ({"lever": "level", "levels": [1, 7, "x"]}, "levels of a group are 1, 1.25, .*, 50, alone, got 7, x"),
        ({"lever": "level", "levels": ["alone"]}, "the levels of level must include 1, which does nothing"),
        ({"lever": "fairness_weight"}, "item-item is computed in closed form .* choose the lever group_weight"),
        ({"n_periods": 0}, "n_periods must be >= 1, got 0"),
        ({"pretrain_ratio": 1.0}, "pretrain_ratio must be < 1, got 1"),
        ({"metric": "ndgc@20"}, "ndgc"),
        ({"task": "remain"}, "task must be one of event, moment, next, got 'remain'"),
        ({"max_gap": -0.1}, "max_gap must be >= 0 and < 1, got -0.1"),
        ({"max_loss": 1.5}, "max_loss must be >= 0 and < 1, got 1.5"),
        ({"n_resamples": 0}, "n_resamples must be >= 1, got 0"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        recommender().frontier(LOG, **{"lever": "group_weight", **QUICK, **options})


def test_lambda_may_be_nothing_but_not_less() -> None:
    assert check_levels("fairness_weight", [2, 0]) == (0.0, 2.0)
    with pytest.raises(ConfigurationError, match="fairness_weight must be >= 0, got -1"):
        check_levels("fairness_weight", [0, -1])


@pytest.mark.parametrize("method", ["Pretrain"])
def test_a_method_without_the_lever_is_refused(method: str) -> None:
    with pytest.raises(ConfigurationError, match="choose a strategy that updates the model"):
        recommender("mf", method=method).frontier(LOG, lever="group_weight", **QUICK)


@pytest.mark.slow
def test_a_metric_of_all_users_together_is_refused() -> None:
    rec = recommender(metrics={"coverage@5": lambda lists, truth: len(np.unique(lists.items)) / truth.n_items})
    with pytest.raises(ConfigurationError, match="coverage@5 is one number for all users"):
        rec.frontier(LOG, lever="group_weight", metric="coverage@5", **QUICK)


def test_data_that_do_not_suffice_are_one_sentence() -> None:
    with pytest.raises(DataError, match="a frontier is about the gap between groups of users, but the log has none"):
        recommender().frontier(fs.read_events(STREAM.events), **QUICK)
    with pytest.raises(DataError, match="20 events are too few for a pre-training share of"):
        recommender().frontier(read(STREAM.events.slice(0, 20)), **{**QUICK, "n_periods": 9})
    with pytest.raises(DataError, match="no disparity can be compared: in every period fewer than 1000 users"):
        recommender().frontier(LOG, levels=[1, 2], **{**QUICK, "min_group_size": 1000})
    with pytest.raises(ConfigurationError, match="has not been fitted yet"):
        recommender().frontier()
    with pytest.raises(DataError, match="a frontier is about the gap between groups of users, but the log has none"):
        recommender().fit(fs.read_events(STREAM.events)).frontier(**QUICK)


@pytest.mark.slow
def test_users_without_a_group_are_in_no_gap() -> None:
    codes = LOG.require_groups().codes.copy()
    codes[::7] = -1
    groups = Groups("community", ("majority", "minority"), codes)
    frontier = recommender().frontier(LOG.with_groups(groups), levels=[1, 2], **QUICK)
    assert frontier.baseline.scores.to_dict() == summary_of_a_run(
        LOG.with_groups(groups), "item-item", fairness_weight=0.0
    )


def test_a_frontier_shows_itself(frontier: fs.Frontier) -> None:
    text, page = repr(frontier), frontier._repr_html_()
    for level in frontier.levels:
        assert f"{level.quality:.4f}" in text
        assert signed(level.gap.value) in page
    assert frontier.verdicts()[0] in text
    assert frontier.to_pandas()["gap"].tolist() == [level.gap.value for level in frontier.levels]


def test_the_chart_of_a_frontier_has_every_level(frontier: fs.Frontier) -> None:
    spec = frontier.plot().to_dict()
    rows = spec["data"]["values"]
    assert [(row["y"], row["x"]) for row in rows] == [(one.quality, one.size) for one in frontier.levels]
    assert [row["label"] for row in rows if row["kind"] == "recommended"] == [frontier.name_of(frontier.recommended)]
