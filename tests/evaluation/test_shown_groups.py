"""What is shown of more than two groups: everyone, with a sign, an interval of its own, and in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fairstream as fs
from fairstream.evaluation import GroupPanel, GroupScores, panel_scores
from fairstream.evaluation.by_group import SCORE_COLUMNS
from fairstream.evaluation.score_cells import group_cells, regret_sentences, split_sentence
from support import make_recommender

AGES = ("45-64", "18-29", "65+", "30-44")
SIZES = (60, 90, 40, 50)


def events() -> tuple[pa.Table, pa.Table]:
    """Nearly everyone has one of ten items at a time; those of 65 and older have any of a hundred."""
    rng = np.random.default_rng(0)
    ages = np.repeat(AGES, SIZES)
    users = np.tile(np.arange(len(ages)), 12)
    items = np.where(ages[users] == "65+", rng.integers(10, 110, len(users)), rng.integers(0, 10, len(users)))
    people = pa.table({"user": range(len(ages)), "age": ages.tolist()})
    return pa.table({"user": users, "item": items, "time": np.arange(len(users))}), people


@pytest.fixture(scope="module")
def both() -> tuple[fs.Evaluation, Any]:
    """The same lists, evaluated by the recommender that made them and as anybody's."""
    log, people = events()
    first, later = log.slice(0, 1200), log.slice(1200)
    rec = make_recommender("popularity", fairness_weight=0).fit(first, users=people, group="age")
    known = rec.state.item_ids.ids.to_pylist()
    later = later.filter(pa.array([item in known for item in later["item"].to_pylist()]))
    had = {(row["user"], row["item"]) for row in first.to_pylist()}
    later = later.filter(pa.array([(row["user"], row["item"]) not in had for row in later.to_pylist()]))
    lists = rec.recommend(sorted(set(later["user"].to_pylist())), k=10, task="next")
    options: dict[str, Any] = {"k": 10, "n_resamples": 200}
    ours = rec.evaluate(later, task="next", **options)
    return ours, fs.evaluate_recommendations(lists, later, users=people, group="age", **options)


def test_an_evaluation_prints_what_the_same_lists_print(both: tuple[fs.Evaluation, Any]) -> None:
    """But for its first line, for p-values, whose permutations are others, and for regret, which lists do not tell."""
    ours, theirs = (repr(one) for one in both)

    def names(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if not line.startswith(("note:", "regret:", "──"))]
        return [line.split()[0] for line in lines if line.split()]

    assert names(ours)[1:] == names(theirs)
    assert "attainable" in ours
    assert "attainable" not in theirs
    # PopularityScorer has ties, which count against a model and are broken somehow in its lists.
    assert both[0]["ndcg@10"].by_group == pytest.approx(both[1]["ndcg@10"].by_group, abs=0.02)
    for text in (ours, theirs):
        assert "age 65+ is " in text
        assert " behind the rest in ndcg@10, more than chance explains (permutation p = 0." in text
        assert "gap to the rest" in text
        assert " PD" not in text  # nobody has said who is advantaged
    page = both[0]._repr_html_()
    assert page.count("<table>") == 2
    assert all(f"<td>{age}</td>" in page for age in AGES)


def test_groups_come_in_the_order_of_their_names(both: tuple[fs.Evaluation, Any]) -> None:
    table = both[0].to_pandas()
    assert list(table[table.metric == "ndcg@10"].group) == ["all", *sorted(AGES)]
    for one in both:
        starts = [line.split()[0] for line in repr(one).splitlines() if line.split()[:1]]
        assert [start for start in starts if start in AGES] == sorted(AGES)


def test_in_every_row_of_a_table_the_interval_is_that_of_the_value(both: tuple[fs.Evaluation, Any]) -> None:
    score = both[0]["ndcg@10"]
    rows = {row["group"]: row for row in both[0].to_arrow().to_pylist() if row["metric"] == "ndcg@10"}
    assert (rows["all"]["low"], rows["all"]["high"]) == score.interval
    for name in AGES:
        row, gap = rows[name], score.gaps[name]
        assert row["low"] <= row["value"] <= row["high"]
        assert row["gap_low"] <= row["gap"] <= row["gap_high"]
        assert (row["low"], row["high"]) == score.by_group_interval[name]
        assert (row["gap"], (row["gap_low"], row["gap_high"]), row["p_value"]) == (gap.value, gap.interval, gap.p_value)
    assert {name for name, _ in SCORE_COLUMNS} < set(both[0].to_arrow().column_names)
    assert score.to_dict()["by_group_interval"] == {name: list(ends) for name, ends in score.by_group_interval.items()}
    assert GroupScores.from_dict(score.to_dict()) == score


