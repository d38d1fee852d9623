"""A finished run as a file: everything comes back from Parquet and JSON, and what is no run is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream
from fairstream import DataError, EventLog, Record, Run, compare
from fairstream.evaluation import UserResults
from fairstream.experiments import Source, Store, run_id
from fairstream.experiments.compare import read_runs
from fairstream.experiments.record import FORMAT
from fairstream.files import to_json, write_file
from stores import alone, small, stored
from support import made_run


@pytest.fixture(scope="module")
def run(source: Source) -> Run:
    run = Run(source.read(), small("FADE", n_resamples=20))
    list(run)
    return run


@pytest.fixture(scope="module")
def path(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in a store."""
    store = Store(tmp_path_factory.mktemp("store"))
    with store.writing():
        store.write("run", Record.from_document(run.document()))
    return store.path("run")


def as_json(document: Any) -> Any:
    """The document as it comes back from a file; fails on NaN and infinity, which JSON has not."""
    return json.loads(json.dumps(document, allow_nan=False))


def same(one: UserResults, other: UserResults) -> bool:
    names = ("users", "codes", "is_cold", "hits", "n_positives", *(() if one.n_lists is None else ("n_lists",)))
    arrays = [(getattr(one, name), getattr(other, name)) for name in names]
    return (one.n_lists is None) == (other.n_lists is None) and all(
        np.array_equal(a, b) and a.dtype == b.dtype for a, b in arrays
    )


# ── what comes back ──────────────────────────────────────────────────────────────────────


def test_a_stored_run_is_the_whole_document(run: Run, path: Path, tmp_path: Path) -> None:
    """Intervals, summary, slices and seconds included: nothing is left out and nothing made up."""
    write_file(tmp_path / "run.json", to_json(run.document()).encode())
    for record in (Record.read(path), Record.read(str(tmp_path / "run.json"))):
        assert record.document == as_json(run.document())
        assert (record.seed, record.config) == (0, as_json(run.config.model_dump()))
        assert [result["t"] for result in record.results] == [0, 1, 2]
        for result in (run.begin(), *run.results):
            for task, evaluation in result.tasks.items():
                assert same(record.tests[result.t, task], evaluation.tested)


def test_a_copy_of_a_run_file_alone_lacks_the_seconds_and_nothing_else(run: Run, path: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.parquet").write_bytes(path.read_bytes())
    assert Record.read(tmp_path / "copy.parquet").document == {**as_json(run.document()), "timing": None}
    # with them in the file where no store keeps them
    (tmp_path / "whole.parquet").write_bytes(Record.from_document(run.document()).content())
    assert Record.read(tmp_path / "whole.parquet").document == as_json(run.document())


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(source: Source, path: Path, run: Run) -> None:
    config = small("FADE", n_resamples=20)
    assert alone(source, config) == stored(run).content() == path.read_bytes()
    assert alone(source, small("FADE", n_resamples=20, seed=1)) != path.read_bytes()


K = 4
user_rows = st.lists(
    st.tuples(st.lists(st.booleans(), min_size=K, max_size=K), st.integers(-1, 1), st.booleans(), st.integers(1, 9)),
    max_size=5,
)


@given(parts=st.lists(user_rows, min_size=1, max_size=4))
def test_any_users_come_back(tmp_path_factory: pytest.TempPathFactory, parts: list[Any]) -> None:
    """Also those without a hit, without a group, cold ones, and a period in which nobody was tested."""
    document = made_run([[0]] * len(parts), [0], k=K)
    expected = {}
    for result, rows in zip(document["periods"], parts, strict=True):
        hits, codes, cold, positives = ([row[c] for row in rows] for c in range(4))
        tested = UserResults(
            np.arange(len(rows), dtype=np.int64),
            np.array(codes, np.int16),
            np.array(cold, np.bool_),
            np.array(hits, np.bool_).reshape(-1, K),
            np.array(positives, np.int64),
        )
        for task in result["tasks"]:
            result["tasks"][task] = {"tested": tested.to_dict()}
            expected[result["t"], task] = tested
    path = tmp_path_factory.mktemp("any") / "run.parquet"
    path.write_bytes(Record.from_document(document).content())
    tests = Record.read(path).tests
    assert all(same(tests[at], tested) for at, tested in expected.items())


def test_common_tools_read_the_table(path: Path, run: Run) -> None:
    tested = run.results[0].tasks["remain"].tested
    query = f"SELECT count(*), sum(len(hit_ranks)) FROM '{path}' WHERE t = 1 AND task = 'remain'"
    assert duckdb.sql(query).fetchall() == [(len(tested.users), int(tested.hits.sum()))]
    ranks = duckdb.sql(f"SELECT min(r), max(r) FROM (SELECT unnest(hit_ranks) AS r FROM '{path}')").fetchall()
    assert ranks == [(1, 5)]


@pytest.mark.slow
def test_runs_compare_alike_in_whatever_form_they_are_given(source: Source, run: Run, tmp_path: Path) -> None:
    other = Run(source.read(), small("Finetune", n_resamples=20))
    list(other)
    store = Store(tmp_path / "store")
    with store.writing():
        for one in (run, other):
            store.write(run_id(one.log, one.config), Record.from_document(one.document()))
    (tmp_path / "json").mkdir()
    write_file(tmp_path / "json" / "run.json", to_json(run.document()).encode())
    fade_file = store.path(run_id(run.log, run.config))
    expected = compare([run, other], n_resamples=50)
    forms: list[Any] = [
        store,
        store.folder,
        str(store.folder),
        [tmp_path / "json", other],
        [fade_file, Record.from_document(other.document())],
        [tmp_path / "json" / "run.json", store],  # FADE twice, which counts once
    ]
    for runs in forms:
        comparison = compare(runs, n_resamples=50)
        assert {contender.label for contender in comparison.contenders} == {"FADE", "Finetune"}
        ours, theirs = ({c.label: c for c in each.contenders} for each in (comparison, expected))
        assert ours == theirs
    assert len(read_runs(store.folder)) == 2


def test_the_surrogate_is_a_setting_where_there_is_a_fairness_loss() -> None:
    def settings_of(**options: Any) -> dict[str, Any]:
        return Record.from_document(made_run([[1, 2]], [0, 1], **options)).settings

    fade = [settings_of(method="FADE", surrogate=name) for name in ("hit", "neural-ndcg")]
    assert fade[0] != fade[1]
    finetune = [settings_of(method="Finetune", surrogate=name) for name in ("hit", "neural-ndcg")]
    assert finetune[0] == finetune[1]


# ── what is refused ──────────────────────────────────────────────────────────────────────


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        _ = Record.read(path).tests
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} ")
    assert "\n" not in sentence
    assert not re.search(r"[.!?] [A-Z]", sentence)
    return sentence


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "nowhere.json")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    with pytest.raises(DataError, match="holds no runs; give a store"):
        read_runs(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"config": ', b"config: 1"])
def test_what_is_no_json_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content)
    assert "is not JSON; give a store, a run file of it, or what" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize("document", [3, None, [], {}, "run", {"config": {}}, {"contenders": [], "verdicts": []}])
