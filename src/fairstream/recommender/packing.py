"""What a learner is made of, taken apart into a manifest and tensors, and put together again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fairstream.data import Groups, History
from fairstream.strategies import Learner
from fairstream.training import Tensors


def packed_manifest(learner: Learner, groups: Groups) -> dict[str, Any]:
    """What fits into JSON."""
    return {
        "t": learner.t,
        "started_at": learner.trainer.t,
        "n_learned_users": learner.n_learned_users,
        "n_items_before": learner.known.n_items_before,
        "n_users": learner.known.n_users,
        "n_items": learner.known.n_items,
        "strategy": learner.strategy.state(),
        "groups": {name: getattr(groups, name) for name in ("attribute", "names", "choice", "ahead")},
    }


def packed_tensors(learner: Learner, groups: Groups) -> Tensors:
    """The model, the optimizer, the events so far, and who is in which group."""
    known = learner.known
    columns = {"events/users": known.users, "events/items": known.items, "groups/codes": groups.codes}
    return learner.trainer.tensors() | {
        name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()
    }


def unpacked_groups(manifest: dict[str, Any], tensors: Tensors) -> Groups:
    """The groups as they were."""
    kept = manifest["groups"]
    codes = tensors["groups/codes"].numpy()
    return Groups(kept["attribute"], tuple(kept["names"]), codes, kept["choice"], tuple(kept["ahead"]))


def unpack_learner(learner: Learner, manifest: dict[str, Any], tensors: Tensors) -> None:
    """Let a fresh learner stand where the packed one stood."""
    users, items = (tensors[f"events/{name}"].numpy() for name in ("users", "items"))
    trainer = learner.restore(
        int(manifest["t"]),
        History.of(
            users,
            items,
            n_items_before=int(manifest["n_items_before"]),
            # Those who were forgotten may leave items behind that nobody else has had.
            n_users=int(manifest.get("n_users", 0)),
            n_items=int(manifest.get("n_items", 0)),
        ),
        n_learned_users=int(manifest["n_learned_users"]),
        started_at=int(manifest["started_at"]),
    )
    learner.strategy.restore(manifest["strategy"])
    trainer.fill(tensors)
