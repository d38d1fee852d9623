"""A reproduction can be called again: with more seeds, with other data, and not with other intentions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairstream import ConfigurationError
from fairstream.experiments.jobs import Job, Source
from fairstream.experiments.pool import OnJobs
from fairstream.experiments.store import Store
from fairstream.paper.catalogue import Catalogue, all_choices
from fairstream.paper.reproduce import Reproduction
from fairstream.paper.settings import QUICK, Setting, named
from stores import LONG, contents, source_of, write_stream

pytestmark = pytest.mark.slow

ML = "movielens-1m"


@pytest.fixture
def reproduction(tmp_path: Path, long_source: Source) -> Reproduction:
    return Reproduction(
        Store(tmp_path / "store"), {ML: long_source}, named(["observation"]), ["MF"], True, [0], "paper", "cpu", 1
    )


def run(reproduction: Reproduction) -> list[int]:
    """How many jobs each stage had."""
    stages: list[int] = []

    def on_stage(name: str, jobs: Sequence[Job]) -> OnJobs:
        stages.append(len(jobs))
        return lambda work, n: None

    with reproduction.store.writing():
        errors, _ = reproduction.run(on_stage, lambda sentence: None)
        assert errors == []
    return stages


def settings_of(store: Store, seed: int) -> set[Setting]:
    return {Setting.of(row["method"], **row["options"]) for row in Catalogue(store).plan["runs"] if row["seed"] == seed}


def test_other_seeds_run_what_the_figures_show_and_nothing_is_done_twice(reproduction: Reproduction) -> None:
    store = reproduction.store
    run(reproduction)
    one_seed = contents(store)
    weights = [Setting.of("FADE", fairness_weight=value) for value in QUICK.weights]
    assert settings_of(store, 0) == {Setting.of("Pretrain"), Setting.of("Finetune"), *weights}
    n_jobs = run(replace(reproduction, seeds=[0, 1]))
    chosen = {choice.chosen for choice in all_choices(Catalogue(store)) if choice.method == "FADE"}
    assert n_jobs == [0, 1 + len(chosen)]  # each λ has a pre-training of its own
    fade = {Setting.of("FADE", fairness_weight=value) for value in chosen}
    assert settings_of(store, 1) == {Setting.of("Pretrain"), Setting.of("Finetune"), *fade}
    both = contents(store)
    assert {name: both[name] for name in one_seed if name != "plan.json"} == {
        name: content for name, content in one_seed.items() if name != "plan.json"
    }
    assert run(replace(reproduction, seeds=[0, 1])) == [0, 0]
    assert contents(store) == both


def test_at_the_end_no_pretrained_model_is_left(reproduction: Reproduction) -> None:
    with reproduction.store.writing():
        leftover = reproduction.store.pretrained("of a command that was killed")
        leftover.touch()
    run(reproduction)
    assert {Path(name).parts[0] for name in contents(reproduction.store)} == {"runs", "plan.json"}


def test_of_data_that_have_changed_the_last_are_meant(reproduction: Reproduction, tmp_path: Path) -> None:
    store = reproduction.store
    run(reproduction)
    before: Any = store.note("plan")
    other = source_of(write_stream(tmp_path / "other", **LONG, seed=1))
    run(replace(reproduction, sources={ML: other}))
    after: Any = store.note("plan")
    assert [{**row, "id": None} for row in after["runs"]] == [{**row, "id": None} for row in before["runs"]]
    assert not {row["id"] for row in after["runs"]} & {row["id"] for row in before["runs"]}
    assert Catalogue(store).n_missing == 0


@pytest.mark.parametrize("other", [{"protocol": "strict"}, {"quick": False}], ids=str)
def test_a_store_is_of_one_kind(reproduction: Reproduction, other: dict[str, Any]) -> None:
    with reproduction.store.writing():
        reproduction._note_plan([])
        name, value = next(iter(other.items()))
        with pytest.raises(ConfigurationError, match=f"was started with {name} = .*, not {value}; choose"):
            replace(reproduction, **other)._note_plan([])
