"""The way back, should an update fail."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairstream.training.engine import Engine
    from fairstream.training.trainer import Trainer


class Savepoint:
    """A trainer's model and optimizer as they are now.

    A light one holds no copy: it serves where the engine changes nothing but the length of the
    tables before it is done, and can take back even that.
    """

    def __init__(self, trainer: Trainer, *, is_light: bool) -> None:
        self._trainer = trainer
        self.engine: Engine | None = None
        """The engine that is about to be done."""
        if is_light:
            self._tables = [(table, table.weight.data, table.num_embeddings) for table in trainer.model.tables()]
            self._states = {parameter: dict(state) for parameter, state in trainer.optimizer.state.items()}
        else:
            self._copy = copy.deepcopy((trainer.model, trainer.optimizer))
        self._is_light = is_light

    def restore(self) -> None:
        """Put everything back."""
        if not self._is_light:
            self._trainer.model, self._trainer.optimizer = self._copy
            return
        if self.engine is not None:
            self.engine.undo()
        for table, weight, n_rows in self._tables:
            table.weight.data, table.num_embeddings = weight, n_rows
        self._trainer.optimizer.state.update(self._states)
