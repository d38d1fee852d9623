"""Items are stored as they were described, all of a request or none, on either database and from any file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.data import Columns
from fairstream.errors import ConfigurationError, DataError
from fairstream.service.items import CatalogueReader, items_from_file, items_from_json, listed, set_available, store
from fairstream.service.records import UnknownIdError
from fairstream.service.settings import ItemProperties, LiveConfig
from fairstream.service.workspace import Workspace

NewWorkspace = Callable[..., Workspace]
KINDS = ItemProperties(
    properties={"title": "text", "tags": "texts", "price": "number", "new": "boolean", "since": "time"}
).properties
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "available": st.booleans(),
    "title": st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)),
    "tags": st.one_of(st.none(), st.lists(st.sampled_from("abc"), max_size=3)),
    "price": st.one_of(st.none(), st.integers(-(2**40), 2**40), st.floats(-1e9, 1e9)),
    "new": st.one_of(st.none(), st.booleans()),
    "since": st.one_of(st.none(), st.integers(0, 2**31)),
}
REQUEST = st.lists(st.fixed_dictionaries({"item_id": st.sampled_from("ijklö")}, optional=VALUES), max_size=5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(REQUEST, max_size=4))
def test_fields_that_are_given_replace_null_removes_and_others_stay(
    new_workspace: NewWorkspace, requests: list[list[dict[str, Any]]]
) -> None:
    engine = new_workspace().engine
    reader, expected = CatalogueReader(engine, KINDS), dict[str, dict[str, Any]]()
    for request in requests:
        store(engine, items_from_json(request, KINDS))
        for item in request:
            before = expected.setdefault(item["item_id"], {"available": True})
            before |= {name: value for name, value in item.items() if name != "item_id"}
        described = {
            name: {field: value for field, value in item.items() if value is not None}
            for name, item in expected.items()
        }
        rows = listed(engine, limit=10)
        assert {row.item_id: {"available": row.available, **(row.model_extra or {})} for row in rows} == described
        catalogue = reader.catch_up()
        passes = catalogue.mask("price > 5")[:-1].tolist()
        assert dict(zip(catalogue.item_ids.ids.to_pylist(), passes, strict=True)) == {
            name: item.get("price", 0) > 5 for name, item in described.items()
        }


@pytest.mark.parametrize(
    ("objects", "sentence"),
    [
        ({"item_id": "i"}, "expected a JSON list of objects, one for each item"),
        ([{"item_id": "i"}, 5], "item 2: expected a JSON object"),
        ([{"item_id": ""}], "item 1: item_id must not be empty"),
        ([{"price": 1}], "item 1: item_id is missing"),
        ([{"item_id": 1.5}], "item 1: item_id must be a string or a whole number"),
        ([{"item_id": "i"}, {"item_id": "a\0b"}], "item 2: item_id must not hold control characters"),
        ([{"item_id": "\ud800"}], "item 1: item_id must be valid Unicode"),
        ([{"item_id": "i" * 257}], "item 1: item_id must have at most 256 characters"),
        ([{"item_id": "i", "colour": "red"}], "item 1: 'colour' is not a property; [items] properties in"),
        ([{"item_id": "i", "available": None}], "item 1: available must be true or false"),
        ([{"item_id": "i", "price": "5"}], "item 1: price must be a finite number"),
        ([{"item_id": "i", "price": True}], "item 1: price must be a finite number"),
        ([{"item_id": "i", "price": float("nan")}], "item 1: price must be a finite number"),
        ([{"item_id": "i", "price": 10**400}], "item 1: price must be a finite number"),
        ([{"item_id": "i", "title": 5}], "item 1: title must be a string"),
        ([{"item_id": "i", "title": "\0"}], "item 1: title must be a string"),
        ([{"item_id": "i", "title": "\ud800"}], "item 1: title must be a string"),
        ([{"item_id": "i", "title": "x" * 20_001}], "item 1: title must be a string of at most 20000"),
        ([{"item_id": "i", "tags": "a"}], "item 1: tags must be a list of at most"),
        ([{"item_id": "i", "tags": ["a", 1]}], "item 1: tags must be a list of at most"),
        ([{"item_id": "i", "new": 1}], "item 1: new must be true or false"),
        ([{"item_id": "i", "since": "soon"}], "item 1: since must be seconds since 1970 or ISO 8601"),
    ],
)
def test_a_bad_item_is_named_by_its_row_and_property(objects: Any, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        items_from_json(objects, KINDS)
    assert str(caught.value).startswith(sentence)


def test_an_unknown_item_has_a_sentence_and_one_item_can_be_withdrawn(new_workspace: NewWorkspace) -> None:
    from fairstream.service.items import item

    engine = new_workspace().engine
    with pytest.raises(UnknownIdError, match="no item 'i'"):
        item(engine, "i")
    store(engine, items_from_json([{"item_id": "i", "price": 3}], KINDS))
    set_available(engine, "i", False)
    store(engine, items_from_json([{"item_id": "i", "price": 4}], KINDS))  # a price says nothing about stock
    assert (item(engine, "i").available, item(engine, "i").model_extra) == (False, {"price": 4})


TABLE = pa.table(
    {
        "product_id": ["007", "8"],
        "title": [None, "Tea"],
        "tags": [["a", "b"], None],
        "price": [2.5, None],
        "since": pa.array([0, 10**6], pa.timestamp("us")),
        "available": [True, False],
    }
)
DESCRIBED = [
    {"item_id": "007", "title": None, "tags": ["a", "b"], "price": 2.5, "since": 0.0, "available": True},
    {"item_id": "8", "title": "Tea", "tags": None, "price": None, "since": 1.0, "available": False},
]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_any_table_describes_items(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"items{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(TABLE, path)
    elif suffix == ".csv":
        pyarrow.csv.write_csv(TABLE.set_column(2, "tags", pa.array(["a|b", None])), path)
    else:
        rows = [{**row, "since": int(row["since"].timestamp())} for row in TABLE.to_pylist()]
        path.write_text("\n".join(map(json.dumps, rows)))
    assert [item for part in items_from_file(path, Columns(), KINDS) for item in part] == DESCRIBED


def test_the_command_stores_files_and_lists_the_catalogue(tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["items", str(tmp_path / "w"), *map(str, arguments)])

    CliRunner().invoke(app, ["init", str(tmp_path / "w")], catch_exceptions=False)
    path = tmp_path / "items.csv"
    path.write_text("item_id,price,category\nboot,79.9,shoes\n42,5,\n")
    assert "2 items were stored" in run(path).stdout
    shown = run("--list", "--limit", 1)
    assert "price = 5" in shown.stdout
    assert "--cursor 42 shows the next page" in shown.stdout
    (item,) = json.loads(run("--list", "--cursor", "42", "--json", "-", "--quiet").stdout)["items"]
    assert (item["item_id"], item["price"], item["category"]) == ("boot", 79.9, "shoes")
    path.write_text("item_id,colour\nboot,red\n")
    refused = run(path).exception
    assert isinstance(refused, DataError)
    assert "items.csv: item 1: 'colour' is not a property" in str(refused)
    assert isinstance(run().exception, ConfigurationError)


@pytest.mark.parametrize("properties", [{"not": "text"}, {"item_id": "text"}, {"a b": "text"}, {"a": "string"}])
def test_properties_have_names_and_types_that_a_filter_can_read(properties: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        LiveConfig(items={"properties": properties})
