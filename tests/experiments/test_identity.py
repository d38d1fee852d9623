"""Ids: the same for runs that do the same, another one for every other."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream import METHODS, Run, RunConfig
from fairstream.experiments.identity import identify, run_id
from fairstream.experiments.jobs import Source
from fairstream.experiments.run import resolved
from stores import small, source_of, write_stream

BASE: dict[str, Any] = {"fairness_weight": 1.0}
OTHER: dict[str, Any] = {
    "model": "ncf",
    "model_settings": {"embedding_dim": 4},
    "loss": "sampled-softmax",
    "strategy": "window",
    "fairness": "absolute",
    "metrics": ("mrr@2",),
    "tasks": ("next",),
    "fairness_weight": 2.0,
    "surrogate": "log-likelihood",
    "temperature": 1.0,
    "n_negatives": 2,
    "n_fairness_negatives": 30,
    "pretrain_epochs": 1,
    "pretrain_visits": 5000,
    "update_epochs": 2,
    "batch_size": 24,
    "learning_rate": 1e-2,
    "update_learning_rate": 1e-2,
    "schedule": "cosine",
    "activity_exponent": 0.5,
    "l2": 0.0,
    "group_weight": 2.0,
    "target": "least-regret",
    "max_gap": 0.05,
    "optimizer": "dense",
    "restart": "on-degradation",
    "restart_every": 1,
    "protocol": "paper",
    "pretrain_ratio": 0.5,
    "pretrain_events": 550,
    "period": "2d",
    "n_periods": 4,
    "n_blocks": 8,
    "k": 3,
    "min_group_size": 2,
    "n_resamples": 7,
    "explain": True,
}
"""Each option that decides anything, and another value of it."""
OF_A_TARGET = {"max_group_loss": 0.1, "target_task": "event", "target_metric": "ndcg@3"}
"""The same of options that go with a target."""
OF_A_WEIGHT = {"weighted_group": "majority"}
"""The same of options that go with group_weight."""
WITHOUT_EFFECT = {
    "device": ["auto", "cpu", "cuda"],
    "engine": ["auto", "reference", "fused"],
    "plugins": [(), ("json",)],
    "threads": ["auto", 1],
}
OF_FAIRNESS = {"fairness_weight", "surrogate", "temperature", "n_fairness_negatives"}
AFTER_PRETRAINING = {
    "strategy",
    "metrics",
    "tasks",
    "update_epochs",
    "update_learning_rate",
    "restart_every",
    "n_periods",
    "n_blocks",
    "k",
    "min_group_size",
    "n_resamples",
    "explain",
    "target",
    "max_gap",
}


def unused(method: str) -> set[str]:
    """Options that mean nothing to a method."""
    return OF_FAIRNESS if METHODS[method].fairness is None else set()


def fits(method: str, option: str) -> bool:
    return not option.startswith("restart") or METHODS[method].strategy == "fine-tune"


def id_of(source: Source, config: RunConfig) -> str:
    return run_id(source.read(), config)


def beginning_of(source: Source, config: RunConfig) -> str:
    return identify(source.read(), config)[3]


def test_every_option_is_accounted_for() -> None:
    assert set(RunConfig.model_fields) == {"method", "seed", *OTHER, *OF_A_TARGET, *OF_A_WEIGHT, *WITHOUT_EFFECT}


@given(
    method=st.sampled_from(list(METHODS)),
    surroundings=st.tuples(*(st.fixed_dictionaries({n: st.sampled_from(v) for n, v in WITHOUT_EFFECT.items()}),) * 2),
)
def test_where_it_is_computed_is_no_part_of_what_a_run_is(source: Source, method: str, surroundings: Any) -> None:
    one, other = (small(method, **options) for options in surroundings)
    assert id_of(source, one) == id_of(source, other)
    assert beginning_of(source, one) == beginning_of(source, other)


@pytest.mark.parametrize("method", METHODS)
def test_an_option_changes_the_id_where_it_is_used_and_only_there(source: Source, method: str) -> None:
    base = small(method, **BASE)
    changed = {name: base.with_options(**{name: value}) for name, value in OTHER.items() if fits(method, name)}
    same = {name for name, config in changed.items() if id_of(source, config) == id_of(source, base)}
    assert same == unused(method)
    ids = [id_of(source, config) for name, config in changed.items() if name not in same]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("target", [{"target": "least-regret"}, {"max_gap": 0.05}])
def test_options_of_a_target_change_the_id_where_there_is_that_target(source: Source, target: dict[str, Any]) -> None:
    base, none = small("Finetune", **target), small("Finetune")
    used = {name: value for name, value in OF_A_TARGET.items() if "target" in target or name != "max_group_loss"}
    ids = [id_of(source, base.with_options(**{name: value})) for name, value in used.items()]
    assert len({id_of(source, base), *ids}) == 1 + len(used)
    assert {id_of(source, none.with_options(**{name: value})) for name, value in OF_A_TARGET.items()} == {
        id_of(source, none)
    }
    assert beginning_of(source, base) == beginning_of(source, none)
    held = small("Finetune", max_gap=0.05)
    assert id_of(source, held) == id_of(source, held.with_options(target="least-regret", max_group_loss=0.1))


def test_the_weighted_group_changes_the_id_where_there_is_a_weight(source: Source) -> None:
    base, weighted = small(), small(group_weight=2.0)
    assert id_of(source, base) == id_of(source, base.with_options(**OF_A_WEIGHT))
    assert id_of(source, weighted) != id_of(source, weighted.with_options(**OF_A_WEIGHT))


def test_the_weight_of_groups_counts_for_models_in_closed_form(source: Source) -> None:
    ids = [id_of(source, small(model="item-item", model_settings={}, group_weight=weight)) for weight in (1.0, 2.0)]
    assert ids[0] != ids[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["Finetune", "FADE"])
def test_an_option_without_use_really_changes_nothing(source: Source, method: str) -> None:
    def periods(config: RunConfig) -> list[Any]:
        run = Run(source.read(), config)
        results = [run.begin(), *run]
        documents = [result.to_dict() for result in results]
        return [*documents, *(tensor.tolist() for tensor in run.learned().values())]

    others = small(method, **{**BASE, **{name: OTHER[name] for name in unused(method)}})
    assert periods(others) == periods(small(method, **BASE))


def test_ids_follow_method_seed_data_and_who_is_advantaged(source: Source, tmp_path: Path) -> None:
    other_data = write_stream(tmp_path / "other", seed=1)
    sources = [
        source,
        source_of(other_data),
        source_of(Path(source.source), advantaged="minority"),
    ]
    for ids_of in (id_of, beginning_of):
        ids = [ids_of(one, small(seed=seed)) for one in sources for seed in (0, 1)]
        assert len(set(ids)) == len(ids)
    assert len({id_of(source, small(method)) for method in METHODS}) == len(METHODS)
    copy = source_of(write_stream(tmp_path / "copy"))
    assert id_of(copy, small()) == id_of(source, small())  # the same data in another place


FAMILIES = [
    ("Pretrain", "Finetune", "Retrain", "Rerank"),
    ("Pretrain-Fair", "FADE", "Retrain-Fair"),
    ("FADE-Abs",),
    ("Adver",),
]


def test_methods_share_a_beginning_exactly_where_the_loss_is_the_same(source: Source) -> None:
    assert {method for family in FAMILIES for method in family} == set(METHODS)
    ids = [{beginning_of(source, small(method)) for method in family} for family in FAMILIES]
    assert [len(members) for members in ids] == [1] * len(FAMILIES)
    assert len(set.union(*ids)) == len(FAMILIES)


@pytest.mark.parametrize("method", ["Finetune", "FADE", "Rerank", "Adver"])
def test_only_what_comes_later_leaves_the_beginning_as_it_is(source: Source, method: str) -> None:
    base = small(method, **BASE)
    same = {
        name
        for name, value in OTHER.items()
        if beginning_of(source, base.with_options(**{name: value})) == beginning_of(source, base)
    }
    assert same == AFTER_PRETRAINING | unused(method) | {"restart"}


def test_options_of_a_method_decide_its_runs_alone(source: Source) -> None:
    for method, option in {"Adver": "adversary_weight", "Rerank": "rerank_tolerance"}.items():
        base, other = small(method), small(method, **{option: 0.5})
        assert id_of(source, base) != id_of(source, other)
        assert (beginning_of(source, base) == beginning_of(source, other)) == (method == "Rerank")
        assert id_of(source, small("FADE", **{option: 0.5})) == id_of(source, small("FADE"))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[RunConfig, RunConfig]:
    """Two configurations that differ in a few options, or in the method."""
    options = dict(BASE)
    method = draw(st.sampled_from(list(METHODS)[:-1]))  # Adver is slow, and has a family of its own
    if draw(st.booleans()):
        options["model"] = "ncf"
    config = small(method, **options)
    kin = next(family for family in FAMILIES if method in family)
    other = draw(st.sampled_from(kin))
    likely = [*sorted(AFTER_PRETRAINING | unused(other)), "period", "pretrain_events", "learning_rate"]
    names = draw(st.lists(st.sampled_from(likely), max_size=4, unique=True))
    if "strategy" in names:  # decides itself when to restart
        names = [name for name in names if not name.startswith("restart")]
    changes = {name: OTHER[name] for name in names if fits(other, name)}
    return config, small(other, **{**options, **changes})


@lru_cache(maxsize=256)
def begun(source: Source, config: RunConfig) -> tuple[dict[str, torch.Tensor], Any]:
    run = Run(source.read(), config)
    report = run.begin().update.report
    return run.learned(), report


@pytest.mark.slow
@given(pair=pairs())
def test_runs_of_one_beginning_have_bit_equal_models(source: Source, pair: tuple[RunConfig, RunConfig]) -> None:
    (one, one_report), (other, other_report) = (begun(source, config) for config in pair)
    equal = one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    if beginning_of(source, pair[0]) == beginning_of(source, pair[1]):
        assert equal
        assert one_report == other_report
    else:
        assert not equal  # none of these options is without effect


def test_a_calendar_that_moves_the_end_of_the_first_data_makes_another_beginning(source: Source) -> None:
    daily, weekly = (small(period=length, n_periods=2) for length in ("1d", "3d"))
    ends = [resolved(source.read(), config)[1].ends[0] for config in (daily, weekly)]
    assert ends[0] != ends[1]
    assert beginning_of(source, daily) != beginning_of(source, weekly)


def test_options_of_updates_count_in_the_pretraining_of_a_model_that_is_updated_in_it(source: Source) -> None:
    for model, counts in (("blend", True), ("sasrec", False)):
        one, other = (small(model=model, model_settings={}, update_epochs=epochs) for epochs in (1, 2))
        assert (beginning_of(source, one) != beginning_of(source, other)) == counts
