"""How well a fresh classifier tells the group: not at all from noise, always from what shows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairstream.models import MFScorer, PopularityScorer
from fairstream.paper.recovery import N_FOLDS, group_recovery, user_embeddings

pytestmark = pytest.mark.slow

N, D = 600, 16


def noise(seed: int) -> tuple[torch.Tensor, Any]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(N, D))), (rng.random(N) < 0.3).astype(np.int16)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_noise_tells_nothing() -> None:
    covered = 0
    for seed in range(10):
        embeddings, codes = noise(seed)
        found = group_recovery(embeddings, codes, rng=rng(seed))
        assert found is not None
        assert (found.chance, found.n_users) == (0.5, N)
        assert abs(found.balanced_accuracy - 0.5) < 0.1
        covered += found.interval[0] <= 0.5 <= found.interval[1]
    assert covered >= 9


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e10])
def test_what_shows_plainly_is_found_whatever_its_scale(scale: float) -> None:
    embeddings, codes = noise(0)
    embeddings[:, 3] += 10 * torch.from_numpy(codes)
    found = group_recovery(embeddings * scale, codes, rng=rng())
    assert found is not None
    assert found.balanced_accuracy > 0.98
    assert found.interval[0] <= found.balanced_accuracy <= found.interval[1]


def test_what_no_line_can_part_is_found_too() -> None:
    embeddings, codes = noise(0)
    side = torch.from_numpy(rng(1).choice([-1.0, 1.0], N))
    embeddings[:, 0] = 3 * side + 0.2 * embeddings[:, 0]
    embeddings[:, 1] = 3 * side * (2 * torch.from_numpy(codes) - 1) + 0.2 * embeddings[:, 1]
    found = group_recovery(embeddings, codes, rng=rng())
    assert found is not None
    assert found.balanced_accuracy > 0.95


def test_guessing_the_larger_group_is_worth_nothing() -> None:
    embeddings, _ = noise(0)
    codes = (np.arange(N) % 20 == 0).astype(np.int16)  # 95 % are of one group
    found = group_recovery(embeddings, codes, rng=rng())
    assert found is not None
    assert found.balanced_accuracy < 0.65


def test_a_small_group_counts_as_much_as_a_large_one() -> None:
    """Where it overlaps with the large one, a classifier of users at large would hardly ever name it."""
    embeddings, _ = noise(0)
    codes = (np.arange(N) % 10 == 0).astype(np.int16)
    embeddings[:, 0] += 2 * torch.from_numpy(codes)
    found = group_recovery(embeddings, codes, rng=rng())
    assert found is not None
    assert found.balanced_accuracy > 0.7


def test_three_groups_and_those_who_have_none() -> None:
    embeddings, _ = noise(0)
    codes = (np.arange(N) % 4 - 1).astype(np.int16)
    embeddings[:, :4] += 10 * torch.eye(4)[codes.astype(np.int64) + 1]
    found = group_recovery(embeddings, codes, rng=rng())
    assert found is not None
    assert (found.chance, found.n_users) == (1 / 3, N - N // 4)
    assert found.balanced_accuracy > 0.98


def test_a_group_smaller_than_the_folds_is_left_out() -> None:
    embeddings, codes = noise(0)
    codes[: N_FOLDS - 1] = 2
    found = group_recovery(embeddings, codes, rng=rng())
    assert found is not None
    assert (found.chance, found.n_users) == (0.5, N - N_FOLDS + 1)
    codes[:N_FOLDS] = 2
    found = group_recovery(embeddings, codes, rng=rng())
    assert found is not None
    assert (found.chance, found.n_users) == (1 / 3, N)


@pytest.mark.parametrize("codes", [[], [-1] * 20, [0] * 20, [0] * 20 + [1] * (N_FOLDS - 1)], ids=len)
def test_without_two_groups_there_is_nothing_to_tell(codes: list[int]) -> None:
    assert group_recovery(torch.zeros(len(codes), 3), np.array(codes, dtype=np.int16), rng=rng()) is None


def test_the_same_draws_give_the_same_answer_on_any_number_of_threads() -> None:
    embeddings, codes = noise(0)
    first = group_recovery(embeddings, codes, rng=rng())
    torch.set_num_threads(2)
    try:
        torch.rand(3)
        assert group_recovery(embeddings, codes, rng=rng()) == first
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert group_recovery(embeddings, codes, rng=rng(1)) != first


def test_embeddings_are_what_the_model_scores_with() -> None:
    model = MFScorer(10, 20, embedding_dim=8)
    assert torch.equal(user_embeddings(model, np.arange(6)), model.user.weight[:6])
    assert model.training
    assert user_embeddings(PopularityScorer(5, 3), np.arange(5)).shape == (5, 0)
    assert group_recovery(torch.empty(20, 0), np.arange(20, dtype=np.int16) % 2, rng=rng()) is None
