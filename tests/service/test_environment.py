"""Every option can be set by an environment variable, which beats the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.service.audit import entries
from fairstream.service.settings import FILE, LiveConfig
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
SETTINGS = {
    "FAIRSTREAM_GATE_K": ("7", lambda config: config.gate.k == 7),
    "FAIRSTREAM_LEARNING_MODEL": ("item-item", lambda config: config.learning.model == "item-item"),
    "FAIRSTREAM_LIMITS_MAX_K": ("50", lambda config: config.limits.max_k == 50),
    "FAIRSTREAM_PRIVACY_EPSILON_PER_QUARTER": ("off", lambda config: config.privacy.epsilon_per_quarter == "off"),
    "FAIRSTREAM_RETENTION_EVENTS_DAYS": ("30", lambda config: config.retention.events_days == 30),
    "FAIRSTREAM_GROUPS": ('["1", "2"]', lambda config: config.groups == ["1", "2"]),
    "FAIRSTREAM_ADVANTAGED": ("1", lambda config: config.advantaged == "1"),
    "FAIRSTREAM_EVERY": ("6h", lambda config: config.every == "6h"),
}


def test_the_environment_beats_the_file(new_workspace: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_workspace(advantaged="a", groups=["a", "b"]).folder
    before = LiveConfig.read(folder)
    assert not any(holds(before) for _, holds in SETTINGS.values())
    for name, (value, _) in SETTINGS.items():
        monkeypatch.setenv(name, value)
    after = LiveConfig.read(folder)
    assert all(holds(after) for _, holds in SETTINGS.values())
    assert after.gate.max_fall == before.gate.max_fall


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("FAIRSTREAM_GATE_KK", r"^\[gate\] kk is not an option; the options are"),
        ("FAIRSTREAM_LEARNING_MODELL", r"^\[learning\] modell is not an option; the options are"),
        ("FAIRSTREAM_LIMITS_", r"^\[limits\]  is not an option; the options are"),
    ],
)
def test_an_unknown_name_is_one_sentence(
    new_workspace: Maker, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    folder = new_workspace().folder
    monkeypatch.setenv(name, "3")
    with pytest.raises(ConfigurationError, match=sentence):
        _ = LiveConfig.read(folder).learning


def test_a_wrong_value_names_the_option(new_workspace: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_workspace().folder
    monkeypatch.setenv("FAIRSTREAM_GATE_K", "many")
    with pytest.raises(ConfigurationError, match=r"^\[gate\] k must be a whole number, got 'many'"):
        LiveConfig.read(folder)


def test_the_record_shows_what_was_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSTREAM_GATE_K", "7")
    with Workspace.create(tmp_path / "shop", LiveConfig()) as workspace:
        (init,) = entries(workspace.engine)
    assert json.loads(init.body)["configuration"]["gate"]["k"] == 7
    monkeypatch.delenv("FAIRSTREAM_GATE_K")
    assert LiveConfig.read(tmp_path / "shop").gate.k == LiveConfig().gate.k


def test_the_secret_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, shop = tmp_path / "mounted", tmp_path / "shop"
    monkeypatch.setenv("FAIRSTREAM_SECRET_FILE", str(path))
    path.write_bytes(b"short")
    with pytest.raises(WorkspaceError, match="must hold at least 32 random bytes, and holds 5"):
        Workspace.create(shop, LiveConfig())
    assert not shop.exists()
    path.write_bytes(b"s" * 32)
    with Workspace.create(shop, LiveConfig()) as workspace:
        assert workspace.secret == b"s" * 32
        assert not (shop / "secret").exists()
    path.write_bytes(b"t" * 32)
    with pytest.raises(WorkspaceError, match="must hold the secret"):
        Workspace.open(shop)


@pytest.mark.slow
def test_the_database_may_be_named_by_the_environment(
    on_postgres: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second machine needs the configuration, the secret and the address."""
    second = tmp_path / "second"
    second.mkdir()
    for name in (FILE, "secret"):
        shutil.copy(on_postgres.folder / name, second)
    monkeypatch.setenv("FAIRSTREAM_DATABASE", (on_postgres.folder / "database").read_text())
    with Workspace.open(second) as workspace:
        assert list(entries(workspace.engine)) == list(entries(on_postgres.engine))
