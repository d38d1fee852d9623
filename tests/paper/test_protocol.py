"""The protocols by name: the published one, the repaired one, and every repair alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.evaluation.metrics import f1, hit, mrr, precision, recall, retrieved_ndcg, true_ndcg
from fairstream.experiments.config import REPAIRS, Protocol, protocol_of
from fairstream.paper.protocol import PaperProtocol

SOME_REPAIRS = st.lists(st.sampled_from(REPAIRS), unique=True)


def named(*repairs: str) -> Protocol:
    return protocol_of("+".join(["paper", *repairs]))


@given(SOME_REPAIRS)
def test_a_name_repairs_what_it_says_and_nothing_else(repairs: list[str]) -> None:
    protocol = named(*repairs)
    assert isinstance(protocol, PaperProtocol)
    flags = {
        "leak": protocol.point_in_time,
        "ranking": protocol.full_ranking,
        "ndcg": protocol.metrics["ndcg"] is true_ndcg,
        "cold-users": protocol.cold_users,
        "optimizer": protocol.defaults["optimizer"] == "row",
    }
    assert {name for name, is_repaired in flags.items() if is_repaired} == set(repairs)
    assert protocol.way_of_testing == tuple(name in repairs for name in ("ranking", "ndcg", "cold-users"))


@given(SOME_REPAIRS)
def test_neither_the_order_of_the_repairs_matters_nor_saying_one_twice(repairs: list[str]) -> None:
    assert named(*repairs) == named(*sorted(repairs), *repairs)


def test_all_repairs_together_test_as_strict_does() -> None:
    repaired, strict = named(*REPAIRS), protocol_of("strict")
    assert (repaired.metrics, repaired.way_of_testing) == (strict.metrics, strict.way_of_testing)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Strict",
        "strictly",
        "paper+",
        "paper+speed",
        "strict+ndcg",
        "ndcg",
        "paper ranking",
        "paper+Leak",
    ],
)
def test_a_name_that_there_is_not_is_answered_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=r"\Aprotocol must be strict, paper, or [^\n]+\Z") as caught:
        protocol_of(name)
    assert str(caught.value).endswith(f"got {name!r}")
    assert all(repair in str(caught.value) for repair in REPAIRS)


@given(SOME_REPAIRS)
def test_the_main_metric_is_ndcg_and_which_one_is_up_to_the_repair(repairs: list[str]) -> None:
    metrics = named(*repairs).metrics
    rest = {"recall": recall, "precision": precision, "f1": f1, "hit": hit, "mrr": mrr}
    if "ndcg" in repairs:
        assert list(metrics.items()) == list({"ndcg": true_ndcg, **rest}.items())
    else:
        assert list(metrics.items()) == list({"ndcg": retrieved_ndcg, **rest, "true_ndcg": true_ndcg}.items())
