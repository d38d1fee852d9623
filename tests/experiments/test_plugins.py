"""Modules of the user's own are imported once in a process, and what is wrong with one is a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairstream import ConfigurationError
from fairstream.registry import load_plugins


def test_a_file_is_run_once_and_hides_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text(
        "import sys\nsys.imported_by_the_test = getattr(sys, 'imported_by_the_test', 0) + 1\n"
    )
    monkeypatch.setattr(sys, "imported_by_the_test", 0, raising=False)
    before = sys.modules["json"]
    load_plugins([str(tmp_path / "json.py"), str(tmp_path / "json.py")])
    monkeypatch.chdir(tmp_path)
    load_plugins(["json.py"])  # the same file by another path
    assert vars(sys)["imported_by_the_test"] == 1
    assert sys.modules["json"] is before


def test_a_module_is_imported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_of_my_own.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins(["parts_of_my_own"])
    assert sys.modules.pop("parts_of_my_own").value == 3


@pytest.mark.parametrize("content", [None, "1 / 0", "import nothing_of_this_name", "def"])
def test_a_plugin_that_fails_is_one_sentence_each_time(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    for _ in range(2):
        with pytest.raises(
            ConfigurationError, match=r"^the plugin .*mine\.py cannot be imported: .*; give a module or"
        ):
            load_plugins([str(path)])
