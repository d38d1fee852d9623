"""The protocols by name: the published one, the repaired one, and every repair alone."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.evaluation import REPAIRS, Protocol
from fairstream.evaluation.metrics import f1, hit, mrr, precision, recall, retrieved_ndcg, true_ndcg

FIELD_OF = {
    "leak": "point_in_time",
    "ranking": "full_ranking",
    "ndcg": "true_ndcg",
    "cold-users": "cold_users",
}
SOME_REPAIRS = st.lists(st.sampled_from(sorted(FIELD_OF)), unique=True)


def test_the_paper_repairs_nothing_and_strict_everything() -> None:
    assert not any(asdict(Protocol.named("paper")).values())
    assert all(asdict(Protocol.named("strict")).values())
    assert Protocol.named("paper") == Protocol()


def test_there_is_a_repair_for_each_thing() -> None:
    assert REPAIRS == FIELD_OF
    assert set(REPAIRS.values()) == set(asdict(Protocol()))


@given(SOME_REPAIRS)
def test_a_name_repairs_what_it_says_and_nothing_else(repairs: list[str]) -> None:
    protocol = asdict(Protocol.named("+".join(["paper", *repairs])))
    assert {field for field, is_repaired in protocol.items() if is_repaired} == {FIELD_OF[name] for name in repairs}


@given(SOME_REPAIRS)
def test_neither_the_order_of_the_repairs_matters_nor_saying_one_twice(repairs: list[str]) -> None:
    name, again = "+".join(["paper", *repairs]), "+".join(["paper", *sorted(repairs), *repairs])
    assert Protocol.named(name) == Protocol.named(again)


def test_all_repairs_together_are_strict() -> None:
    assert Protocol.named("+".join(["paper", *FIELD_OF])) == Protocol.named("strict")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Strict",
        "strictly",
        "paper+",
        "paper+speed",
        "paper+optimizer",
        "strict+ndcg",
        "ndcg",
        "paper ranking",
        "paper+Leak",
    ],
)
def test_a_name_that_there_is_not_is_answered_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=r"\Aprotocol must be strict, paper, or [^\n]+\Z") as caught:
        Protocol.named(name)
    assert str(caught.value).endswith(f"got {name!r}")
    assert all(repair in str(caught.value) for repair in FIELD_OF)


@given(SOME_REPAIRS)
def test_the_main_metric_is_ndcg_and_which_one_is_up_to_the_repair(repairs: list[str]) -> None:
    metrics = Protocol.named("+".join(["paper", *repairs])).metrics
    rest = {"recall": recall, "precision": precision, "f1": f1, "hit": hit, "mrr": mrr}
    if "ndcg" in repairs:
        assert list(metrics.items()) == list({"ndcg": true_ndcg, **rest}.items())
    else:
        assert list(metrics.items()) == list({"ndcg": retrieved_ndcg, **rest, "true_ndcg": true_ndcg}.items())


def test_a_protocol_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Protocol().full_ranking = True  # type: ignore[misc]
