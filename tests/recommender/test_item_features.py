"""Features of items: models that read them can recommend what has had no event yet, and nothing else has changed."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import fairstream as fs
from fairstream import ConfigurationError, DataError, FairRecommender
from fairstream.models import BlendScorer, GRU4RecScorer, ItemTable, SASRecScorer
from fairstream.recommender import jobs
from fairstream.sampling import EveryItem, NegativeSampler
from fairstream.testing import check_model
from support import make_recommender, pairs_of, rows

N_CATEGORIES, N_USERS, N_ITEMS, N_COLD = 4, 60, 48, 8
"""Item i is of category i % 4, and user u takes items of category u % 4 alone; the last 8 items have no events."""
FAST: dict[str, Any] = {"embedding_dim": 8, "pretrain_epochs": 2, "update_epochs": 1, "batch_size": 128}
NAMES = ["gru", "sasrec", "blend"]
USERS = [f"u{u}" for u in range(N_USERS)]
PEOPLE = pa.table({"user_id": USERS, "sex": ["m" if (u // N_CATEGORIES) % 2 else "f" for u in range(N_USERS)]})
COLD = range(N_ITEMS, N_ITEMS + N_COLD)


def events(first: int = 0, n_each: int = 8, items: range = range(N_ITEMS), *, seed: int = 0) -> pa.Table:
    """Sessions that stay in one category."""
    rng = np.random.default_rng(seed)
    taken = [
        (first + 100 * place + u, f"u{u}", item)
        for u in range(N_USERS)
        for place, item in enumerate(rng.permutation([i for i in items if i % 4 == u % 4])[:n_each].tolist())
    ]
    times, users, chosen = zip(*sorted(taken), strict=True)
    return pa.table({"user_id": users, "item_id": chosen, "timestamp": times})


def described(items: range, of: int = N_CATEGORIES) -> pa.Table:
    return pa.table({"item_id": items, "category": [f"c{item % of}" for item in items]})


CATALOGUE = described(range(COLD.stop))


def fitted(name: Any = "gru", items: Any = CATALOGUE, **options: Any) -> FairRecommender:
    return make_recommender(name, device="cpu", **{**FAST, **options}).fit(events(), users=PEOPLE, items=items)


@pytest.fixture(scope="module")
def learned() -> FairRecommender:
    """A GRU that has learned what features say; a test that changes it takes a copy."""
    return fitted(pretrain_epochs=25, embedding_dim=16)


def ranks_of_cold(rec: FairRecommender, cold: range = COLD) -> tuple[float, float]:
    """The mean ranks of items without events, for users of their category and for all others."""
    table = rec.recommend(USERS, k=20, only=[*range(12), *cold])
    found = {(row["user_id"], row["item_id"]): row["rank"] for row in table.to_pylist()}
    same, other = (
        np.mean([found.get((f"u{u}", i), 20) for u in range(N_USERS) for i in cold if (i % 4 == u % 4) == is_same])
        for is_same in (True, False)
    )
    return float(same), float(other)


def tensors(rec: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers, the features among them."""
    model = rec.model
    return {name: value.clone() for name, value in (*model.named_parameters(), *model.named_buffers())}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def lists(rec: FairRecommender) -> pa.Table:
    return rec.recommend([*USERS, "nobody"], k=10)


# ── what features are good for ───────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sasrec", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gru", "blend"))])
def test_an_item_without_events_is_recommended_by_its_features(name: str) -> None:
    options = {"pretrain_epochs": 25, "embedding_dim": 16}
    of_category, of_others = ranks_of_cold(fitted(name, **options))
    assert of_category < of_others - 3
    # A column that says nothing does not help: the cold items stand where they stand for everybody.
    without, for_others = ranks_of_cold(fitted(name, described(range(COLD.stop), of=1), **options))
    assert abs(without - for_others) < 1


@pytest.mark.slow
def test_new_items_join_with_an_update_and_are_recommended_at_once(learned: FairRecommender) -> None:
    rec = copy.deepcopy(learned)
    before, held, newer = rec.state, tensors(rec.state), range(COLD.stop, COLD.stop + 8)
    rec.update(events(10_000, 1, range(40, COLD.start + 4), seed=1), items=described(newer))
    assert rec.state.history.n_items == rec.model.n_items == newer.stop
    of_category, of_others = ranks_of_cold(rec, newer)
    assert of_category < of_others - 3
    assert same(held, tensors(before))  # a state never changes
    assert len(before.item_ids) == COLD.stop


def test_observed_items_can_be_recommended_and_need_no_new_events() -> None:
    rec, newer = fitted(), range(COLD.stop, COLD.stop + 4)
    before, held = rec.state, tensors(rec.state)
    rec.observe(events(), items=described(newer))
    assert rec.recommend(["u0"], k=4, only=newer)["source"].to_pylist() == ["model"] * 4
    assert same(held, tensors(before))


