"""Independent random generators by name, all from one seed.

A generator is a pure function of (seed, name, indices). No state passes from one update to the next, so a run that
was saved and loaded draws the same numbers as one without a break.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fairstream.compiled import njit_inline

if TYPE_CHECKING:
    import torch

Device: TypeAlias = "torch.device | str"
_GLOBAL_GENERATORS = RLock()


@dataclass(frozen=True)
class Randomness:
    """The source of every random draw of one run.

    >>> Randomness(0).numpy("batches", 3).integers(1000)
    np.int64(955)
    >>> Randomness(0).numpy("batches", 3).integers(1000)
    np.int64(955)
    """

    seed: int

    def _sequence(self, name: str, indices: tuple[int, ...]) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(name.encode()), *indices))

    def key(self, name: str, *indices: int) -> int:
        """Return a 63-bit key for draws by a counter."""
        return int(self._sequence(name, indices).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def numpy(self, name: str, *indices: int) -> np.random.Generator:
        return np.random.default_rng(self._sequence(name, indices))

    def torch(self, name: str, *indices: int, device: Device = "cpu") -> torch.Generator:
        import torch  # noqa: PLC0415 (slow to import, and NumPy is enough to read data)

        generator = torch.Generator(device=device)
        generator.manual_seed(self.key(name, *indices))
        return generator

    @contextmanager
    def seeded(self, name: str, *indices: int, device: Device = "cpu", needed: bool = True) -> Iterator[None]:
        """Seed PyTorch's draws in this thread inside the block; `needed=False` does nothing.

        On the CPU `nn.init` and all functions that take a `generator` draw from a private one, independently of other
        threads. For other draws this seeds the global generators and restores them afterwards. They belong to the
        process, so a lock admits one thread at a time.
        """
        if not needed:
            yield
            return
        import torch  # noqa: PLC0415

        from fairstream.draws import RedirectedDraws  # noqa: PLC0415

        cuda = [device] if torch.device(device).type == "cuda" else []
        with _GLOBAL_GENERATORS, torch.random.fork_rng(devices=cuda):
            # Not the seed of the private generator: both would draw the same numbers.
            torch.default_generator.manual_seed(self.key(f"global {name}", *indices))
            if cuda:
                torch.cuda.manual_seed(self.key(name, *indices))
                yield
            else:
                with RedirectedDraws(self.torch(name, *indices)):
                    yield


# SplitMix64 (Steele, Lea, Flood 2014) as a function of a counter: its increment and its two multipliers.
GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
_S30, _S27, _S31, _S11, _ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11), np.uint64(1)


@njit_inline
def uniform_at(key: Any, counter: Any) -> Any:
    """Return a number in [0, 1) with 53 random bits, in compiled loops; key and counter are unsigned, 64 bits each."""
    x = key + (counter + _ONE) * _GOLDEN
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return np.float64((x ^ (x >> _S31)) >> _S11) * 2.0**-53
