"""A run as a Parquet file: everything comes back, and the same run gives the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream import DataError, Run, compare, evaluation
from fairstream.experiments.jobs import Source
from fairstream.experiments.record import Record
from fairstream.experiments.stored import StoredRun
from stores import alone, small


@pytest.fixture(scope="module")
def run(source: Source) -> Run:
    run = Run(source.read(), small("FADE", min_group_size=1))
    list(run)
    return run


@pytest.fixture(scope="module")
def stored(run: Run) -> StoredRun:
    assert run.pretrained is not None
    return StoredRun.of(run.about(), [run.pretrained, *run.results])


@pytest.fixture(scope="module")
def path(stored: StoredRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "run.parquet"
    path.write_bytes(stored.content())
    return path


def same(one: evaluation.UserResults, other: evaluation.UserResults) -> bool:
    arrays = [(getattr(one, name), getattr(other, name)) for name in ("users", "codes", "is_cold")]
    tensors = [(one.hits, other.hits), (one.n_positives, other.n_positives)]
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in arrays) and all(
        torch.equal(a, b) for a, b in tensors
    )


def test_everything_comes_back(run: Run, stored: StoredRun, path: Path) -> None:
    found = StoredRun.read(path)
    assert found.about == json.loads(json.dumps(stored.about)) == StoredRun.read_about(path)
    assert {name: found.about[name] for name in ("config", "data", "versions")} == json.loads(json.dumps(run.about()))
    assert found.content() == path.read_bytes()
    assert run.pretrained is not None
    results = [run.pretrained, *run.results]
    assert list(found.tests) == [(result.t, task) for result in results for task in ("remain", "next")]
    for result in results:
        for task, judgement in result.tasks.items():
            assert same(found.tests[result.t, task], judgement.tested)
            summary = found.about["results"][result.t]["tasks"][task]["ndcg@5"]
            assert summary["mean"] == judgement.metrics["ndcg@5"].mean
            assert summary["performance_disparity"] == judgement.metrics["ndcg@5"].performance_disparity


K = 4
user_rows = st.lists(
    st.tuples(st.lists(st.booleans(), min_size=K, max_size=K), st.integers(-1, 2), st.booleans(), st.integers(1, 9)),
    max_size=5,
)


@settings(max_examples=25)
@given(parts=st.lists(user_rows, min_size=1, max_size=4))
def test_any_users_come_back_also_when_the_periods_were_stored_apart(
    run: Run, tmp_path_factory: pytest.TempPathFactory, parts: list[Any]
) -> None:
    """Also those without a hit, without a group, cold ones, and a period in which nobody was tested."""
    folder = tmp_path_factory.mktemp("parts")
    made, paths = {}, []
    whole = []
    for t, rows in enumerate(parts):
        hits, codes, cold, positives = ([row[c] for row in rows] for c in range(4))
        tested = evaluation.UserResults(
            np.arange(len(rows), dtype=np.int64),
            np.array(codes, np.int16),
            np.array(cold, np.bool_),
            torch.tensor(hits, dtype=torch.float64).reshape(-1, K),
            torch.tensor(positives, dtype=torch.float64),
        )
        result = with_tests(run, t, tested)
        made[t] = tested
        whole.append(result)
        paths.append(folder / f"{t}.parquet")
        paths[-1].write_bytes(StoredRun.of(about(run), [result]).content())
    joined = StoredRun.joined(StoredRun.read(part) for part in reversed(paths))
    assert joined.content() == StoredRun.of(about(run), whole).content()
    (folder / "joined").write_bytes(joined.content())
    found = StoredRun.read(folder / "joined")
    assert found.tests.keys() == {(t, task) for t in made for task in ("remain", "next")}
    assert all(same(found.tests[t, task], tested) for t, tested in made.items() for task in ("remain", "next"))


def about(run: Run) -> dict[str, Any]:
    return {**run.about(), "config": {**run.about()["config"], "k": K}}


def with_tests(run: Run, t: int, tested: evaluation.UserResults) -> Any:
    result = run.results[0]
    tasks = {task: replace(judgement, tested=tested) for task, judgement in result.tasks.items()}
    return replace(result, t=t, tasks=tasks)


def test_a_stored_run_can_be_compared_as_a_result_file_can(source: Source, run: Run, tmp_path: Path) -> None:
    other = Run(source.read(), small("Finetune"))
    results = [other.begin(), *other]
    (tmp_path / "other").write_bytes(StoredRun.of(other.about(), results).content())
    stored = StoredRun.read(tmp_path / "other").record()
    assert run.pretrained is not None
    own = StoredRun.of(run.about(), [run.pretrained, *run.results]).record()
    by_store = compare([own, stored], n_resamples=50)
    by_document = compare([Record(run.document()), Record(other.document())], n_resamples=50)
    assert by_store == by_document
    assert [contender.label for contender in by_store.contenders] == ["FADE", "Finetune"]


def test_the_same_run_gives_the_same_bytes(source: Source, path: Path, stored: StoredRun) -> None:
    assert alone(source, small("FADE")) == stored.content() == path.read_bytes()
    assert "seconds" not in json.dumps(stored.about)
    assert alone(source, small("FADE", seed=1)) != stored.content()


def test_common_tools_read_the_table(path: Path, stored: StoredRun) -> None:
    assert pq.read_table(path).num_rows == stored.table.num_rows
    tested = stored.tests[1, "remain"]
    query = f"SELECT count(*), sum(len(hit_ranks)) FROM '{path}' WHERE t = 1 AND task = 'remain'"
    assert duckdb.sql(query).fetchall() == [(len(tested.users), int(tested.hits.sum()))]
    ranks = duckdb.sql(f"SELECT min(r), max(r) FROM (SELECT unnest(hit_ranks) AS r FROM '{path}')").fetchall()
    assert ranks == [(1, 5)]


def refused(path: Path) -> bool:
    with pytest.raises(DataError) as caught:
        StoredRun.read(path)
    sentence = str(caught.value)
    return sentence == f"{path} is not a run of a store (format 1); remove it, and it is computed again"


@given(data=st.data())
def test_a_file_that_was_cut_short_is_refused(path: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    content = path.read_bytes()
    cut = tmp_path_factory.mktemp("cut") / "cut.parquet"
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    assert refused(cut)


@given(at=st.integers(4, 400), noise=st.binary(min_size=16, max_size=64))
def test_a_file_that_was_scribbled_on_is_refused_or_read(
    path: Path, tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes
) -> None:
    """Where the values lie: not every change can be noticed there, but none is a traceback."""
    content = path.read_bytes()
    scribbled = tmp_path_factory.mktemp("scribbled") / "scribbled.parquet"
    scribbled.write_bytes(content[:at] + noise + content[at + len(noise) :])
    try:
        StoredRun.read(scribbled)
    except DataError:
        assert refused(scribbled)


def test_what_is_no_run_is_refused(path: Path, tmp_path: Path) -> None:
    table = pq.read_table(path)
    kept = json.loads(table.schema.metadata[b"fairstream"])

    def written(name: str, table: pa.Table, about: Any) -> Path:
        pq.write_table(table.replace_schema_metadata({b"fairstream": json.dumps(about)}), tmp_path / name)
        return tmp_path / name

    pq.write_table(pa.table({"a": [1]}), tmp_path / "plain")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "words").write_text("words")
    assert StoredRun.read(written("sound", table, kept)).about == kept
    wrong = [
        *(tmp_path / name for name in ("plain", "empty", "folder", "words", "nowhere")),
        written("format", table, {**kept, "format": 2}),
        written("list", table, [kept]),
        written("columns", table.drop_columns("user"), kept),
    ]
    assert all(refused(path) for path in wrong)