def test_every_bar_of_the_chart_has_its_interval(both: tuple[fs.Evaluation, Any]) -> None:
    chart = both[0].plot("ndcg@10").to_dict()
    values = chart["data"]["values"] if "values" in chart["data"] else next(iter(chart["datasets"].values()))
    assert [value["group"] for value in values] == ["all", *sorted(AGES)]
    assert all(value["low"] <= value["value"] <= value["high"] for value in values)
    filters = [layer["transform"][0]["filter"] for layer in chart["layer"] if "transform" in layer]
    assert filters == ["isValid(datum.low)", "isValid(datum.attainable)"]


def test_the_group_named_is_behind_and_one_that_is_ahead_is_said_to_be() -> None:
    """Three groups of which one is far ahead, so that the others are behind by little."""
    people = pa.table({"user": range(90), "age": [AGES[user % 3] for user in range(90)]})
    truth = pa.table({"user": range(90), "item": ["a"] * 90})
    hit = ["a" if user % 3 == 2 or user % 9 < 3 else "b" for user in range(90)]
    lists = pa.table({"user": range(90), "item": hit, "rank": [1] * 90})
    found = fs.evaluate_recommendations(lists, truth, users=people, group="age", k=1, metrics=["hit"], n_resamples=200)
    score = found["hit@1"]
    assert score.largest_gap_group == "65+"
    assert score.furthest_behind_group in ("45-64", "18-29")
    assert score.furthest_behind is not None
    assert score.furthest_behind.value == -score.gaps[score.furthest_behind_group].value
    assert f"age {score.furthest_behind_group} is {score.furthest_behind.value:.4f} behind the rest" in found.verdict
    assert f"the largest gap is that of 65+, {score.gaps['65+'].value:.4f} ahead" in found.verdict
    assert "furthest behind" in repr(found)


# ── regret ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def tested() -> fs.Evaluation:
    """Two groups with popular items of their own: the smaller one could be served better."""
    stream = fs.synthetic_stream(n_users=600, n_items=300, n_events=18_000, seed=7)
    first, later = stream.events.slice(0, 15_000), stream.events.slice(15_000)
    rec = fs.FairRecommender("popularity", target=None).fit(first, users=stream.users, group="community")
    return rec.evaluate(later, users=stream.users, n_resamples=200)


