"""Every number of the paper has a run that is planned for it."""

from __future__ import annotations

import csv
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import ConfigurationError
from fairstream.paper import findings
from fairstream.paper.collect import _Reader
from fairstream.paper.findings import Choice, published_numbers
from fairstream.paper.settings import DATASETS, EXPERIMENTS, FULL, METRICS, MODELS, QUICK, Setting, named, swept
from paper_stores import PaperStore

NOT_RUN = {12.0, 20.0, 24.0, 32.0, 36.0}
"""Values of μ whose panels are flat between their neighbours."""


def rows() -> list[dict[str, str]]:
    with files(findings.__package__).joinpath("figures.csv").open() as file:
        return list(csv.DictReader(file))


def test_each_row_is_one_number_and_a_point_of_a_tradeoff_two() -> None:
    kinds = Counter(row["kind"] for row in rows())
    assert len(published_numbers()) == kinds["curve"] + 2 * kinds["tradeoff"] == sum(kinds.values()) + kinds["tradeoff"]
    assert kinds["tradeoff"] > 0
    where = ("figure", "task", "dataset", "model", "metric", "series")
    in_file = Counter(
        (*(row[name] for name in where), float(row[axis]))
        for row in rows()
        for axis in (("y",) if row["kind"] == "curve" else ("x", "y"))
    )
    found = Counter((*(getattr(place, name) for name in where), y) for place, y in published_numbers().items())
    assert found == in_file


def test_every_number_belongs_to_an_experiment_that_runs_its_setting(tmp_path: Path) -> None:
    choices = [
        Choice(family.name, dataset, model, metric, family.parameter, {}, value, "", (), None)
        for dataset in DATASETS
        for model in MODELS
        for metric in METRICS
        for family in FULL.families(dataset)
        for value in family.values[-1:]
    ]
    reader = _Reader(PaperStore(tmp_path / "store", quick=False).catalogue, choices)
    left_out = set()
    for place in published_numbers():
        setting = reader._setting(place)
        assert setting is not None, place
        planned = [
            planned
            for experiment in EXPERIMENTS.values()
            if place.figure in experiment.figures and (place.dataset, place.model) in experiment.parts
            for planned in experiment.settings(FULL, place.dataset, place.model)
        ]
        assert planned, place
        if setting not in planned:
            left_out.add((place.x_name, place.x))
    assert left_out == {("mu", mu) for mu in NOT_RUN}


@pytest.mark.parametrize("scale", [FULL, QUICK])
def test_the_runs_of_every_setting_can_be_configured(scale: Any) -> None:
    for experiment in EXPERIMENTS.values():
        for dataset, model in experiment.parts:
            settings = experiment.settings(scale, dataset, model)
            assert settings or experiment.name == "time"
            for setting in settings:
                config = scale.config(setting, dataset, model, seed=3, protocol="paper")
                assert (config.method, config.seed, config.model) == (setting.method, 3, model.lower())
                assert {name: getattr(config, name) for name, _ in setting.options} == dict(setting.options)


def test_experiments_are_found_by_name_and_by_the_labels_of_their_figures() -> None:
    assert [experiment.name for experiment in named([])] == list(EXPERIMENTS)
    for experiment in EXPERIMENTS.values():
        assert named([experiment.name]) == [experiment]
        for label in experiment.figures:
            for written in (label, label.partition(":")[2]):
                found = named([written])
                assert experiment in found
                assert all(label in one.figures for one in found)
    assert [one.name for one in named(["fig:params", "tau", "lambda"])] == ["epochs", "tau", "lambda"]


@pytest.mark.parametrize("name", ["", "fig:nothing", "RQ1", "Lambda"])
def test_an_unknown_name_is_one_sentence_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        named(["tau", name])
    assert str(caught.value).endswith(f"got {name!r}")
    assert all(known in str(caught.value) for known in EXPERIMENTS)


DEFAULTS = {"fairness_weight": 1.0, "temperature": 3.0, "update_epochs": 10, "n_fairness_negatives": 4}


@given(st.sampled_from(sorted(DEFAULTS)), st.integers(1, 60))
def test_a_point_of_a_sweep_says_what_is_not_the_default_and_all_sweeps_meet_there(name: str, value: int) -> None:
    config = FULL.config(swept(name, value), "modcloth", "MF", seed=0, protocol="paper")
    meeting = Setting.of("FADE", fairness_weight=1.0)
    assert (swept(name, value) == meeting) == (value == DEFAULTS[name])
    assert {option: getattr(config, option) for option in DEFAULTS} == {**DEFAULTS, name: value}
    assert swept(name, float(value)) == swept(name, value)  # a figure's axis is in floats


def test_without_a_weight_fade_is_finetune() -> None:
    assert swept("fairness_weight", 0.0) == Setting.of("Finetune")
