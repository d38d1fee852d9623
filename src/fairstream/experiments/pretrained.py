"""A pre-trained model that several runs begin with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import safetensors.torch

from fairstream.experiments.run import TRAINED, Run
from fairstream.files import replace_file
from fairstream.recommender import Update
from fairstream.training import Tensors, TrainingReport

_KEY = "update"


@dataclass(frozen=True, eq=False)
class Pretrained:
    """What the pre-training of a run left, free of the run."""

    weights: Tensors
    update: Update

    @classmethod
    def of(cls, run: Run) -> Pretrained:
        """Of a run that has begun and gone no further."""
        return cls({name: value.detach().clone() for name, value in run.learned().items()}, run.begin().update)

    def save(self, path: Path) -> None:
        weights = {name: value.cpu().contiguous() for name, value in self.weights.items()}
        replace_file(path, safetensors.torch.save(weights, {_KEY: json.dumps(asdict(self.update))}))

    @classmethod
    def load(cls, path: Path) -> Pretrained | None:
        """What was saved, or None where nothing whole is there."""
        try:
            with safetensors.safe_open(path, "pt") as file:
                kept = json.loads(file.metadata()[_KEY])
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            _ = weights[TRAINED]
            report = None if kept["report"] is None else TrainingReport(**kept["report"])
            return cls(weights, Update(kept["t"], kept["step"], kept["seconds"], report))
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
            return None
