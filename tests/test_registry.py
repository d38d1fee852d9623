"""A registry is a mapping of names in any case, and says which names there are."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.errors import ConfigurationError
from fairstream.models import MODELS, MFScorer
from fairstream.registry import Registry, load_plugins

NAMES = st.text(st.sampled_from("abCD-"), min_size=1, max_size=4)


@given(st.dictionaries(NAMES, st.integers(), max_size=6))
def test_it_is_a_mapping_whose_keys_have_no_case(parts: dict[str, int]) -> None:
    registry: Registry[int] = Registry("thing")
    for name, part in parts.items():
        registry.register(name, part, replace=True)
    expected = {name.lower(): (name, part) for name, part in parts.items()}
    assert dict(registry) == dict(expected.values())
    assert len(registry) == len(expected)
    for name in expected:
        for spelled in (name, name.upper(), name.swapcase()):
            assert spelled in registry
            assert registry[spelled] == registry.get(spelled) == expected[name][1]
            assert registry.canonical(spelled) == expected[name][0]
    assert registry.get("nothing of the kind") is None
    assert 3 not in registry


def test_a_name_is_taken_once_unless_it_is_to_be_replaced() -> None:
    registry: Registry[str] = Registry("thing")
    registry.register("Name", "first")
    registry.register("Name", "first")  # importing a plugin twice does no harm
    with pytest.raises(ConfigurationError, match="there is a thing named 'name' already; choose another name"):
        registry.register("name", "second")
    assert registry["name"] == "first"
    registry.register("name", "second", replace=True)
    assert list(registry.items()) == [("name", "second")]


@pytest.mark.parametrize("name", ["", " a", "a "])
def test_a_name_has_no_spaces_around_it(name: str) -> None:
    with pytest.raises(ConfigurationError, match="needs a name without spaces around it"):
        Registry("thing").register(name, 1)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    registry: Registry[int] = Registry("thing")
    registry.register("one", 1)
    registry.register("Two", 2)
    for name in ("three", None, 3):
        with pytest.raises(ConfigurationError) as caught:
            registry[name]  # type: ignore[index]
        assert str(caught.value) == f"thing must be one of one, Two, or your own object, got {name!r}"


def test_a_plugin_registers_parts_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for field in ("_parts", "_names"):
        monkeypatch.setattr(MODELS, field, dict(getattr(MODELS, field)))
    plugin, name = tmp_path / "my plugin.py", "a model of the test"
    plugin.write_text(
        f"from fairstream import register_model\n"
        f"from fairstream.models import MFScorer\n"
        f"register_model({name!r}, MFScorer)\n"
    )
    assert name not in MODELS
    load_plugins((str(plugin),))
    load_plugins((str(plugin),))
    assert MODELS[name] is MFScorer


def test_a_plugin_that_fails_is_not_half_imported(tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text("raise ZeroDivisionError\n")
    before = set(sys.modules)
    with pytest.raises(ConfigurationError, match="cannot be imported: ZeroDivisionError"):
        load_plugins((str(plugin),))
    assert set(sys.modules) == before
    for missing in ("no.such.module", str(tmp_path / "missing.py")):
        with pytest.raises(ConfigurationError, match="plugin"):
            load_plugins((missing,))


def test_a_deferred_name_is_known_and_imports_its_module_on_first_use(tmp_path: Path, monkeypatch: Any) -> None:
    registry: Registry[str] = Registry("thing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "registry_of_test", SimpleNamespace(registry=registry))
    (tmp_path / "deferred_thing.py").write_text(
        "from registry_of_test import registry\nregistry.register('Late', 'part')\n"
        "registry.register('Later', 'other')\n"
    )
    registry.defer("deferred_thing", "Late", "Later")
    assert (list(registry), registry.canonical("late"), "LATER" in registry) == (["Late", "Later"], "Late", True)
    assert "deferred_thing" not in sys.modules
    with pytest.raises(ConfigurationError, match="there is a thing named 'Late' already"):
        registry.register("Late", "mine")
    assert dict(registry) == {"Late": "part", "Later": "other"}
    assert registry.get("late") == "part"


def test_threads_wait_while_another_imports_the_module_of_a_deferred_name(tmp_path: Path, monkeypatch: Any) -> None:
    registry: Registry[str] = Registry("thing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "registry_of_slow_test", SimpleNamespace(registry=registry))
    (tmp_path / "slow_thing.py").write_text(
        "import time\nfrom registry_of_slow_test import registry\nregistry.register('Early', 'first')\n"
        "time.sleep(0.2)\nregistry.register('Late', 'second')\n"
    )
    registry.defer("slow_thing", "Early", "Late")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(registry.__getitem__, ["Late"] * 4)) == ["second"] * 4