def test_json_that_is_no_run_is_refused(document: Any, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert "is not a finished run; give a store" in refusal(tmp_path / "run.json")


def test_a_run_that_was_exported_before_its_first_period_is_not_finished(log: EventLog, tmp_path: Path) -> None:
    write_file(
        tmp_path / "run.json", to_json(fairstream.run(log, model="mf", n_periods=3, device="cpu").document()).encode()
    )
    assert "is not a finished run" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize("part", ["config", "data", "pretrained", "periods", "summary", "slices", "users"])
def test_a_run_that_lacks_a_part_is_refused(part: str, tmp_path: Path) -> None:
    document = made_run([[1, 2]], [0, 1])
    if part == "users":
        del document["periods"][0]["tasks"]["next"]["tested"]
    else:
        del document[part]
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert "is not a finished run" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("part", "content"),
    [("periods", [{}]), ("periods", [1]), ("periods", {"1": {}}), ("config", None), ("config", {}), ("data", 3)],
)
def test_a_run_whose_parts_are_none_is_refused(part: str, content: Any, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**made_run([[1, 2]], [0, 1]), part: content}))
    assert "is not a finished run" in refusal(tmp_path / "run.json")


def is_no_run_file(path: Path) -> bool:
    return refusal(path) == f"{path} is not a run of a store (format {FORMAT}); remove it, and it is computed again"


@given(data=st.data())
def test_a_file_that_was_cut_short_is_refused(path: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    content = path.read_bytes()
    cut = tmp_path_factory.mktemp("cut") / "cut.parquet"
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    assert is_no_run_file(cut)


@given(at=st.integers(4, 400), noise=st.binary(min_size=16, max_size=64))
def test_a_file_that_was_overwritten_in_part_is_refused_or_read(
    path: Path, tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes
) -> None:
    """Where the values are: not every change can be noticed there, but none is a traceback."""
    content = path.read_bytes()
    damaged = tmp_path_factory.mktemp("damaged") / "damaged.parquet"
    damaged.write_bytes(content[:at] + noise + content[at + len(noise) :])
    try:
        _ = Record.read(damaged).tests
    except DataError:
        assert is_no_run_file(damaged)


def test_parquet_that_is_no_run_is_refused(path: Path, tmp_path: Path) -> None:
    table, metadata = pq.read_table(path), pq.read_metadata(path).metadata
    about = json.loads(metadata[b"fairstream"])

    def written(name: str, table: pa.Table, about: Any, results: bytes = metadata[b"fairstream.results"]) -> Path:
        with pq.ParquetWriter(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({"fairstream": json.dumps(about), "fairstream.results": results})
        return tmp_path / name

    assert Record.read(written("sound", table, about)).about["config"] == about["config"]
    pq.write_table(pa.table({"a": [1]}), tmp_path / "plain")
    wrong = [
        tmp_path / "plain",
        written("format", table, {**about, "format": 1}),
        written("list", table, [about]),
        written("columns", table.drop_columns("user"), about),
        *(written(f"results {n}", table, about, results) for n, results in enumerate((b"", b"!", b"eJw="))),
    ]
    assert all(is_no_run_file(path) for path in wrong)


def test_damaged_seconds_are_named(path: Path, tmp_path: Path) -> None:
    for folder in ("runs", "times"):
        (tmp_path / folder).mkdir()
    (tmp_path / "runs" / "x.parquet").write_bytes(path.read_bytes())
    (tmp_path / "times" / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x\.json is damaged; remove it: only the run's seconds are lost"):
        Record.read(tmp_path / "runs" / "x.parquet")