def test_two_groups_have_a_table_with_their_regret(tested: fs.Evaluation) -> None:
    score, text = tested["ndcg@20"], repr(tested)
    for name in ("majority", "minority"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        cells = (score.by_group[name], score.attainable[name], 100 * score.regret[name].value)
        assert [f"{cell:.4f}" in line for cell in cells[:2]] == [True, True]
        assert f"{cells[2]:.1f} %" in line
    page = tested._repr_html_()
    assert page.count("<table>") == 2
    assert "attainable" in page


def test_the_verdict_names_the_largest_regret_and_splits_the_gap(tested: fs.Evaluation) -> None:
    score = tested["ndcg@20"]
    assert score.regret["minority"].low > 0
    regret = f"minority gets {100 * score.regret['minority'].value:.1f} % ("
    assert regret in tested.verdict
    split = f"Of the gap of {score.performance_disparity:.4f}, {score.inherent_gap:.4f} is inherent and "
    assert f"{split}{score.avoidable_gap:.4f} avoidable (" in tested.verdict
    assert tested.verdict in tested.to_dict()["verdict"]


def test_tables_have_the_attainable_value_and_the_regret(tested: fs.Evaluation) -> None:
    score, rows = tested["ndcg@20"], tested.to_arrow().to_pylist()
    columns = ("attainable", "regret", "regret_low", "regret_high")
    for row in rows:
        values = tuple(row[name] for name in columns)
        if row["metric"] == "ndcg@20" and row["group"] != "all":
            regret = score.regret[row["group"]]
            assert values == (score.attainable[row["group"]], regret.value, regret.low, regret.high)
        else:  # only the main metric is tested at every level
            assert values == (None,) * 4
    drawn = tested.plot().to_dict()["layer"][2]
    assert (drawn["mark"]["type"], drawn["encoding"]["x"]["field"]) == ("tick", "attainable")


def regrets(**intervals: tuple[float, float, float] | None) -> dict[str, Any]:
    """A score with these regrets: value, low, high."""
    by_group = {name: ends and {"value": ends[0], "interval": list(ends[1:])} for name, ends in intervals.items()}
    return {"regret": by_group, "by_group": dict.fromkeys(intervals, 0.2), "attainable": dict.fromkeys(intervals, 0.3)}


@pytest.mark.parametrize(
    ("score", "sentence"),
    [
        (regrets(M=(0.05, 0.01, 0.1), F=(0.18, 0.1, 0.25)), "F gets 18.0 % (10.0 % … 25.0 %) less than is attainable"),
        (regrets(M=(0.05, 0.01, 0.1), F=(0.3, 0.01, 0.6)), "M gets 5.0 %"),
        (regrets(M=(0.05, 0.0, 0.1), F=(0.1, 0.0, 0.2)), "No group could be served better by more than chance."),
        (regrets(M=(0.0, 0.0, 0.5), F=(0.3, 0.1, 0.6)), "Whether a group could be served better cannot be determined"),
    ],
)
def test_only_a_regret_beyond_chance_is_said(score: dict[str, Any], sentence: str) -> None:
    assert regret_sentences(score)[0].startswith(sentence)


def test_without_levels_or_intervals_nothing_is_said_about_regret() -> None:
    without = regrets(M=(0.1, 0.0, 0.2))
    without["regret"]["M"]["interval"] = None
    assert regret_sentences(without) == regret_sentences({"by_group": {"M": 0.2}}) == []
    assert group_cells({"by_group": {"M": 0.2}}, "M")[0] == "0.2000"


def test_a_regret_of_too_few_users_has_no_number() -> None:
    wide = regrets(M=(0.05, 0.01, 0.1), F=(0.3, 0.01, 0.6))
    assert group_cells(wide, "F")[2:5] == ["0.3000", "cannot be determined", "1.0 % … 60.0 %"]
    assert group_cells(wide, "M")[2:5] == ["0.3000", "5.0 %", "1.0 % … 10.0 %"]


def test_of_several_groups_the_gap_that_is_split_is_named() -> None:
    gap = {"group": "65+", "value": 0.05}
    parts = {"inherent_gap": 0.06, "avoidable_gap": -0.01, "avoidable_gap_interval": [-0.02, 0.01]}
    score = {"by_group": dict.fromkeys(AGES, 0.2), "furthest_behind": gap, "disparity": None, **parts}
    assert split_sentence(score) == [
        "Of the gap of 0.0500 between 65+ and the rest, 0.0600 is inherent and −0.0100 avoidable (−0.0200 … 0.0100)."
    ]


# ── intervals of groups' means ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("shares", [(0.2, 0.2, 0.2), (0.1, 0.3, 0.05)], ids=["equal", "unequal"])
@pytest.mark.parametrize("sizes", [(400, 100, 25), (60, 30, 20)], ids=["large", "small"])
def test_the_interval_of_a_groups_mean_covers_the_truth(shares: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    """Of sparse values, of which most are 0: in 95 of 100 draws, or nearly so in small groups."""
    n, rng = 400, np.random.default_rng(1)
    codes = np.repeat(np.arange(3), sizes).astype(np.int16)
    own = np.array(shares)[codes][:, None]
    values = np.where(rng.random((len(codes), n)) < own, rng.beta(0.5, 2.0, (len(codes), n)), 0.0)
    found = panel_scores(GroupPanel(values[:, None, :], codes, 3), ["a", "b", "c"], rng, n_resamples=1)
    for name, share in zip("abc", shares, strict=True):
        intervals = [score.by_group_interval[name] for score in found]
        assert np.mean([low <= share * 0.2 <= high for low, high in intervals]) >= 0.92
        assert all(
            low <= (score.by_group[name] or 0) <= high for score, (low, high) in zip(found, intervals, strict=True)
        )


def test_the_test_of_the_group_furthest_behind_keeps_its_level() -> None:
    """Five equal groups: some group is behind by chance, and in at most 5 of 100 draws by more than that."""
    n, rng = 300, np.random.default_rng(2)
    codes = np.repeat(np.arange(5), (120, 60, 40, 30, 30)).astype(np.int16)
    values = np.where(rng.random((len(codes), n)) < 0.25, rng.beta(0.5, 2.0, (len(codes), n)), 0.0)
    found = panel_scores(GroupPanel(values[:, None, :], codes, 5), list("abcde"), rng, n_resamples=199)
    assert np.mean([score.furthest_behind.p_value < 0.05 for score in found]) <= 0.09
