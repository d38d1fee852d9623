"""`fairstream report` on stores as they are: just begun, and not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import ConfigurationError, DataError
from fairstream.experiments.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A store with a plan, of which nothing is done yet."""
    store = Store(tmp_path / "store")
    run = {"dataset": "movielens-1m", "model": "MF", "method": "Finetune", "options": {}, "seed": 0, "id": "none"}
    with store.writing():
        store.write_note("plan", {"protocol": "paper", "quick": False, "runs": [run]})
    return store.folder


def report(*arguments: object) -> str:
    """What the command prints where all goes well."""
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_store_that_was_just_begun_gives_a_page(begun: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert "open it in any browser" in report(begun, "--output", page)
    text = page.read_text()
    assert "1 planned run is not in the store" in text
    assert "0.8070" in text  # the first number of the paper's first figure


@pytest.mark.slow
def test_a_store_that_was_just_begun_gives_pictures(begun: Path, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    said = report(begun, "--output", tmp_path / "page.html", "--figures", pictures, "--format", "svg")
    assert (pictures / "fig-observation.svg").read_text().startswith("<svg")
    assert f"{len(list(pictures.iterdir()))} pictures" in said


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (["nowhere"], DataError, "nowhere"),
        (["store", "--output", "nowhere/page.html"], ConfigurationError, "there is no folder"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: type, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["report", *arguments])
    assert isinstance(done.exception, error)
    assert sentence in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == [begun.name]
