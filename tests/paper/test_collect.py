"""From a store to findings: every number of the paper beside ours, whatever is there."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream import DataError
from fairstream.experiments.store import Store
from fairstream.paper.catalogue import Entry
from fairstream.paper.collect import findings_of
from fairstream.paper.findings import published_numbers
from fairstream.paper.settings import EXPERIMENTS, QUICK, Setting
from paper_stores import PaperStore, always, name_of

pytestmark = pytest.mark.slow

PLANNED: list[Entry] = [
    (dataset, "MF", setting, seed)
    for dataset in ("movielens-1m", "modcloth")
    for setting in dict.fromkeys(
        [
            *(s for e in EXPERIMENTS.values() if ("modcloth", "MF") in e.parts for s in e.fixed(QUICK)),
            *(s for family in QUICK.families(dataset) for s in map(family.at, family.values)),
        ]
    )
    for seed in range(2)
]


def test_a_plan_without_runs_gives_the_papers_numbers_alone(tmp_path: Path) -> None:
    found = findings_of(PaperStore(tmp_path / "store").store.folder)
    assert {point.place: point.paper for point in found.points} == published_numbers()
    assert all(point.ours is None and point.agrees is None for point in found.points)
    assert {claim.verdict for claim in found.claims} == {"not tested"}
    assert (found.n_runs, found.n_missing, found.seeds, found.choices) == (0, 0, (), ())


def test_what_is_no_reproduction_is_one_sentence(tmp_path: Path) -> None:
    with Store(tmp_path / "store").writing():
        pass
    with pytest.raises(DataError, match="holds no reproduction; make one with `fairstream reproduce`"):
        findings_of(tmp_path / "store")
    with pytest.raises(DataError, match="is not a store of runs"):
        findings_of(tmp_path)


@pytest.mark.parametrize(
    ("experiments", "said"),
    [
        (list(EXPERIMENTS), ""),
        (["lambda"], " --experiment lambda"),
        (["tau", "mu"], " --experiment tau --experiment mu"),
    ],
)
def test_the_page_says_how_to_run_the_same_again(tmp_path: Path, experiments: list[str], said: str) -> None:
    made = PaperStore(tmp_path / "store", protocol="paper")
    runs = [EXPERIMENTS[name].settings(QUICK, "modcloth", "MF") for name in experiments]
    made.plan([("modcloth", "MF", setting, 0) for setting in set().union(*runs)], experiments)
    start = "fairstream reproduce --protocol paper --quick --dataset modcloth --model mf"
    assert findings_of(made.store.folder).command == start + said


@settings(max_examples=1)
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@given(chance=st.randoms(use_true_random=False))
def test_any_part_of_a_reproduction_gives_findings(
    tmp_path_factory: pytest.TempPathFactory, share: float, chance: random.Random
) -> None:
    made = PaperStore(tmp_path_factory.mktemp("store"))
    made.plan(PLANNED)
    there = [entry for entry in PLANNED if chance.random() < share]
    for entry in there:
        made.add(entry, always([chance.randrange(1, 21) for _ in range(5)]))
    found = findings_of(made.store.folder)
    assert (found.n_runs, found.n_missing) == (len(PLANNED), len(PLANNED) - len(there))
    names = {name_of(entry) for entry in there}
    for point in found.points:
        assert point.n_seeds == len(point.run_ids)
        assert (point.ours is None) == (point.n_seeds == 0)
        assert set(point.run_ids) <= names
    if share == 1.0:
        assert {claim.question for claim in found.claims if claim.verdict != "not tested"} >= {"RQ1", "RQ2", "RQ3"}


def test_a_point_is_the_mean_over_the_seeds_of_the_run_that_its_place_names(tmp_path: Path) -> None:
    made = PaperStore(tmp_path / "store")
    finetune = Setting.of("Finetune")
    found = {seed: {t: [12 + seed + t] * 3 + [5] * 2 for t in range(3)} for seed in range(3)}
    for seed, by_period in found.items():
        results = {(t, task): hits for t, hits in by_period.items() for task in ("remain", "next")}
        made.add(("modcloth", "MF", finetune, seed), results)
    points = [
        point
        for point in findings_of(made.store.folder).points
        if point.place.series == "Finetune" and (point.place.dataset, point.place.model) == ("modcloth", "MF")
    ]
    in_period = {t: [fmean(found[seed][t]) / 20 for seed in found] for t in range(3)}  # F1@20, of each seed
    shown = [p for p in points if p.place.metric == "F1@20" and p.place.x_name == "period" and p.ours is not None]
    trends = [point for point in shown if point.place.y_name == "performance"]
    assert {point.place.x for point in trends} == {0, 1, 2}
    for point in trends:
        values = in_period[int(point.place.x or 0)]
        assert (point.ours, point.sd) == (pytest.approx(fmean(values)), pytest.approx(stdev(values)))
        assert point.run_ids == tuple(name_of(("modcloth", "MF", finetune, seed)) for seed in found)
    gaps = [point for point in shown if point.place.y_name == "abs_pd"]
    assert gaps
    for point in gaps:
        t = int(point.place.x or 0)
        assert point.ours == pytest.approx(fmean((12 + seed + t - 5) / 20 for seed in found))
    tradeoffs = [point for point in points if point.place.x_name == "method" and point.place.metric == "F1@20"]
    assert {point.place.y_name for point in tradeoffs} == {"performance", "abs_pd"}
    for point in tradeoffs:
        mean = fmean(fmean(in_period[t]) for t in (1, 2))
        gap = fmean((12 + seed + t - 5) / 20 for seed in found for t in (1, 2))
        assert point.ours == pytest.approx(mean if point.place.y_name == "performance" else gap)