def test_items_can_be_described_without_events() -> None:
    rec, newer = fitted(), range(COLD.stop, COLD.stop + 4)
    n_events = len(rec.state.history)
    rec.observe(items=described(newer))
    assert len(rec.state.history) == n_events
    assert rec.recommend(["u0"], k=4, only=newer)["source"].to_pylist() == ["model"] * 4
    with pytest.raises(DataError, match="observe needs events, or items"):
        rec.observe()


@pytest.mark.parametrize("name", ["gru", "blend"])
def test_an_item_whose_features_no_trained_item_shares_is_not_recommended(name: str) -> None:
    rec, shared, unheard = fitted(name), range(100, 104), range(104, 108)
    words = [f"c{item % 4}" for item in shared] + [f"unheard of {item}" for item in unheard]
    rec.observe(events(), items=pa.table({"item_id": [*shared, *unheard], "category": [[word] for word in words]}))
    assert set(rec.recommend(USERS, k=8, only=[*shared, *unheard])["item_id"].to_pylist()) == set(shared)


@pytest.mark.slow
def test_an_evaluation_counts_items_without_events_as_found(learned: FairRecommender) -> None:
    later = events(10_000, 2, COLD)
    found = learned.evaluate(later, k=5, n_resamples=0)["ndcg@5"].mean
    assert found is not None
    assert found > 0.1
    assert fitted(items=None).evaluate(later, k=5, n_resamples=0)["ndcg@5"].mean == 0  # what nobody has had is missed


@pytest.mark.few
@pytest.mark.parametrize("fairness_weight", [0.0, 0.5])
@pytest.mark.parametrize("most_items", [5_000, 5])
@pytest.mark.parametrize("name", NAMES)
def test_what_has_had_no_event_is_never_a_negative(
    name: str, fairness_weight: float, most_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(jobs.MAX_RANKED_ITEMS, "cpu", most_items)
    rec = fitted(name, fairness_weight=fairness_weight)
    rec.update(events(10_000, 1, range(40, COLD.start + 4), seed=1))
    model = rec.model.gradient_part
    for table in (model.item, model.bias):
        assert isinstance(table, ItemTable)
        own = table.weight[rec.state.item_ids.lookup(list(COLD[4:]))]
        assert not own.any()  # scored by features alone
        taken = table.weight[rec.state.item_ids.lookup(list(COLD[:4]))]
        assert taken.any()  # training leaves out some of them


def test_features_given_again_replace_those_before() -> None:
    rec = fitted()
    moved = pa.table({"item_id": COLD, "category": ["c0"] * N_COLD})
    rec.observe(events(10_000, 1, range(12), seed=3), items=moved)
    rec.update(events(20_000, 1, range(20), seed=4))
    scores = rec.recommend(["u0"], k=N_COLD, only=COLD)["score"].to_pylist()
    assert len(scores) == N_COLD
    assert len(set(scores)) == 1  # nothing else tells them apart
    codes = rec.model.get_buffer("item.codes")[rec.state.item_ids.lookup(list(COLD))]
    assert len(codes.unique()) == 1


# ── nothing else has changed ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["mf", "ncf", "item-item", "popularity"])
def test_other_models_say_that_they_do_not_read_features(name: str) -> None:
    note = f"the model {name} does not read features of items: they have no effect"
    plain, rec = fitted(name, None), fitted(name)
    assert set(rec.notes) == {*plain.notes, note}
    more = events(10_000, 1, range(20), seed=1)
    plain.update(more)
    rec.update(more, items=described(range(COLD.stop, COLD.stop + 3)))
    assert note in rec.notes
    assert same(tensors(plain), tensors(rec))
    assert lists(plain).equals(lists(rec))
    assert len(rec.state.item_ids) == N_ITEMS


@pytest.mark.parametrize("kind", [GRU4RecScorer, SASRecScorer, BlendScorer])
def test_without_features_a_model_has_no_table_for_them(kind: Any) -> None:
    torch.manual_seed(0)
    plain = kind(3, 5)
    names = [name for name, _ in (*plain.named_parameters(), *plain.named_buffers())]
    assert not any("features" in name or "codes" in name for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GRU4RecScorer, SASRecScorer, BlendScorer])
def test_models_that_read_features_keep_to_the_interface(kind: Any) -> None:
    check_model(kind, loss="softmax")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["dense", "row"])
