"""Real updates and what the pages say of them: nothing here is made up."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest
from running import signed_in
from streams import at_random, named_stream, take_in

from fairstream.service.dashboard.overview import Overview, quality_charts, status_of, stream_charts
from fairstream.service.gaps import gap_in, score_in
from fairstream.service.registry import promote
from fairstream.service.updates import run
from fairstream.service.workspace import Workspace
from fairstream.text import sentence
from live_services import add_model, make_keys, running, wait_until

PERIODS, _ = named_stream()


@pytest.mark.slow
@pytest.mark.sqlite_only
def test_the_lists_are_those_of_the_service_and_an_item_that_is_withdrawn_leaves_them(
    new_workspace: Callable[..., Workspace],
) -> None:
    workspace = new_workspace()
    add_model(workspace)
    keys = make_keys(workspace)
    with running(workspace, keys) as client:
        client.wait_until_ready()
        key = keys.admin["Authorization"].removeprefix("Bearer ")
        assert client.post("/login", data={"key": key}).headers["location"] == "/"

        def shown() -> list[str]:
            page = client.get("/lists", params={"user": "u1"}).text
            ours = page[page.index("Recommended to") : page.index("Recent choices")]
            return re.findall(r"<li><span>(\w+)</span>", ours)

        answer = client.get("/v1/users/u1/recommendations", headers=keys.read).json()
        assert shown() == [item["item_id"] for item in answer["items"]]
        (token, *_) = re.findall(r'name="token" value="([^"]+)"', client.get("/").text)
        gone = shown()[0]
        assert (
            client.post("/items/withdraw", data={"token": token, "item": gone, "confirmed": "yes"}).status_code == 303
        )
        wait_until(lambda: gone not in shown())
        assert client.get("/models").status_code == 200
        assert client.delete("/models").status_code == 405


@pytest.mark.slow
def test_the_pages_tell_what_updates_did(learned: Workspace) -> None:
    workspace = learned
    take_in(workspace, PERIODS[2])
    assert run(workspace).state == "promoted"
    assert status_of(Overview(workspace), "model", None, 2).level == "good"
    take_in(workspace, at_random(PERIODS[3]))
    rejected = run(workspace)
    assert rejected.state == "rejected"
    assert rejected.model is not None
    take_in(workspace, PERIODS[4].slice(0, 10))

    overview = Overview(workspace)
    assert [period.t for period, _ in overview.evaluated] == [1, 2, 3]
    assert 0 < overview.n_waiting <= 10
    assert overview.updates[0] == rejected
    status = status_of(overview, "model", None, 2)
    assert (status.level, status.headline, status.candidate) == (
        "warning",
        "The last update was rejected",
        rejected.model,
    )
    assert "the events themselves have changed" in status.sentences[0]
    assert all(gap_in(score) is not None for _, score in overview.evaluated)
    assert quality_charts(overview, workspace.config)[0].moments[-1].note == "candidate rejected"
    assert [chart.title for chart in stream_charts(overview)][:1] == ["Events"]

    client = signed_in(workspace)
    for model in overview.candidates.values():
        assert score_in(model.about["evaluation"])
        assert bool(score_in(model.about.get("before"))) == (model.t > 0)
        page = client.get(f"/models/{model.id}").text
        for check in model.decision["checks"]:
            assert html.escape(sentence(check["sentence"])).replace("&#x27;", "&#39;") in page

    promote(workspace, rejected.model, by="a person")
    status = status_of(Overview(workspace), "model", None, 2)
    assert status.level == "good"
    assert "An admin promoted" in status.sentences[0]
