"""Checkpoints: a folder with one safetensors file and a JSON manifest that names it.

The manifest is replaced last and in one step, so a folder always holds one whole checkpoint: the
old one until that moment, the new one after it. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors
import safetensors.torch
import torch

from fairstream.data import Columns, Groups, History, Vocabulary, utf8
from fairstream.errors import CheckpointError, ConfigurationError
from fairstream.files import replace_file
from fairstream.methods import MethodConfig
from fairstream.recommender.learning import Learning
from fairstream.recommender.model_builder import tensors_of
from fairstream.recommender.state import State
from fairstream.training import CUSTOM, RuntimeConfig, Tensors

FORMAT = 3
_RETRIES = 20
_MANIFEST = "manifest.json"
_FIXED = ("model", "embedding_dim", "feature_buckets", "optimizer", "group_weight")
"""Options that the tensors depend on, besides the seed."""
_STRATEGY = ("method", "strategy", "restart", "restart_every")
"""Options that say what a strategy's memory means."""


def write_checkpoint(folder: Path, manifest: dict[str, Any], tensors: Tensors) -> None:
    """Write a checkpoint; on any failure the folder holds what it held before."""
    # Copies, because tied weights share memory and safetensors refuses those.
    content = safetensors.torch.save(
        {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    )
    digest = hashlib.sha256(content).hexdigest()
    tensor_file = folder / f"tensors-{digest[:16]}.safetensors"
    manifest = {"format": FORMAT, **manifest, "tensors": {"file": tensor_file.name, "sha256": digest}}
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
            replace_file(folder / _MANIFEST, json.dumps(manifest, indent=2).encode())
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


def read_checkpoint(folder: Path, *, mapped: bool = False) -> tuple[dict[str, Any], Tensors]:
    """The manifest and the tensors, or one sentence that says what is wrong with them.

    With `mapped` the tensors stay in the file, of which pages are read as they are needed; writing to a tensor does
    not change the file.
    """
    for _ in range(_RETRIES):  # whoever saves removes the old tensors once the new manifest is there
        with suppress(_ReplacedError):
            return _read_checkpoint(folder, mapped)
    raise CheckpointError(f"{folder} is being replaced faster than it can be read; try again")


class _ReplacedError(Exception):
    """Another checkpoint was saved while this one was being read."""


def _read_checkpoint(folder: Path, mapped: bool) -> tuple[dict[str, Any], Tensors]:
    manifest: dict[str, Any] = {}
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has checkpoint format {manifest['format']}, this version reads {FORMAT}; "
                f"use the version of fairstream that wrote it"
            )
        path = folder / manifest["tensors"]["file"]
        content = b"" if mapped else path.read_bytes()
        with path.open("rb") if mapped else io.BytesIO(content) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != manifest["tensors"]["sha256"]:
            raise CheckpointError(f"{folder} is damaged: its tensors do not match their checksum; use another copy")
        return manifest, safetensors.torch.load_file(path) if mapped else safetensors.torch.load(content)
    except FileNotFoundError as error:
        if manifest and _manifest_of(folder) not in (None, manifest):
            raise _ReplacedError from None
        raise CheckpointError(f"{folder} is not a whole checkpoint: {Path(error.filename).name} is missing") from None
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError):
        raise CheckpointError(f"{folder} is damaged: its manifest or tensors are not what fairstream writes") from None


