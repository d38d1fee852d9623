"""`run`, `sweep` and `compare` on one store: what is finished is not repeated, and every command reads it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner, Result

from fairstream import Record, RunConfig, read_events, run
from fairstream.cli import app
from fairstream.cli.run import with_config_options
from fairstream.experiments import Store
from fairstream.experiments.sweep import combinations
from stores import DIVERGING, FAST, write_stream

Command = Callable[..., Result]
READING = ("--group", "community", "--advantaged", "majority")
PLAIN = {name: value for name, value in FAST.items() if name != "model_settings"}
SETTINGS = [f"--set={name}={value}" for name, value in FAST["model_settings"].items()]
PLAIN_OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in PLAIN.items()]
OPTIONS = ["--model=mf", "--task=next", *PLAIN_OPTIONS, *SETTINGS]
SET = [
    "--set=model=mf",
    "--set=tasks=next",
    *(f"--set={name}={value}" for name, value in PLAIN.items() if name != "device"),
    *SETTINGS,
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stream(tmp_path_factory.mktemp("data") / "stream")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`fairstream` with these arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}


@pytest.mark.slow
def test_a_store_of_seeds_is_resumed_and_exports_what_python_gives(
    command: Command, data: Path, tmp_path: Path
) -> None:
    arguments = ("run", data, *READING, *OPTIONS, "--method=finetune", "--store=results", "--workers=1")
    assert command(*arguments, "--seed=3").exit_code == 0
    before = stamps(tmp_path / "results")
    outcome = command(*arguments, "--seed=3", "--seeds=2", "--json=out.json")
    assert outcome.exit_code == 0, outcome.output
    assert "mean of 2 seeds" in outcome.output
    assert before.items() < stamps(tmp_path / "results").items()
    log = read_events(data, group="community", advantaged="majority")
    for seed in (3, 4):  # the first was in the store before
        expected = run(log, "finetune", model="mf", seed=seed, tasks=("next",), **FAST)
        list(expected)
        exported = json.loads((tmp_path / f"out-seed{seed}.json").read_text())
        exported["timing"] = expected.document()["timing"]
        assert list(exported.pop("baselines")) == ["popularity", "recent-popularity"]
        assert exported == json.loads(json.dumps(expected.document()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "note"),
    [("gru", "items have no features"), ("mf", "the model mf does not read features of items: they have no effect")],
)
def test_items_are_described_by_a_file(command: Command, data: Path, tmp_path: Path, name: str, note: str) -> None:
    ids = read_events(data).item_ids.ids[1:]
    described = pa.table({"item_id": ids, "kind": [f"k{item % 3}" for item in ids.to_pylist()]})
    pq.write_table(described, tmp_path / "items.parquet")
    arguments = (data, *READING, "--items=items.parquet")
    outcome = command("run", *arguments, *OPTIONS, f"--model={name}", "--json=out.json")
    assert outcome.exit_code == 0, outcome.output
    assert note in " ".join(outcome.output.split())
    log = read_events(data, group="community", advantaged="majority", items=tmp_path / "items.parquet")
    expected = run(log, model=name, tasks=("next",), **FAST)
    list(expected)
    assert json.loads((tmp_path / "out.json").read_text())["summary"] == json.loads(json.dumps(expected.summary()))
    assert command("sweep", *arguments, *SET, "--grid=method=FADE", f"--set=model={name}", "--workers=1").exit_code == 0


@pytest.mark.slow
def test_json_on_standard_output_is_all_there_is(command: Command, data: Path, tmp_path: Path) -> None:
    outcome = command("run", data, *READING, *OPTIONS, "--json=-")
    assert outcome.exit_code == 0
    config = json.loads(outcome.stdout)["config"]
    assert (config["method"], config["target"]) == ("Finetune", "least-regret")
    assert list(tmp_path.iterdir()) == []
    several = command("run", data, *READING, *OPTIONS, "--json=-", "--seeds=2", "--workers=1")
    assert [run["config"]["seed"] for run in json.loads(several.stdout)["runs"]] == [0, 1]


@pytest.mark.slow
def test_compare_reads_stores_run_files_and_json_together(command: Command, data: Path, tmp_path: Path) -> None:
    common = (data, *READING)
    assert command("sweep", *common, *SET, "--grid=method=FADE,Finetune", "--store=swept", "--workers=1").exit_code == 0
    assert command("run", *common, *OPTIONS, "--method=retrain", "--store=single", "--workers=1").exit_code == 0
    assert command("run", *common, *OPTIONS, "--method=pretrain", "--json=pretrain.json").exit_code == 0
    (file,) = (tmp_path / "single" / "runs").iterdir()
    outcome = command("compare", "swept", file, "pretrain.json", "--json=-")
    assert outcome.exit_code == 0, outcome.exception
    comparison = json.loads(outcome.stdout)
    labels = {contender["label"] for contender in comparison["contenders"]}
    assert labels == {"FADE", "Finetune", "Retrain", "Pretrain"}


def test_a_sweep_says_which_runs_failed_and_compares_the_others(command: Command, data: Path, tmp_path: Path) -> None:
    grid = ("--grid=method=Finetune,Pretrain", "--grid=l2=0.0", "--store=results", "--workers=1")
    diverging = [
        f"--set={name}={value}"
        for name, value in {"model": "mf", **PLAIN, **DIVERGING}.items()
        if name not in ("device", "l2")
    ]
    outcome = command("sweep", data, *READING, *diverging, *SETTINGS, *grid)
    assert outcome.exit_code == 2
    assert "Finetune (mf, seed 0): " in outcome.stderr
    assert "one combination finished: there is nothing to compare" in outcome.stdout
    assert [record.config["method"] for record in Store.opened(tmp_path / "results").records()] == ["Pretrain"]


def test_a_grid_of_one_cell_is_no_failure_and_a_larger_one_reuses_it(
    command: Command, data: Path, tmp_path: Path
) -> None:
    common = ("sweep", data, *READING, *SET, "--store=results", "--workers=1")
    assert command(*common, "--grid=fairness-weight=1").exit_code == 0
    before = stamps(tmp_path / "results")
    outcome = command(*common, "--grid=fairness-weight=1,2", "--json=comparison.json")
    assert outcome.exit_code == 0, outcome.output
    assert before.items() < stamps(tmp_path / "results").items()
    contenders = json.loads((tmp_path / "comparison.json").read_text())["contenders"]
    assert [contender["label"] for contender in contenders] == ["FADE fairness_weight=1.0", "FADE fairness_weight=2.0"]
    assert all(record.config["n_resamples"] == 0 for record in Store.opened(tmp_path / "results").records())


@pytest.mark.slow
def test_settings_of_a_model_are_given_by_set(command: Command, data: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "wide.py"
    plugin.write_text(
        "import fairstream as fs\n"
        "from fairstream.models import MFScorer\n"
        "class Wide(MFScorer):\n"
        "    def __init__(self, n_users, n_items, *, width=4):\n"
        "        super().__init__(n_users, n_items, embedding_dim=width)\n"
        "if 'wide-of-a-plugin' not in fs.models.MODELS:\n"
        "    fs.register_model('wide-of-a-plugin', Wide)\n"
    )
    own = ("--model=wide-of-a-plugin", "--plugin=wide.py", "--set=width=8", "--json=out.json")
    summaries = []
    for model in (own, ("--model=mf", *SETTINGS, "--json=out.json")):
        outcome = command("run", data, *READING, "--task=next", *PLAIN_OPTIONS, *model)
        assert outcome.exit_code == 0, outcome.output
        document = json.loads((tmp_path / "out.json").read_text())
        summaries.append((document["summary"], document["config"]["model_settings"]))
    assert [settings for _, settings in summaries] == [{"width": 8}, {"embedding_dim": 8}]
    assert summaries[0][0] == summaries[1][0]
    for wrong, sentence in (("width=8", "width is not a setting of mf"), ("model-settings=8", "values by name")):
        outcome = command("sweep", data, *READING, *SET, f"--set={wrong}", "--grid=fairness-weight=1", "--workers=1")
        assert sentence in str(outcome.exception)


def test_a_plugin_is_imported_before_anything_else(command: Command, data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('imported')")
    outcome = command("sweep", "nowhere", "--grid=nothing=1", "--plugin=mine.py")
    assert "the plugin mine.py cannot be imported: RuntimeError: imported" in str(outcome.exception)


def test_every_field_of_the_configuration_is_an_option_and_tuples_can_be_repeated() -> None:
    class Wider(RunConfig):
        metrics: tuple[str, ...] = Field((), description="More metrics.")
        number_of_mine: float | None = Field(None, description="A number.")

    configs: list[Wider] = []

    @with_config_options(Wider.model_fields)
    def command(data: str, *, options: dict[str, Any]) -> None:
        configs.append(Wider(**options))

    wider = typer.Typer()
    wider.command()(command)
    arguments = ["x", "--metric=a@5", "--metric=b@5", "--number-of-mine=0", "--method=retrain"]
    assert CliRunner().invoke(wider, arguments).exit_code == 0
    assert configs == [Wider(metrics=("a@5", "b@5"), number_of_mine=0.0, method="Retrain")]
    assert CliRunner().invoke(wider, ["x"]).exit_code == 0
    assert configs[1] == Wider()
    assert set(inspect.signature(command).parameters) == {"data", "set", *Wider.model_fields} - {"model_settings"}


def test_an_option_takes_every_kind_of_value_that_its_field_takes() -> None:
    given: list[dict[str, Any]] = []

    @with_config_options(RunConfig.model_fields)
    def command(*, options: dict[str, Any]) -> None:
        given.append(RunConfig(**options).model_dump(include={"threads", "period"}))

    app = typer.Typer()
    app.command()(command)
    for arguments in (["--threads=auto", "--period=300"], ["--threads=2", "--set=period=300"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert given == [{"threads": "auto", "period": "300"}, {"threads": 2, "period": "300"}]


def test_seeds_can_be_a_grid() -> None:
    configs = combinations({"seed": [3, 4], "model": ["mf"]}, range(1))
    assert [config.seed for config in configs] == [3, 4]


def test_a_sweep_prints_what_its_runs_did_not_do_for_fairness(command: Command, data: Path) -> None:
    options = (
        "--set=model=item-item",
        "--set=method=FADE",
        *(each for each in SET[1:] if "embedding" not in each),
        "--workers=1",
    )
    outcome = command("sweep", data, *READING, *options, "--grid=ridge=5,50", "--store=results")
    assert outcome.exit_code == 0, outcome.output
    assert "the fairness loss signed has no effect" in outcome.stdout


@pytest.mark.slow
def test_a_run_file_shows_the_tables_of_its_run(command: Command, data: Path, tmp_path: Path) -> None:
    """Also where the seconds are gone: they are shown as not known."""
    arguments = ("run", data, *READING, *OPTIONS, "--store=results", "--workers=1")
    first = command(*arguments)
    assert first.exit_code == 0
    assert of_the_run(command(*arguments)) == of_the_run(first)
    for file in (tmp_path / "results" / "times").iterdir():
        file.unlink()
    (file,) = (tmp_path / "results" / "runs").iterdir()
    assert Record.read(file).document["timing"] is None
    without = command(*arguments)
    assert without.exit_code == 0
    assert of_the_run(without) != of_the_run(first)


def of_the_run(outcome: Result) -> list[str]:
    """What was printed, without the rows of popularity, which are measured anew each time."""
    return [line for line in outcome.output.splitlines() if not re.match(r" *mean +(popularity|recent)\b", line)]


# ── tasks ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_task_is_named_alike_in_run_and_compare(command: Command, data: Path, tmp_path: Path) -> None:
    for method in ("finetune", "fade"):
        arguments = (f"--method={method}", "--task=event", "--store=results", "--workers=1")
        outcome = command("run", data, *READING, *OPTIONS, *arguments)
        assert outcome.exit_code == 0, outcome.output
        assert "evaluated on the next period (Task-N)" in outcome.output
        assert "Task-R" not in outcome.output
    for task, named in (((), "next"), (("--task=event",), "event")):
        outcome = command("compare", "results", *task, "--json=compared.json")
        assert outcome.exit_code == 0, outcome.output
        assert json.loads((tmp_path / "compared.json").read_text())["task"] == named
    outcome = command("compare", "results", "--task=remain")
    assert "task must be one of next, event, got 'remain'" in str(outcome.exception)


def test_a_sweep_says_before_it_starts_that_its_runs_lack_the_task(
    command: Command, data: Path, tmp_path: Path
) -> None:
    every_task = [option for option in SET if option != "--set=tasks=next"]
    arguments = ("sweep", data, *READING, *every_task, "--grid=method=FADE,Rerank", "--workers=1", "--store=results")
    outcome = command(*arguments, "--task=event")
    assert "for Rerank under strict one of remain, next, got 'event'" in str(outcome.exception)
    assert not (tmp_path / "results").exists()
    outcome = command(*arguments, "--set=tasks=next", "--json=compared.json")
    assert outcome.exit_code == 0, outcome.output
    assert json.loads((tmp_path / "compared.json").read_text())["task"] == "next"
    assert all(record.tasks == ["next"] for record in Store("results").records())


@pytest.mark.slow
def test_any_runs_become_a_page(command: Command, data: Path, tmp_path: Path) -> None:
    options = (*SET, "--grid=method=FADE,Finetune", "--seeds=2", "--store=swept", "--workers=1", "--device=cpu")
    assert command("sweep", data, *READING, *options).exit_code == 0
    outcome = command("report", "swept", "--json=-")
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(outcome.stdout)
    page = (tmp_path / "report.html").read_text()
    assert sorted(document["methods"]) == ["FADE", "Finetune"]
    for contender in document["comparison"]["contenders"]:
        assert f"{contender['performance']['value']:.4f}" in page
        assert f"{contender['disparity']['value']:.4f}" in page
    assert all(verdict in page for verdict in document["verdicts"])
    again = command("report", *(tmp_path / "swept" / "runs").iterdir(), "--output=again.html", "--quiet")
    assert (again.exit_code, again.output) == (0, "")
    assert all(
        f"{contender['performance']['value']:.4f}" in (tmp_path / "again.html").read_text()
        for contender in document["comparison"]["contenders"]
    )

    alone = command("run", data, *READING, *OPTIONS, "--seed=7", "--json=one.json")
    assert alone.exit_code == 0
    assert json.loads(command("report", "one.json", "--json=-").stdout)["comparison"] is None


@pytest.mark.slow
def test_runs_without_groups_become_a_page_that_says_so(command: Command, data: Path, tmp_path: Path) -> None:
    bare = tmp_path / "events.parquet"
    pq.write_table(pq.read_table(data / "interactions.parquet"), bare)
    for method in ("FADE", "Retrain"):
        outcome = command("run", bare, *OPTIONS, f"--method={method}", f"--json={method}.json")
        assert outcome.exit_code == 0, outcome.output
        assert "there are no groups: nothing is done for fairness" in " ".join(outcome.output.split())
        assert "PD" not in outcome.stdout
    document = json.loads(command("report", "FADE.json", "Retrain.json", "--json=-").stdout)
    assert "made without groups" in document["notes"][0]
    assert "without groups" in (tmp_path / "report.html").read_text()
    refused = command("frontier", bare, "--model=item-item")
    assert "a frontier is about the gap between groups of users, but the log has none" in str(refused.exception)


def test_what_cannot_be_one_page_is_one_sentence(command: Command, data: Path, tmp_path: Path) -> None:
    assert command("run", data, *READING, *OPTIONS, "--json=a.json").exit_code == 0
    half = pq.read_table(data / "interactions.parquet").slice(0, 900)
    other = tmp_path / "other"
    other.mkdir()
    pq.write_table(half, other / "interactions.parquet")
    pq.write_table(pq.read_table(data / "users.parquet"), other / "users.parquet")
    assert command("run", other, *READING, *OPTIONS, "--json=b.json").exit_code == 0
    assert "on different events" in str(command("report", "a.json", "b.json").exception)
    assert "--figures writes those of the paper" in str(command("report", "a.json", "--figures=f").exception)
    assert not (tmp_path / "report.html").exists()
