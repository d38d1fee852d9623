"""Real updates and what the pages say of them: nothing here is made up."""

from __future__ import annotations

import json

import pyarrow as pa
from streams import named_stream, take_in

from fairstream.pages.format import number
from fairstream.pages.markup import element
from fairstream.service.dashboard.audit_file import audit_html, audit_json
from fairstream.service.dashboard.model_page import model_page
from fairstream.service.dashboard.one_model import read_model
from fairstream.service.dashboard.overview import read_overview
from fairstream.service.dashboard.overview_page import overview_page
from fairstream.service.dashboard.words import as_sentence
from fairstream.service.database import now
from fairstream.service.registry import promote
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

PERIODS, _ = named_stream()


def test_the_pages_tell_what_updates_did(learned: Workspace) -> None:
    workspace = learned
    take_in(workspace, PERIODS[2])
    assert update(workspace).kind == "promoted"
    flood = PERIODS[3].slice(0, len(PERIODS[3]) // 2)
    flood = flood.set_column(0, "user_id", pa.array(["u1"] * len(flood)))
    take_in(workspace, pa.concat_tables([PERIODS[3], flood]))
    held = update(workspace)
    assert held.kind == "rejected"
    assert held.model is not None
    take_in(workspace, PERIODS[4].slice(0, 10))

    overview = read_overview(workspace)
    assert [period.t for period in overview.judged] == [1, 2, 3]
    assert 0 < overview.events.waiting <= 10
    assert overview.newest is not None
    assert (overview.newest.id, overview.newest.reason) == (held.model, held.reason)
    page = overview_page(overview)
    for period in overview.judged:
        assert period.largest_gap is not None
        assert period.largest_gap.interval is not None
        assert period.cold_share is not None
        assert period.n_items
        assert number(period.largest_gap.value) in page
    assert element("td", as_sentence(held.reason), class_="why", data_label="Why", role="cell") in page
    assert "held its candidate" in page

    for model in overview.models:
        story = read_model(workspace, model.id)
        assert story is not None
        assert story.model.judged(story.metric) is not None
        assert (story.model.before(story.metric) is None) == (model.t == 0)
        assert story.entries[0].kind == "update"
        shown, kept = model_page(story), audit_html(story, made=now())
        for check in story.model.checks:
            cell = element("td", as_sentence(check.sentence), class_="why", data_label="In words", role="cell")
            assert cell in shown
            assert cell in kept
        assert json.loads(audit_json(story, made=now()))["model"]["about"] == story.model.about

    promote(workspace, held.model, by="a person")
    overview = read_overview(workspace)
    assert overview.service is not None
    assert overview.service.model == held.model
    assert "promoted by hand" in overview_page(overview)
