"""Checkpoints: a folder with one safetensors file and a JSON manifest that names it.

The manifest is replaced last and in one step, so a folder always holds one whole checkpoint: the
old one until that moment, the new one after it. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors
import safetensors.torch
import torch

from fairstream._version import __version__
from fairstream.data import Columns, Groups, History, Vocabulary, utf8
from fairstream.errors import CheckpointError
from fairstream.files import replace_file
from fairstream.models import Level, resolve_model
from fairstream.recipe import GroupWeight, saved_options
from fairstream.recommender.model_builder import tensors_of
from fairstream.recommender.state import State
from fairstream.recommender.trainer import Trainer
from fairstream.registry import CUSTOM
from fairstream.strategies import FineTune
from fairstream.training import RuntimeConfig, Tensors, Training

FORMAT = 6
_MANIFEST = "manifest.json"
_FIELDS = ("t", "started_at", "memory", "event_weights", "lacks_groups", "level", "replays")  # JSON values


def write_checkpoint(folder: Path, state: State, trainer: Trainer) -> None:
    """Write a checkpoint; on any failure the folder does not change."""
    # Copies, because tied weights share memory and safetensors refuses those.
    content = safetensors.torch.save(
        {name: value.detach().to("cpu", copy=True).contiguous() for name, value in _tensors(state).items()}
    )
    digest = hashlib.sha256(content).hexdigest()
    tensor_file = folder / f"tensors-{digest[:16]}.safetensors"
    manifest = {**_manifest(state, trainer), "tensors": {"file": tensor_file.name, "sha256": digest}}
    # Before any file is written, because JSON may not be able to hold a value.
    written = json.dumps(manifest, indent=2, default=np.generic.item).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith((".", "tensors-")))
        if others and not (folder / _MANIFEST).exists():
            raise CheckpointError(
                f"{folder} holds other files ({', '.join(others[:4])}); save into a new folder or over a checkpoint"
            )
        was_there = tensor_file.exists()
        replace_file(tensor_file, content)
        try:
            replace_file(folder / _MANIFEST, written)
        except OSError:
            if not was_there:
                tensor_file.unlink()
            raise
        for stale in set(folder.glob(f"tensors-{'[0-9a-f]' * 16}.safetensors")) - {tensor_file}:
            stale.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"the checkpoint could not be written to {folder}: {error.strerror or error}; "
            f"what was saved there before is untouched"
        ) from None


def read_checkpoint(folder: Path, *, n_retries: int = 20) -> tuple[dict[str, Any], Tensors]:
    """Read the manifest and the tensors.

    Nothing of the file stays mapped: whoever cut it short would kill the process (SIGBUS).
    """
    manifest: dict[str, Any] = {}
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has checkpoint format {manifest['format']}, this version reads {FORMAT}; "
                f"use the version of fairstream that wrote it"
            )
        content = (folder / manifest["tensors"]["file"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest["tensors"]["sha256"]:
            raise CheckpointError(f"{folder} is damaged: its tensors do not match their checksum; use another copy")
        return manifest, safetensors.torch.load(content)
    except FileNotFoundError as error:
        if manifest and n_retries:  # a process that saves removes the old tensors once the new manifest exists
            return read_checkpoint(folder, n_retries=n_retries - 1)
        raise CheckpointError(f"{folder} is not a whole checkpoint: {Path(error.filename).name} is missing") from None
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError):
        raise CheckpointError(f"{folder} is damaged: its manifest or tensors are not what fairstream writes") from None


def read_user_ids(folder: Path) -> pa.Array:
    """Read the ids of a checkpoint's users and nothing else of it; without the check of its sum."""
    try:
        file = folder / json.loads((folder / _MANIFEST).read_bytes())["tensors"]["file"]
        with safetensors.safe_open(file, framework="pt") as content:
            names = {"users/integers", "users/utf8", "users/ends"}.intersection(content.keys())
            return vocabulary_from_tensors("users", {name: content.get_tensor(name) for name in names}).ids
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"the ids of {folder} cannot be read: {error}") from None


def vocabulary_tensors(name: str, vocabulary: Vocabulary) -> Tensors:
    """Ids as tensors: the integers themselves, or UTF-8 bytes and the end of each string."""
    ids = vocabulary.ids
    if pa.types.is_integer(ids.type):
        return {f"{name}/integers": torch.from_numpy(ids.to_numpy(zero_copy_only=False).copy())}
    letters, bounds = utf8(ids)
    letters, ends = letters[bounds[0] : bounds[-1]], bounds[1:] - bounds[0]
    return {f"{name}/utf8": torch.from_numpy(letters.copy()), f"{name}/ends": torch.from_numpy(ends)}


def vocabulary_from_tensors(name: str, tensors: Tensors) -> Vocabulary:
    """Invert `vocabulary_tensors`."""
    if f"{name}/integers" in tensors:
        return Vocabulary.of_distinct(pa.array(tensors[f"{name}/integers"].numpy()))
    letters, ends = tensors[f"{name}/utf8"].numpy(), tensors[f"{name}/ends"].numpy()
    buffers = [None, pa.py_buffer(np.append(0, ends)), pa.py_buffer(letters)]
    ids = pa.Array.from_buffers(pa.large_string(), len(ends), buffers)
    ids.validate(full=True)
    return Vocabulary.of_distinct(ids)


