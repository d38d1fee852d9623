"""A workspace is made once, opened often, and updated by one process at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.service.settings import FILE, Gate, Learning, LiveConfig
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]


@pytest.mark.both_databases
def test_what_was_configured_is_read_again(new_workspace: Maker) -> None:
    options = {"advantaged": "majority", "learning": Learning(fairness_weight=2.5), "gate": Gate(max_rise=0.01)}
    made = new_workspace(**options)
    with Workspace.open(made.folder) as again:
        assert again.config == made.config == LiveConfig(group="community", **options)
        assert again.secret == made.secret


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(WorkspaceError, match="is not empty"):
        Workspace.create(tmp_path, LiveConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("content", ["group = ", "grop = 'sex'", "[gate]\nmax_rise = -1", "gate = 3", "\xff"])
def test_a_configuration_that_cannot_be_honoured_is_one_sentence(new_workspace: Maker, content: str) -> None:
    folder = new_workspace().folder
    (folder / FILE).write_text(content, encoding="latin-1")
    with pytest.raises(ConfigurationError) as told:
        Workspace.open(folder)
    assert "\n" not in str(told.value)


@pytest.mark.both_databases
def test_one_process_updates_at_a_time(new_workspace: Maker) -> None:
    workspace = new_workspace()
    with workspace.updating(), pytest.raises(WorkspaceError, match="another process"), workspace.updating():
        pass
    with workspace.updating():
        pass
