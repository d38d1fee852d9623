"""Checkpoints of a training that is under way: the same training, begun again, resumes from there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
from torch import Tensor

from fairstream.errors import CheckpointError
from fairstream.files import replace_file
from fairstream.training.batches import Batches
from fairstream.training.engine import TrainingJob
from fairstream.training.optimizers import restore_state, state_tensors

_KEY, _MODEL, _OPTIMIZER, _OBJECTIVE = "training", "model:", "optimizer:", "objective:"


class StepsTaken(NamedTuple):
    """How far a training has come."""

    n_steps: int
    losses: Sequence[float]
    """The summed loss of the batches of each chunk of steps."""


class SavedTraining:
    """The checkpoint of one training: a file in a folder, named by what is trained, for any number of workers.

    The file is replaced atomically, and nothing of it is ever unpickled.
    """

    def __init__(self, folder: Path, job: TrainingJob) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_written(folder, error) from None
        self._path = folder / f"{training_id(job)}.safetensors"

    def write(self, job: TrainingJob, taken: StepsTaken) -> None:
        """Replace the checkpoint by the present state of the job."""
        parts: dict[str, dict[str, Tensor]] = {
            _MODEL: dict(job.model.named_parameters()),
            _OPTIMIZER: state_tensors(job.optimizer, job.model),
            _OBJECTIVE: dict(_tensors_in(job.objective)),
        }
        tensors = {
            prefix + name: value.detach().contiguous() for prefix, part in parts.items() for name, value in part.items()
        }
        about = {**taken._asdict(), "schedule_step": None if job.schedule is None else job.schedule.step}
        try:
            replace_file(self._path, safetensors.torch.save(tensors, {_KEY: json.dumps(about)}))
        except OSError as error:
            raise _not_written(self._path.parent, error) from None

    def restore(self, job: TrainingJob) -> StepsTaken | None:
        """Load the checkpoint into the job; None where there is none."""
        if not self._path.exists():
            return None
        try:
            with safetensors.safe_open(self._path, "pt") as file:
                about = json.loads(file.metadata()[_KEY])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            taken = StepsTaken(about["n_steps"], about["losses"])
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            raise CheckpointError(
                f"the training saved in {self._path} cannot be read ({error}); remove the file to begin anew"
            ) from None
        for name, parameter in job.model.named_parameters():
            parameter.data.copy_(tensors[_MODEL + name])
        length = len(_OPTIMIZER)
        moments = {name[length:]: value for name, value in tensors.items() if name.startswith(_OPTIMIZER)}
        restore_state(job.optimizer, job.model, moments)
        for name, value in _tensors_in(job.objective):
            value.copy_(tensors[_OBJECTIVE + name])
        if job.schedule is not None:
            job.schedule.advance(about["schedule_step"] - job.schedule.step)
        return taken

    def remove(self) -> None:
        """Delete the checkpoint of a training that is done."""
        self._path.unlink(missing_ok=True)


def training_id(job: TrainingJob) -> str:
    """A hash of a training that has not begun: its weights, optimizer state, batches and objective."""
    digest = hashlib.blake2b(digest_size=16)
    batches = job.batches
    columns: list[np.ndarray[Any, Any]] = [batches.users, batches.codes, np.asarray(job.signs)]
    if isinstance(batches, Batches):
        columns += [batches.items, np.asarray(batches.positions)]
    else:
        columns += [batches.history, batches.targets, batches.weights]
    of_optimizer = state_tensors(job.optimizer, job.model)
    columns += [value.detach().numpy() for value in (*job.model.parameters(), *of_optimizer.values())]
    for column in columns:
        digest.update(f"{column.dtype}{column.shape}".encode())
        digest.update(np.ascontiguousarray(column).data)
    rates = [(group["lr"], group["weight_decay"]) for group in job.optimizer.param_groups]
    rest = (batches.size, type(job.model).__qualname__, type(job.optimizer).__qualname__, rates, job.objective)
    digest.update(re.sub(r" at 0x[0-9a-f]+", "", repr(rest)).encode())  # a function is known by its name
    return digest.hexdigest()


def _tensors_in(part: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of the state that an objective keeps across batches, by attribute."""
    for key, value in vars(part).items():
        if isinstance(value, Tensor):
            yield name + key, value
        elif hasattr(value, "__dict__"):
            yield from _tensors_in(value, f"{name}{key}.")


def _not_written(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"the training cannot be saved in {folder}: {error.strerror or error}; choose a folder that can be written to"
    )
