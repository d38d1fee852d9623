"""The filter and the discriminator have the paper's shape, whatever comes in."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairstream.paper.adver import Discriminator, Filter


def widths(network: nn.Module) -> list[int]:
    layers = [part for part in network.modules() if isinstance(part, nn.Linear)]
    return [layers[0].in_features, *(layer.out_features for layer in layers)]


def test_the_networks_are_those_of_the_paper() -> None:
    assert widths(Filter(64)) == [64, 128, 64]
    assert widths(Discriminator(64)) == [64, 128, 256, 128, 128, 64, 32, 2]
    parts = list(Discriminator(64).modules())
    assert {part.p for part in parts if isinstance(part, nn.Dropout)} == {0.3}
    assert {part.negative_slope for part in parts if isinstance(part, nn.LeakyReLU)} == {0.2}
    assert sum(isinstance(part, nn.LeakyReLU) for part in Filter(64).modules()) == 2


def test_filtered_batches_are_normalised() -> None:
    found = Filter(8)(torch.randn(50, 8) * 100)
    assert torch.allclose(found.mean(dim=0), torch.zeros(8), atol=1e-4)
    assert torch.allclose(found.std(dim=0, correction=0), torch.ones(8), atol=1e-2)


def test_a_batch_of_one_is_filtered_as_when_serving() -> None:
    network = Filter(8)
    network(torch.randn(50, 8))
    kept, row = copy.deepcopy(network.state_dict()), torch.randn(1, 8)
    learning = network(row)
    assert torch.equal(learning, network.eval()(row))
    assert all(torch.equal(value, kept[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("n_groups", [3, 5])
def test_new_groups_change_nothing_for_the_old_ones(n_groups: int) -> None:
    network, rows = Discriminator(8).eval(), torch.randn(20, 8)
    before, parameters = network(rows), list(network.parameters())
    state = torch.random.get_rng_state()
    network.grow(n_groups)
    assert torch.equal(torch.random.get_rng_state(), state)  # no draw
    assert all(a is b for a, b in zip(network.parameters(), parameters, strict=True))
    found = network(rows)
    assert torch.allclose(found[:, :2], before)
    assert torch.equal(found[:, 2:], torch.zeros(20, n_groups - 2))
    network.grow(2)
    assert network(rows).shape == (20, n_groups)  # a group that has been there stays


def test_what_was_grown_is_loaded_into_what_was_not() -> None:
    grown, fresh, rows = Discriminator(8).eval(), Discriminator(8).eval(), torch.randn(20, 8)
    grown.grow(4)
    fresh.load_state_dict(grown.state_dict())
    assert torch.equal(fresh(rows), grown(rows))


def test_a_checkpoint_without_a_head_is_refused() -> None:
    state = Discriminator(8).state_dict()
    del state["head.bias"]
    with pytest.raises(RuntimeError, match=r"head\.bias"):
        Discriminator(8).load_state_dict(state)


def test_users_of_unknown_group_have_no_part_in_the_loss() -> None:
    network, rows = Discriminator(8).eval(), torch.randn(6, 8)
    known = torch.tensor([0, 1, 1, 0])
    codes = torch.cat([known, torch.tensor([-1, -1])])
    assert torch.allclose(network.loss(rows, codes), F.cross_entropy(network(rows[:4]), known))
