"""A generator is a pure function of (seed, name, indices)."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fairstream.draws import dropout_from
from fairstream.randomness import Randomness

INDICES = st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple)
KEY = st.tuples(st.integers(0, 2**63 - 1), st.sampled_from(["weights", "growth", "batches", "negatives"]), INDICES)
Key = tuple[int, str, tuple[int, ...]]


def numpy_draws(key: Key) -> list[int]:
    seed, name, indices = key
    return Randomness(seed).numpy(name, *indices).integers(2**63, size=4).tolist()


def torch_draws(key: Key) -> list[int]:
    seed, name, indices = key
    return torch.randint(2**62, (4,), generator=Randomness(seed).torch(name, *indices)).tolist()


def initial_weights(key: Key) -> torch.Tensor:
    seed, name, indices = key
    with Randomness(seed).seeded(name, *indices):
        return torch.nn.Linear(3, 2).weight.detach()


@given(KEY)
def test_the_same_key_draws_the_same(key: Key) -> None:
    assert numpy_draws(key) == numpy_draws(key)
    assert torch_draws(key) == torch_draws(key)
    assert torch.equal(initial_weights(key), initial_weights(key))


@given(KEY, KEY)
@example((0, "batches", ()), (0, "batches", (0,)))
@example((0, "batches", (0,)), (0, "batches", (0, 0)))
@example((0, "batches", (1, 2)), (0, "batches", (2, 1)))
@example((0, "batches", (1,)), (1, "batches", (0,)))
@example((0, "batches", (3,)), (0, "negatives", (3,)))
@example((0, "batches", (3,)), (1, "batches", (3,)))
@example((0, "weights", ()), (2**32, "weights", ()))
def test_another_key_draws_something_else(key: Key, other: Key) -> None:
    same = key == other
    assert (numpy_draws(key) == numpy_draws(other)) is same
    assert (torch_draws(key) == torch_draws(other)) is same
    assert torch.equal(initial_weights(key), initial_weights(other)) is same


@given(KEY, st.lists(KEY, max_size=3))
def test_what_was_drawn_before_does_not_count(key: Key, before: list[Key]) -> None:
    fresh = numpy_draws(key), torch_draws(key)
    for earlier in before:
        numpy_draws(earlier)
        torch_draws(earlier)
        initial_weights(earlier)
    assert (numpy_draws(key), torch_draws(key)) == fresh


def test_neighbouring_keys_share_nothing() -> None:
    draws = [
        draw
        for seed in range(5)
        for name in ("batches", "negatives")
        for t in range(5)
        for key in [(seed, name, (t,))]
        for draw in (*numpy_draws(key), *torch_draws(key))
    ]
    assert len(set(draws)) == len(draws) == 5 * 2 * 5 * 8


def test_draws_are_uniform_across_indices() -> None:
    """The first draw of each of many generators is as good as many draws of one."""
    firsts = np.array([Randomness(0).numpy("batches", t).random() for t in range(2000)])
    counts, _ = np.histogram(firsts, bins=10, range=(0, 1))
    assert np.abs(counts - 200).max() < 5 * np.sqrt(200)


def test_the_generator_lives_where_asked() -> None:
    generator = Randomness(0).torch("negatives", device="cpu")
    assert generator.device == torch.device("cpu")


@given(KEY, st.integers(0, 10**6))
def test_governing_puts_the_global_generator_back(key: Key, outer: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(outer)
        state = torch.get_rng_state()
        undisturbed = torch.rand(3)
        torch.set_rng_state(state)
        initial_weights(key)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(torch.rand(3), undisturbed)


def test_governing_puts_it_back_after_an_error_too() -> None:
    def fail() -> None:
        with Randomness(0).seeded("weights"):
            torch.rand(3)
            raise ZeroDivisionError

    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(torch.get_rng_state(), state)


@given(KEY, st.integers(0, 10**6), st.integers(0, 10**6))
def test_governing_does_not_depend_on_the_state_outside(key: Key, outer: int, other: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(outer)
        first = initial_weights(key)
        torch.default_generator.manual_seed(other)
        assert torch.equal(initial_weights(key), first)


def test_governing_nests() -> None:
    with Randomness(0).seeded("weights"):
        alone = torch.rand(2), torch.rand(2)
    with Randomness(0).seeded("weights"):
        first = torch.rand(2)
        with Randomness(0).seeded("growth", 1):
            torch.rand(5)
        second = torch.rand(2)
    assert torch.equal(first, alone[0])
    assert torch.equal(second, alone[1])


def draw_elsewhere() -> None:
    thread = Thread(target=torch.rand, args=(5,))
    thread.start()
    thread.join()


@pytest.mark.parametrize("disturb", [lambda: None, draw_elsewhere])
def test_other_threads_do_not_change_initial_weights(disturb: Callable[[], None]) -> None:
    """The weights are those of PyTorch's global generator with the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Randomness(4).key("weights", 1))
        expected = make_parts()
    with Randomness(4).seeded("weights", 1):
        disturb()
        found = make_parts(disturb)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def make_parts(disturb: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
    parts: list[Callable[[], torch.Tensor]] = [
        lambda: torch.nn.Linear(3, 2).weight,
        lambda: torch.nn.GRU(3, 2).weight_ih_l0,
        lambda: torch.nn.Embedding(3, 2).weight,
        lambda: torch.nn.init.orthogonal_(torch.empty(3, 3)),
        lambda: torch.nn.init.trunc_normal_(torch.empty(3)),
        lambda: torch.randint(9, (3,)).float() * torch.randn(3),
    ]
    tensors = []
    for make in parts:
        disturb()
        tensors.append(make().detach())
    return tensors


@given(st.floats(0, 1), st.booleans(), st.booleans())
def test_private_dropout_draws_as_the_global_generator_does(p: float, training: bool, inplace: bool) -> None:
    dropout, x = torch.nn.Dropout(p, inplace).train(training), torch.randn(6, 5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = dropout(x.clone())
    before = torch.get_rng_state()
    with dropout_from(torch.Generator().manual_seed(7), [dropout]):
        assert torch.equal(dropout(x.clone()), expected)
    assert torch.equal(torch.get_rng_state(), before) or p == 1  # PyTorch itself then draws nothing of use
    assert "forward" not in vars(dropout)