def _manifest_of(folder: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    return content


def vocabulary_tensors(name: str, vocabulary: Vocabulary) -> Tensors:
    """Ids as tensors: the integers themselves, or UTF-8 bytes and where each string ends."""
    ids = vocabulary.ids
    if pa.types.is_integer(ids.type):
        return {f"{name}/integers": torch.from_numpy(ids.to_numpy(zero_copy_only=False).copy())}
    letters, bounds = utf8(ids)
    letters, ends = letters[bounds[0] : bounds[-1]], bounds[1:] - bounds[0]
    return {f"{name}/utf8": torch.from_numpy(letters.copy()), f"{name}/ends": torch.from_numpy(ends)}


def vocabulary_from_tensors(name: str, tensors: Tensors) -> Vocabulary:
    """What `vocabulary_tensors` took apart."""
    if f"{name}/integers" in tensors:
        return Vocabulary.of_distinct(pa.array(tensors[f"{name}/integers"].numpy()))
    letters, ends = tensors[f"{name}/utf8"].numpy(), tensors[f"{name}/ends"].numpy()
    buffers = [None, pa.py_buffer(np.append(0, ends)), pa.py_buffer(letters)]
    ids = pa.Array.from_buffers(pa.large_string(), len(ends), buffers)
    ids.validate(full=True)
    return Vocabulary.of_distinct(ids)


def state_manifest(state: State) -> dict[str, Any]:
    """What of a state fits into JSON."""
    history, groups = state.history, state.groups
    return {
        "t": state.t,
        "started_at": state.started_at,
        "n_items_before": history.n_items_before,
        "n_users": history.n_users,
        "n_items": history.n_items,
        "period_ends": list(history.ends),
        "memory": dict(state.memory),
        "event_weights": dict(state.event_weights),
        "lacks_groups": state.lacks_groups,
        "control": dict(state.control),
        "groups": {name: getattr(groups, name) for name in ("attribute", "names", "choice", "ahead")},
        "columns": asdict(state.columns),
        "last_time": _time_to_json(state.last_time),
    }


def state_all_tensors(state: State) -> Tensors:
    """The model, the optimizer, the events, the ids, and who is in which group."""
    columns = {
        "events/users": state.history.users,
        "events/items": state.history.items,
        "events/pending": state.pending,
        "events/unlearned": state.unlearned,
        "groups/codes": state.groups.codes,
        "users/trained": state.trained,
        "items/trained": state.trained_items,
    }
    if state.features is not None:
        columns["items/features"] = state.features
    return (
        tensors_of(state)
        | {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}
        | vocabulary_tensors("users", state.user_ids)
        | vocabulary_tensors("items", state.item_ids)
    )


def saved_options(
    path: str | Path, manifest: dict[str, Any], changed: dict[str, Any], own: dict[str, Any]
) -> dict[str, Any]:
    """The constructor's options of a saved recommender, with those that are to change and `own` objects by name."""
    try:
        saved, seed = dict(manifest["config"]), RuntimeConfig(seed=manifest["seed"]).seed
        engine = RuntimeConfig(engine=manifest["engine"]).engine
        MethodConfig(**saved)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None
    if "seed" in changed and changed.pop("seed") != seed:
        raise ConfigurationError(f"the seed of a checkpoint cannot change; {path} was saved with seed {seed}")
    engine = changed.pop("engine", engine)
    known = set(MethodConfig.model_fields) - {"rerank_tolerance"}
    if unknown := sorted(set(changed) - known):
        raise ConfigurationError(f"{', '.join(unknown)} is not an option; the options are {', '.join(sorted(known))}")
    for name in _FIXED:
        if name in changed and changed[name] != saved.get(name):
            raise ConfigurationError(
                f"{name} cannot change on a checkpoint: {path} was saved with {name}={saved.get(name)!r}; "
                f"fit a new recommender"
            )
    options = {**saved, **changed}
    options.pop("rerank_tolerance", None)
    if own["model"] is not None and saved.get("model") != CUSTOM:
        raise ConfigurationError(f"{path} was saved with the model {saved.get('model')}: do not pass a model")
    for name, part in own.items():
        if part is not None:
            options[name] = part
        elif options.get(name) == CUSTOM:
            raise ConfigurationError(f"{path} was saved with a {name} of your own; pass it again as {name}=")
    return {**options, "seed": seed, "engine": engine}


def read_state(
    path: str | Path, manifest: dict[str, Any], tensors: Tensors, learning: Learning, *, mapped: bool = False
) -> State:
    """The state that was written; with `mapped` it is the tensors themselves, and there is no optimizer."""
    try:
        state = _read_state(manifest, tensors, learning, mapped=mapped)
        before = {name: manifest["config"].get(name) for name in _STRATEGY}
        if before != learning.config.model_dump(include=set(_STRATEGY)):
            state = replace(state, memory={})  # what another strategy remembered means nothing to this one
    except RuntimeError:  # PyTorch's word for tensors of other names or shapes
        raise CheckpointError(f"{path} does not fit this model: their tensors differ in names or shapes") from None
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None
    return state


def _damaged(path: str | Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: its manifest is not what fairstream writes ({error})")


def _read_state(manifest: dict[str, Any], tensors: Tensors, learning: Learning, *, mapped: bool) -> State:
    users, items, pending = (tensors[f"events/{name}"].numpy() for name in ("users", "items", "pending"))
    history = History.of(
        users,
        items,
        n_items_before=int(manifest["n_items_before"]),
        # Users who were forgotten may leave items behind that nobody else has had.
        n_users=int(manifest["n_users"]),
        n_items=int(manifest["n_items"]),
        ends=tuple(manifest["period_ends"]),
    )
    kept = manifest["groups"]
    groups = Groups(
        kept["attribute"], tuple(kept["names"]), tensors["groups/codes"].numpy(), kept["choice"], tuple(kept["ahead"])
    )
    unlearned = tensors.get("events/unlearned", tensors["events/pending"]).numpy()  # 0.2.0 kept the pending ones alone
    trained_items = np.full(history.n_items, True)
    if "items/trained" in tensors:
        trained_items = tensors["items/trained"].numpy()
    else:  # 0.2.0 did not say; an item is untrained where the model has learned none of its events
        trained_items[items[unlearned]] = False
        trained_items[np.delete(items, unlearned)] = True
    features = tensors["items/features"].numpy() if "items/features" in tensors else None
    model, optimizer = learning.models.restored(history, tensors, int(manifest["started_at"]), features, mapped=mapped)
    return State(
        model,
        optimizer,
        history,
        groups,
        vocabulary_from_tensors("users", tensors).indexed(),
        vocabulary_from_tensors("items", tensors).indexed(),
        tensors["users/trained"].numpy(),
        trained_items,
        int(manifest["t"]),
        int(manifest["started_at"]),
        manifest["memory"],
        pending,
        unlearned,
        Columns(**manifest["columns"]),
        _time_from_json(manifest["last_time"]),
        features=features,
        event_weights=manifest.get("event_weights", {}),
        control=manifest.get("control", {}),
        # Earlier versions kept a weighted fallback where there were no groups.
        lacks_groups=manifest.get("lacks_groups", "fallback/popularity" in tensors),
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
