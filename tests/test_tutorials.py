"""The tutorials run as they stand, cell by cell, and what they show can be shown."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TUTORIALS = sorted(
    page for page in (Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md") if page.stem != "index"
)


def run_cell(code: str, names: dict[str, Any]) -> Any:
    """What a cell shows: the value of its last expression, None where it ends with a statement."""
    tree = ast.parse(code)
    shown = (
        ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else ast.parse("None", "", "eval")
    )
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(shown, "cell", "eval"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("default::DeprecationWarning")  # of what draws and of frames, not of ours
def test_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import altair as alt

    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"tutorial_{page.stem.replace('-', '_')}")  # classes of its own can be pickled
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with alt.renderers.enable("default"):
        blocks = re.findall(r"```\{code-cell\} ipython3\n((?::[^\n]*\n)*)(.*?)```", page.read_text(), flags=re.DOTALL)
        assert len(blocks) >= 7
        for _, code in blocks:
            shown = run_cell(code, module.__dict__)
            if isinstance(shown, alt.TopLevelMixin):
                shown.to_dict(validate=True)
            elif hasattr(shown, "_repr_html_"):
                assert shown._repr_html_()


def test_there_are_five_tutorials() -> None:
    assert len(TUTORIALS) == 5