def _manifest(state: State, trainer: Trainer) -> dict[str, Any]:
    history, groups = state.history, state.groups
    return {
        "format": FORMAT,
        "fairstream": __version__,
        "recipe": trainer.recipe.to_json(),
        "seed": trainer.randomness.seed,
        "device": trainer.device.type,
        "engine": trainer.engine,
        **{name: getattr(state, name) for name in _FIELDS},
        **{name: getattr(history, name) for name in ("n_items_before", "n_users", "n_items")},
        "period_ends": list(history.ends),
        "groups": {name: getattr(groups, name) for name in ("attribute", "names", "choice")},
        "columns": asdict(state.columns),
        "last_time": _time_to_json(state.last_time),
        "reads_times": state.model.reads_times,
    }


def _tensors(state: State) -> Tensors:
    columns = {
        "events/users": state.history.users,
        "events/items": state.history.items,
        "events/pending": state.pending,
        "events/unlearned": state.unlearned,
        "groups/codes": state.groups.codes,
        "users/trained": state.trained,
        "items/trained": state.trained_items,
    }
    optional = state.history.columns_at(range(len(state.history)))
    columns |= {f"events/{name}": column for name, column in optional.items() if column is not None}
    if state.features is not None:
        columns["items/features"] = state.features
    if state.tilt is not None:
        columns["items/tilt"] = state.tilt
    return (
        tensors_of(state)
        | {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}
        | vocabulary_tensors("users", state.user_ids)
        | vocabulary_tensors("items", state.item_ids)
    )


def read_options(path: str | Path, manifest: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's options of a saved recommender, with those in `given` that replace them."""
    try:
        runtime = RuntimeConfig(seed=manifest["seed"], engine=manifest["engine"])
        saved = manifest["recipe"]
        known = {name: saved[name] for name in ("model", "training", "fairness", "target", "strategy", "group_weight")}
        Training(**known["training"])
        GroupWeight(known["group_weight"])
        FineTune(saved["update_epochs"], saved["update_learning_rate"])
        if known["model"]["name"] != CUSTOM:
            resolve_model(known["model"]["name"], known["model"]["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None
    try:
        options = saved_options(path, known, given)
    except (AttributeError, KeyError, TypeError) as error:  # a wrong option among the given is a ConfigurationError
        raise _damaged(path, error) from None
    return {**options, "seed": runtime.seed, "engine": runtime.engine}


def read_state(
    path: str | Path, manifest: dict[str, Any], tensors: Tensors, trainer: Trainer, *, frozen: bool = False
) -> State:
    """The state of a checkpoint; with `frozen` it uses the tensors themselves and has no optimizer."""
    try:
        return _read_state(manifest, tensors, trainer, frozen=frozen)
    except RuntimeError:  # what PyTorch raises for tensors of other names or shapes
        raise CheckpointError(f"{path} does not fit this model: their tensors differ in names or shapes") from None
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None


def _damaged(path: str | Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: its manifest is not what fairstream writes ({error})")


def _read_state(manifest: dict[str, Any], tensors: Tensors, trainer: Trainer, *, frozen: bool) -> State:
    users, items, pending, unlearned = (
        tensors[f"events/{name}"].numpy() for name in ("users", "items", "pending", "unlearned")
    )
    # Forgotten users may leave items that no other user has had, so the events do not determine the sizes.
    sizes: dict[str, Any] = {name: int(manifest[name]) for name in ("n_items_before", "n_users", "n_items")}
    ends = tuple(map(int, manifest["period_ends"]))
    optional: dict[str, Any] = {}
    for name, kind in {"times": np.float64, "weights": np.float32, "returns": np.bool_}.items():
        if f"events/{name}" in tensors:
            column = optional[name] = tensors[f"events/{name}"].numpy()
            if column.dtype != kind or column.shape != users.shape:
                raise ValueError(f"events/{name}")
    history = History.of(users, items, **optional, ends=ends, **sizes)
    saved, fields = manifest["groups"], {name: manifest[name] for name in _FIELDS} | {"t": int(manifest["t"])}
    if not ends or fields["t"] < 0 or not isinstance(saved["attribute"], str):
        raise ValueError("period_ends, t or the attribute of the groups")
    if not all(isinstance(fields[name], dict) for name in ("memory", "event_weights", "replays")):
        raise TypeError("memory, event_weights and replays must be objects")
    fields["level"] = Level(*fields["level"])
    if manifest["recipe"]["strategy"] != trainer.recipe.to_json()["strategy"]:
        fields["memory"] = {}  # it is that of another strategy
    groups = Groups(saved["attribute"], tuple(saved["names"]), tensors["groups/codes"].numpy(), saved["choice"])
    features = tensors["items/features"].numpy() if "items/features" in tensors else None
    options = {"with_times": bool(manifest["reads_times"]), "frozen": frozen}
    model, optimizer = trainer.models.load(history, tensors, int(manifest["started_at"]), features, **options)
    return State(
        model,
        optimizer,
        history,
        groups,
        vocabulary_from_tensors("users", tensors).indexed(),
        vocabulary_from_tensors("items", tensors).indexed(),
        tensors["users/trained"].numpy(),
        tensors["items/trained"].numpy(),
        pending=pending,
        unlearned=unlearned,
        columns=Columns(**manifest["columns"]),
        last_time=_time_from_json(manifest["last_time"]),
        features=features,
        tilt=tensors["items/tilt"].numpy() if "items/tilt" in tensors else None,
        **fields,
    )


def _time_to_json(moment: np.generic | None) -> dict[str, Any] | None:
    """A time and its kind; timestamps as integers of their unit."""
    if moment is None:
        return None
    value = moment.astype(np.int64) if moment.dtype.kind == "M" else moment
    return {"dtype": moment.dtype.str, "value": value.item()}


def _time_from_json(stored: dict[str, Any] | None) -> np.generic | None:
    if stored is None:
        return None
    moments: Any = np.array([stored["value"]]).astype(stored["dtype"])
    return moments[0]
