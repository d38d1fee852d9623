"""What is public, where it may import from, and that the papers say where things are."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

import fairstream

ROOT = Path(__file__).resolve().parents[1]
PAPER_MAP = ROOT / "docs" / "reference" / "paper-map.md"


def _isort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then everything else: how ruff (RUF022) sorts `__all__`."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return kind, name


def test_all_is_sorted_and_has_no_doubles() -> None:
    assert fairstream.__all__ == sorted(set(fairstream.__all__), key=_isort_key)


def imported_names() -> dict[str, str]:
    """The names that `fairstream/__init__.py` imports for type checkers, and from which modules."""
    source = ast.parse(Path(fairstream.__file__).read_text())
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    return {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}


def test_all_holds_every_public_name_and_each_is_what_type_checkers_see() -> None:
    names = imported_names()
    assert {names.pop(module) for module in ("models", "testing")} == {"fairstream"}
    assert set(fairstream.__all__) - {"__version__"} == names.keys()
    for name, module in names.items():
        assert getattr(fairstream, name) is getattr(import_module(module), name)


@pytest.mark.slow
def test_names_that_need_no_model_do_not_load_pytorch() -> None:
    code = (
        "import sys, fairstream, fairstream.cli; fairstream.read_events; fairstream.EventLog; fairstream.DataError; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_evaluating_lists_and_checking_splits_does_without_pytorch(tmp_path: Path) -> None:
    """From Python and on the command line, groups, permutations and bootstrap included."""
    code = """
import sys, pyarrow as pa, pyarrow.csv, fairstream, fairstream.cli
users = list(range(40))
lists = pa.table({"user": users, "item": [user % 3 for user in users], "rank": [1] * 40})
truth = pa.table({"user": users, "item": [0] * 40, "time": users, "group": ["a", "b"] * 20})
found = fairstream.evaluate_recommendations({"one": lists, "two": lists}, truth, group="group", n_resamples=10)
assert found["one"]["hit@20"].p_value is not None
assert fairstream.leakcheck(truth, truth).leaks
pa.csv.write_csv(lists, "lists.csv")
pa.csv.write_csv(truth, "truth.csv")
for arguments in (["evaluate", "lists.csv", "truth.csv"], ["leakcheck", "truth.csv", "truth.csv"]):
    sys.argv = ["fairstream", *arguments]
    try:
        fairstream.cli.main()
    except SystemExit as leaving:
        assert not leaving.code, leaving.code
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", fairstream.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(fairstream, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert value.__doc__ is not None  # its own: a class does not inherit __doc__
        assert value.__doc__.strip()
        assert value.__module__.startswith("fairstream.")


def test_every_error_is_a_fairstream_error() -> None:
    errors = [getattr(fairstream, name) for name in fairstream.__all__ if name.endswith("Error")]
    assert len(errors) == 6
    assert all(issubclass(error, fairstream.FairstreamError) for error in errors)


def test_the_version_is_that_of_the_package() -> None:
    assert fairstream.__version__ == version("fairstream")


def test_the_package_is_typed() -> None:
    assert (files("fairstream") / "py.typed").is_file()


def test_a_room_imports_only_the_rooms_below_it() -> None:
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", done.stdout)


def test_every_path_in_the_paper_map_exists() -> None:
    if not PAPER_MAP.is_file():
        pytest.skip("there is no docs/reference/paper-map.md yet")
    # `src/fairstream/objectives/bpr.py`, and `tests/objectives/test_bpr.py::test_name` too
    found = re.findall(r"`((?:src|tests|docs)/[\w./-]+)(?:::(\w+))?`", PAPER_MAP.read_text())
    assert found
    missing = [path for path, _ in found if not (ROOT / path).exists()]
    assert not missing
    unknown = [(path, name) for path, name in found if name and f"def {name}(" not in (ROOT / path).read_text()]
    assert not unknown
