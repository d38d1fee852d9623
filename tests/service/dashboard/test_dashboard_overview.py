"""What the pages show is what the database holds, on either database."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import (
    BEGINS,
    DAY,
    GROUPS,
    METRIC,
    N_PERIODS,
    N_WAITING,
    TOO_SMALL,
    add_model,
    add_period,
    filled,
    model_id,
)
from sqlalchemy import update

from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.service.audit import record
from fairstream.service.dashboard.audit_file import audit_html, audit_json
from fairstream.service.dashboard.one_model import read_model
from fairstream.service.dashboard.overview import AT_ONCE, read_overview
from fairstream.service.dashboard.overview_page import overview_page
from fairstream.service.dashboard.scores import largest_gap, scores_from
from fairstream.service.dashboard.words import BY_CHANCE, chance_words, disparity_sentence, state_sentence
from fairstream.service.database import writing
from fairstream.service.schema import models, service
from fairstream.service.settings import Gate
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
FINITE = st.floats(-1, 1)
ESTIMATES = st.builds(
    Estimate,
    FINITE,
    st.none() | st.tuples(FINITE, FINITE).map(lambda ends: (min(ends), max(ends))),
    st.none() | st.floats(0, 1),
    st.none() | FINITE,
)


def test_an_empty_workspace_has_a_page_too(new_workspace: Maker) -> None:
    overview = read_overview(new_workspace())
    assert overview.service is None
    assert (overview.periods, overview.models) == ((), ())
    assert (overview.events.total, overview.events.waiting, overview.events.latest) == (0, 0, None)
    page = overview_page(overview)
    assert "No model answers yet." in page
    assert "No update has run yet" in page


@pytest.mark.both_databases
def test_everything_is_read(new_workspace: Maker) -> None:
    overview = read_overview(filled(new_workspace()))
    assert overview.service is not None
    assert overview.service.model == model_id(N_PERIODS - 1)
    assert [period.t for period in overview.periods] == list(range(N_PERIODS))
    assert [model.t for model in overview.models] == list(reversed(range(N_PERIODS)))
    assert [model.id for model in overview.models if model.in_service] == [overview.service.model]
    assert {model.t for model in overview.models if model.state == "rejected"} == {5, 9}
    assert overview.events.waiting == N_WAITING
    assert overview.events.total == N_WAITING + sum(period.n_events for period in overview.periods)
    assert overview.groups == list(GROUPS)
    assert overview.reported_groups == [name for name in GROUPS if name != TOO_SMALL]
    assert [entry.kind for entry in overview.record][:2] == ["update", "update"]
    assert overview.earlier is None


def test_the_limit_is_the_gap_before_and_the_rise_allowed(new_workspace: Maker) -> None:
    overview = read_overview(filled(new_workspace(gate=Gate(max_rise=0.02))))
    first, *rest = overview.judged
    assert first.limit is None
    for before, period in zip([first, *rest], rest, strict=False):
        assert before.largest_gap is not None
        assert period.limit == before.largest_gap.value + 0.02


def test_shares_are_of_what_was_counted(new_workspace: Maker) -> None:
    for period in read_overview(filled(new_workspace())).periods:
        assert period.late_share == period.n_late / period.n_events
        assert (period.cold_share is None) == (period.t == 0)


def test_many_periods_are_shown_a_page_at_a_time(new_workspace: Maker) -> None:
    workspace, n = new_workspace(), 2 * AT_ONCE + 5
    with writing(workspace.engine) as connection:
        for t in range(n):
            add_period(connection, t)
            add_model(connection, f"m{t}", t)
    seen: list[int] = []
    before = None
    while True:
        overview = read_overview(workspace, before=before)
        assert len(overview.periods) <= AT_ONCE
        assert {model.t for model in overview.models} == {period.t for period in overview.periods}
        seen = [*(period.t for period in overview.periods), *seen]
        before = overview.earlier
        if before is None:
            break
        assert f"/?before={before}" in overview_page(overview)
    assert seen == list(range(n))


def test_the_state_says_what_the_last_update_decided(new_workspace: Maker) -> None:
    workspace = filled(new_workspace())
    assert "put it into service: all checks passed." in state_sentence(read_overview(workspace))
    with writing(workspace.engine) as connection:
        add_period(connection, 12, closed=BEGINS + 13 * DAY)
        decision = {"promote": False, "reason": "it got worse", "checks": [{"name": "performance", "ok": False}]}
        add_model(connection, "rejected", 12, created=BEGINS + 20 * DAY, decision=decision, parent=model_id(11))
    sentence = state_sentence(read_overview(workspace))
    assert model_id(11) in sentence
    assert "of period 12, held its candidate" in sentence
    assert "it got worse." in sentence
    with writing(workspace.engine) as connection:
        connection.execute(update(models).where(models.c.id == "rejected").values(state="promoted"))
        connection.execute(update(service).values(model="rejected"))
    assert "promoted by hand" in state_sentence(read_overview(workspace))
    with writing(workspace.engine) as connection:
        connection.execute(update(service).values(model=model_id(11)))
    assert "taken out of service" in state_sentence(read_overview(workspace))


def test_a_small_group_is_never_a_number(new_workspace: Maker) -> None:
    workspace = filled(new_workspace())
    page = overview_page(read_overview(workspace))
    assert "too few to report" in page
    story = read_model(workspace, model_id(3))
    assert story is not None
    assert "too few to report" in audit_html(story, made=BEGINS)
    document = json.loads(audit_json(story, made=BEGINS))
    assert document["model"]["about"]["evaluation"]["metrics"][METRIC]["by_group"][TOO_SMALL] is None


def test_a_gap_that_chance_explains_is_said_to_be_one(new_workspace: Maker) -> None:
    workspace = filled(new_workspace())
    (*_, last) = read_overview(workspace).judged
    assert last.scores is not None
    for p, words in ((0.05, BY_CHANCE), (0.049, "unlikely by chance (p"), (0.8, BY_CHANCE)):
        told = last.scores.to_dict()
        told["largest_gap"]["p_value"] = p
        with writing(workspace.engine) as connection:
            t = 12 + round(p * 1000)
            evaluation = {"metrics": {METRIC: told}, "n_tested_users": 9, "n_cold_users": 0, "excluded_groups": []}
            add_period(connection, t, evaluation=evaluation)
        overview = read_overview(workspace, before=t + 1)
        assert overview.judged[-1].t == t
        assert words in disparity_sentence(overview)


def test_a_model_knows_its_family_and_its_record(new_workspace: Maker) -> None:
    workspace = filled(new_workspace())
    with writing(workspace.engine) as connection:
        record(connection, "promote", {"model": model_id(3), "instead_of": model_id(2), "by": "me"})
        record(connection, "other", {"words": f"about {model_id(3)}", "more": [{"deep": model_id(4)}]})
    story = read_model(workspace, model_id(4))
    assert story is not None
    assert story.parent is not None
    assert story.parent.id == model_id(3)
    assert {child.id for child in story.children} == {model_id(5), model_id(6)}
    # Its own update, those of its two children, and the one where it is hidden deep inside.
    assert [entry.kind for entry in story.entries] == ["update", "update", "update", "other"]
    other = read_model(workspace, model_id(3))
    assert other is not None
    assert [entry.kind for entry in other.entries] == ["update", "update", "promote"]


def test_what_is_not_a_model_is_none(new_workspace: Maker) -> None:
    workspace = filled(new_workspace())
    for id_ in ("", "nothing", "x" * 33, "a\0b", "\ud800", "%", "_" * 10):
        assert read_model(workspace, id_) is None


@pytest.mark.both_databases  # each has its own way with the signs that stand for others
def test_the_record_of_odd_names_is_found(new_workspace: Maker) -> None:
    workspace, names = new_workspace(), ("100%", "a_b", "back\\slash", 'quo"te', "ünï", "<i>")
    with writing(workspace.engine) as connection:
        for t, id_ in enumerate(names):
            add_period(connection, t)
            add_model(connection, id_, t)
            record(connection, "update", {"id": id_})
        record(connection, "update", {"id": "axb", "other": "100x"})
    for id_ in names:
        story = read_model(workspace, id_)
        assert story is not None
        assert [json.loads(entry.body) for entry in story.entries] == [{"id": id_}]


@given(
    overall=st.none() | FINITE,
    groups=st.dictionaries(st.text(max_size=3), st.none() | FINITE, max_size=3),
    gaps=st.dictionaries(st.text(max_size=3), ESTIMATES, max_size=3),
    disparity=st.none() | ESTIMATES,
)
def test_scores_come_back_as_they_were_written(
    overall: float | None, groups: dict[str, Any], gaps: dict[str, Estimate], disparity: Estimate | None
) -> None:
    largest_gap_group = max(gaps, key=lambda name: abs(gaps[name].value), default=None)
    largest = None if largest_gap_group is None else Estimate(abs(gaps[largest_gap_group].value), None, 0.3, 0.01)
    written = GroupScores(overall, None, groups, gaps, largest, largest_gap_group, None, disparity, None, None, None)
    read = scores_from(json.loads(json.dumps(written.to_dict())))
    assert read == written
    if read is not None and (gap := largest_gap(read)) is not None and gap.interval is not None:
        assert gap.interval[0] >= 0


@given(p=st.floats(0, 1))
def test_chance_is_told_by_its_p_value(p: float) -> None:
    assert (BY_CHANCE in chance_words(Estimate(0.1, None, p))) == (p >= 0.05)


def test_shorter_lists_are_judged_where_there_are_few_items(new_workspace: Maker) -> None:
    workspace = new_workspace()
    told = {"metrics": {"f1@7": {"mean": 0.9}, "ndcg@7": {"mean": 0.25}}}
    with writing(workspace.engine) as connection:
        add_period(connection, 0, evaluation=told)
    (period,) = read_overview(workspace).periods
    assert period.scores is not None
    assert period.scores.mean == 0.25


def test_the_audit_files_hold_the_same_facts(new_workspace: Maker) -> None:
    story = read_model(filled(new_workspace()), model_id(9))
    assert story is not None
    page, document = audit_html(story, made=BEGINS), json.loads(audit_json(story, made=BEGINS))
    assert document["model"]["id"] == model_id(9)
    assert document["model"]["decision"]["reason"] == story.model.reason
    assert [check["sentence"] for check in document["model"]["decision"]["checks"]] == [
        check.sentence for check in story.model.checks
    ]
    for entry in story.entries:
        assert entry.hash in page
    assert [entry["hash"] for entry in document["record"]] == [entry.hash for entry in story.entries]
    for words in ("href=", "src=", "<script", "@import", "url("):
        assert words not in page