@pytest.mark.parametrize("name", NAMES)
def test_save_load_copy_pickle_and_forgetting(name: str, optimizer: str, tmp_path: Path) -> None:
    rec = fitted(name, optimizer=optimizer)
    rec.observe(events(5_000, 1, COLD, seed=2))
    rec.save(tmp_path / "rec")
    others = [fs.load(tmp_path / "rec", device="cpu"), copy.deepcopy(rec), pickle.loads(pickle.dumps(rec))]
    newer = described(range(COLD.stop, COLD.stop + 3))
    for twin in (rec, *others):
        twin.update(events(10_000, 1, range(40, COLD.stop), seed=1), items=newer)
        assert twin.forget(["u1", "u5"]) == 2
        twin.update(events(20_000, 1, range(30), seed=5))
    for twin in others:
        assert same(tensors(rec), tensors(twin))
        assert lists(rec).equals(lists(twin))


def test_what_cannot_be_done_is_one_clear_sentence() -> None:
    items = described(range(3))
    with pytest.raises(DataError, match=r"fitted without features of items .* fit a new one with items="):
        fitted(items=None).update(events(10_000, 1, seed=1), items=items)
    log = fs.read_events(events(), users=PEOPLE, items=items)
    with pytest.raises(ConfigurationError, match="has its features already; give items to read_events"):
        make_recommender("gru", device="cpu").fit(log, items=items)


def test_notes_count_items_without_features() -> None:
    rec = fitted(items=described(range(40)))
    assert rec.notes == ("8 of 48 items have no features: they are known by their events alone",)
    rec.update(events(10_000, 1, range(44, 56), seed=1), items=described(range(44, 50)))
    assert "6 of 12 items have no features: they are known by their events alone" in rec.notes


# ── tables and negatives ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sparse", [False, True])
def test_an_embedding_is_the_own_row_plus_the_scaled_sum_of_the_features(sparse: bool) -> None:
    torch.manual_seed(0)
    table = ItemTable(3, 4, padding=True, feature_buckets=8).eval()
    assert table.features is not None
    table.sparse = table.features.sparse = sparse
    torch.nn.init.normal_(table.weight)
    table.set_features(torch.tensor([[1, 9, -1], [-1, -1, -1], [15, 2, 3], [4, -1, -1]]))  # a later row is left out
    features = table.features.weight
    sums = [features[[1, 1]].sum(0) / 2**0.5, torch.zeros(4), features[[7, 2, 3]].sum(0) / 3**0.5]
    expected = table.weight + torch.stack(sums)
    assert torch.allclose(table.embeddings(), expected)
    looked_up = table(torch.tensor([[2, -1], [0, 1]]))
    assert torch.allclose(looked_up, torch.stack([expected[2], torch.zeros(4), expected[0], expected[1]]).view(2, 2, 4))
    table(torch.tensor([2, -1])).sum().backward()
    gradient = table.features.weight.grad
    assert gradient is not None
    moved = gradient.to_dense().abs().sum(dim=1)
    assert torch.equal(moved > 0, torch.isin(torch.arange(8), torch.tensor([7, 2, 3])))
    table.grow(5)
    assert not table(torch.tensor([3, 4])).any()


def test_training_leaves_out_some_own_rows() -> None:
    torch.manual_seed(0)
    table = ItemTable(200, 4, feature_buckets=8)
    torch.nn.init.ones_(table.weight)
    for embedded in (table(torch.arange(200)), table.embeddings()):
        assert set(embedded.isclose(torch.zeros(())).all(dim=1).tolist()) == {True, False}  # whole rows
        assert embedded.mean().item() == pytest.approx(1, abs=0.15)
    assert table.eval().embeddings().eq(1).all()
    assert ItemTable(200, 4).embeddings().isfinite().all()


@pytest.mark.parametrize("d", [1, 16])
def test_the_features_of_later_items_do_not_change_a_bit(d: int) -> None:
    torch.manual_seed(0)
    table, codes = ItemTable(200, d, feature_buckets=64), torch.randint(0, 1 << 62, (300, 32))
    codes[:200, 7:] = -1
    table.set_features(codes[:200, :7])
    alone = table.embeddings()
    table.set_features(codes)
    assert torch.equal(table.embeddings(), alone)


def test_negatives_are_drawn_among_the_given_items_alone() -> None:
    among = rows(1, 3, 4, 8, 9)
    sampler = NegativeSampler(pairs_of({(0, 3), (0, 9), (1, 1)}), rows(0, 1), n_items=12, among=among)
    drawn = [sampler.draw(rows(0, 1), 4, key) for key in range(50)]
    assert {tuple(sorted(part[0].tolist())) for part in drawn} == {(-1, 1, 4, 8)}
    assert {tuple(sorted(part[1].tolist())) for part in drawn} == {(3, 4, 8, 9)}
    items, log_expected = EveryItem(among).draw(0, 0)
    assert (items.tolist(), log_expected.tolist()) == (among.tolist(), [0.0] * 5)
