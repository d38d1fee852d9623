"""With a level in force nobody who holds an ingest and a read key learns anybody's group from the interface."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from streams import know, periods_of, take_in, values_of

from fairstream import load
from fairstream.models import Level
from fairstream.service.learning import Learning
from fairstream.service.registry import models
from fairstream.service.settings import Gate, Limits, LiveConfig, Privacy
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from group_attack import CHANCE, ITEMS, N_VICTIMS, Reader, advantage, at_level, numbers
from live_services import Running, make_keys, running

PERIODS, PEOPLE = periods_of(n_users=600, seed=5, disparity=0.9)
# A gate that lets everything pass: what is tested is what a promoted model gives away.
OPEN = Gate(min_tested_users=50, max_fall=0.99, max_group_fall=0.99, max_rise=1.0, max_drift=1.0)
TARGETS: dict[str, dict[str, Any]] = {"least-regret": {"target": "least-regret"}, "max-gap": {"max_gap": 0.1}}


def over_http(client: Running) -> Reader:
    def read(
        *, users: Sequence[str] | None = None, histories: Sequence[Sequence[str]] | None = None, only: list[str]
    ) -> list[Mapping[str, float]]:
        question = {"users": users, "histories": histories, "only": only, "k": len(only)}
        answer = client.post("/v1/recommendations", json=question, headers=client.keys.history)
        assert answer.status_code == 200, answer.text
        return [_scores(each) for each in answer.json()["answers"]]

    return read


def by_filter(client: Running, catalogue: list[str]) -> Reader:
    """The same questions with a filter in the place of a list of items."""
    kinds = dict.fromkeys(catalogue, "catalogue") | dict.fromkeys(ITEMS, "probe")
    items = [{"item_id": item, "category": kind} for item, kind in kinds.items()]
    client.put("/v1/items", json=items, headers=client.keys.admin).raise_for_status()

    def read(
        *, users: Sequence[str] | None = None, histories: Sequence[Sequence[str]] | None = None, only: list[str]
    ) -> list[Mapping[str, float]]:
        where = f'category = "{kinds[only[0]]}"'
        question = {"users": users, "histories": histories, "filter": where, "k": len(only)}
        answer = client.post("/v1/recommendations", json=question, headers=client.keys.history)
        assert answer.status_code == 200, answer.text
        lists = [_scores(each) for each in answer.json()["answers"]]
        assert any(lists)
        return lists

    return read


def in_public(client: Running) -> dict[str, np.ndarray]:
    """What lists that are nobody's tell of each victim's item: its place among popular ones, and what is similar."""
    options = {"params": {"filter": 'category = "probe"', "k": N_VICTIMS}, "headers": client.keys.read}
    popular = _scores(client.get("/v1/items/popular", **options).raise_for_status().json())
    answers = [client.get(f"/v1/items/{item}/similar", **options) for item in ITEMS]
    similar = [_scores(each.json()) if each.status_code == 200 else {} for each in answers]  # 404: it was held out
    return {
        "popular": np.array([popular.get(item, -np.inf) for item in ITEMS]),
        "similar": np.array([max([0.0, *each.values()]) for each in similar]),
    }


def _scores(answer: Mapping[str, Any]) -> dict[str, float]:
    """Scores by item; a list by popularity has none, only the order."""
    items = answer["items"]
    if answer["source"] == "popularity":
        assert all(item["score"] is None for item in items)
        return {item["item_id"]: -float(rank) for rank, item in enumerate(items)}
    return {item["item_id"]: item["score"] for item in items}


def put_at_level(workspace: Workspace, level: Level) -> None:
    """Give the newest model this level."""
    folder = workspace.models.path(models(workspace.engine)[0].folder)
    rec = load(folder)
    rec.set_groups(values_of(workspace).rename_columns(["user_id", "community"]))
    at_level(rec, level)
    assert np.abs(rec.state.tilt).max() > 0.1  # else the test would prove nothing
    shutil.rmtree(folder)
    rec.save(folder, with_groups=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"), [("recent-popularity", "max-gap"), ("item-item", "least-regret"), ("mf", "least-regret")]
)
def test_an_item_of_ones_own_reveals_no_group(tmp_path: Path, name: str, target: str) -> None:
    options = {"pretrain_epochs": 5, "model_settings": {"embedding_dim": 16}} if name == "mf" else {}
    learning = Learning(model=name, method="Finetune", **TARGETS[target], **options)
    limits = Limits(max_k=1000, max_users=1000, requests_per_second=10_000)
    config = LiveConfig(
        group="community", learning=learning, gate=OPEN, limits=limits, privacy=Privacy(epsilon_per_quarter="off")
    )
    random = np.random.default_rng(0)
    known = sorted(set(PERIODS[0]["user_id"].to_pylist()))
    victims = random.choice(known, N_VICTIMS, replace=False).tolist()
    is_behind = random.permutation(np.arange(N_VICTIMS) % 2 == 1)
    groups = dict(zip(PEOPLE["user_id"].to_pylist(), PEOPLE["value"].to_pylist(), strict=True))
    groups |= {user: "minority" if code else "majority" for user, code in zip(victims, is_behind, strict=True)}
    with Workspace.create(tmp_path / "workspace", config) as workspace:
        know(workspace, pa.table({"user_id": [*groups], "value": [*groups.values()]}))
        take_in(workspace, PERIODS[0])
        assert update(workspace).kind == "promoted"
        keys = make_keys(workspace)
        with running(workspace, keys) as client:
            begin = PERIODS[1]["time"][0].as_py().isoformat() + "Z"
            probes = [
                {"user_id": user, "item_id": item, "time": begin} for user, item in zip(victims, ITEMS, strict=True)
            ]
            answer = client.post("/v1/events", json=probes, headers=client.keys.ingest)
            assert answer.json()["accepted"] == N_VICTIMS, answer.text
            take_in(workspace, PERIODS[1])
            assert update(workspace).kind == "promoted"
        put_at_level(workspace, Level("minority", 20.0))  # chance decides whether there is something to gain
        with running(workspace, keys) as client:
            client.wait_until_ready()
            catalogue = sorted(set(PERIODS[0]["item_id"].to_pylist()))
            found = numbers(over_http(client), victims, ITEMS, catalogue)
            filtered = numbers(by_filter(client, catalogue), victims, ITEMS, catalogue) | in_public(client)
            found |= {f"by a filter: {name}": values for name, values in filtered.items()}
    aucs = {name: advantage(values, is_behind) for name, values in found.items()}
    assert {name: auc for name, auc in aucs.items() if auc > CHANCE} == {}
