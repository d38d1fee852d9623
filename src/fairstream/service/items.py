"""The catalogue: items with their properties, from JSON and files, and whether they may be recommended."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, Field
from sqlalchemy import Engine, select, text, tuple_

from fairstream.data.catalogue import Catalogue
from fairstream.data.filters import Kind, seconds_since_1970
from fairstream.data.reading import Columns, combined, open_source
from fairstream.errors import DataError
from fairstream.service import schema
from fairstream.service.database import bump, canonical, now, reading, writing
from fairstream.service.incoming import Rows, check_ids, checked_objects, ids_from_values
from fairstream.service.records import Record, Time, UnknownIdError
from fairstream.service.settings import FILE, ItemProperties

_items = schema.items
_MAX_TEXT, _MAX_TEXTS = 20_000, 1_000
_ROWS_AT_ONCE = 2_000  # more would hold up requests for lists, while JSON is read and written
_ROWS_OF_A_CHANGE = 100_000  # each change of the catalogue copies its columns
_BAD = re.compile("[\0\ud800-\udfff]")  # no database stores these
_STORE = """
    INSERT INTO items (item_id, available, properties, changed, version)
    SELECT {fields}, :changed, :version FROM {rows} WHERE true
    ON CONFLICT (item_id) DO UPDATE SET
    {available} properties = {merged}, changed = excluded.changed, version = excluded.version"""
_DIALECTS = {
    "sqlite": {
        "rows": "json_each(:rows)",
        "fields": "json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')",
        "merged": "json_patch(items.properties, excluded.properties)",
    },
    "postgresql": {
        "rows": "json_array_elements(CAST(:rows AS json)) AS given(value)",
        "fields": "value ->> 0, CAST(value ->> 1 AS boolean), value ->> 2",
        "merged": "CAST(jsonb_strip_nulls("
        "CAST(items.properties AS jsonb) || CAST(excluded.properties AS jsonb)) AS text)",
    },
}


class Item(Record):
    """An item: whether it may be recommended, when it was changed, and its properties."""

    model_config = ConfigDict(frozen=True, extra="allow")

    item_id: str = Field(examples=["boot-42"])
    """Id of the item."""
    available: bool
    """Whether it may be recommended."""
    changed: Time
    """When it was last changed."""


class ItemsReceipt(Record):
    """How many items a request has stored."""

    stored: int
    """Items that the request has stored."""


Description = dict[str, Any]  # item_id, available (if it was given) and properties; null removes one


# ── reading ──────────────────────────────────────────────────────────────────────────────


def items_from_json(objects: Any, kinds: Mapping[str, Kind], *, first: int = 1) -> list[Description]:
    """Check a JSON list of items; of several objects with one id the last value of each field counts."""
    rows = Rows("item", first)
    given = checked_objects(objects, rows)
    ids = ids_from_values([fields.get("item_id") for fields in given], "item_id", rows)
    check_ids(ids, "item_id", rows)
    merged: dict[str, Description] = {}
    for row, (item_id, fields) in enumerate(zip(ids.to_pylist(), given, strict=True)):
        item = merged.setdefault(item_id, {"item_id": item_id})
        item.update(_checked(fields, kinds, row, rows))
    return list(merged.values())


def _checked(fields: dict[str, Any], kinds: Mapping[str, Kind], row: int, rows: Rows) -> Description:
    item: Description = {}
    for name, value in fields.items():
        if name == "available":
            if not isinstance(value, bool):
                raise rows.error(row, "available must be true or false")
            item[name] = value
        elif name in kinds:
            try:
                item[name] = None if value is None else _value(value, kinds[name])
            except ValueError as error:
                raise rows.error(row, f"{name} must be {error}") from None
        elif name != "item_id":
            known = ", ".join(kinds) or "none"
            raise rows.error(row, f"{name[:40]!r} is not a property; [items] properties in {FILE} declares {known}")
    return item


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT and not _BAD.search(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_TEXTS and all(map(_is_text, value))


def _is_number(value: Any, limit: float = 1e300) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < limit  # False for NaN


_VALUES: dict[Kind, tuple[Callable[[Any], bool], str]] = {
    "text": (_is_text, f"a string of at most {_MAX_TEXT} characters (valid Unicode without NUL)"),
    "texts": (_is_texts, f"a list of at most {_MAX_TEXTS} strings of at most {_MAX_TEXT} characters"),
    "number": (_is_number, "a finite number"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "time": (
        lambda value: _is_number(value, 1e12),
        'seconds since 1970 or ISO 8601, such as "2026-01-31T12:00:00Z"',
    ),
}


def _value(value: Any, kind: Kind) -> Any:
    """Return a property as it is stored; raise a ValueError that says what it must be."""
    if kind == "time" and isinstance(value, str):
        value = seconds_since_1970(value)
    is_valid, expected = _VALUES[kind]
    if not is_valid(value):
        raise ValueError(expected)
    return value


def items_from_file(source: str | Path, columns: Columns, kinds: Mapping[str, Kind]) -> Iterator[list[Description]]:
    """Yield the items of any table that `ingest` reads; an empty cell removes a property.

    In a text file, "|" separates the texts of a property that has several.
    """
    opened, n = open_source(source, "the items"), 1
    item = columns.find("item", opened.like, what="the items table")
    for table in opened.tables(opened.like.column_names):
        parts = {"item_id": table[item].to_pylist()}
        for name in table.column_names:
            if name != item:
                parts[name] = _values_of(table[name], name, kinds.get(name))
        objects = [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
        for each in objects:
            if each.get("available", True) is None:
                del each["available"]
        try:
            yield items_from_json(objects, kinds, first=n)
        except DataError as error:
            raise DataError(f"{source}: {error}") from None
        n += len(table)


def _values_of(column: pa.ChunkedArray, name: str, kind: Kind | None) -> list[Any]:
    """Convert a column of a file if its type is another way to write the property's type."""
    values, of = combined(column), column.type
    if kind == "text" and (pa.types.is_integer(of) or pa.types.is_boolean(of)):
        values = values.cast(pa.string())
    elif kind == "texts" and (pa.types.is_string(of) or pa.types.is_large_string(of)):
        values = pc.split_pattern(values, "|")
    elif kind == "time" and pa.types.is_temporal(of):
        micros = values.cast(pa.timestamp("us", getattr(of, "tz", None))).cast(pa.int64())
        return [None if each is None else each / 1e6 for each in micros.to_pylist()]
    elif (kind == "boolean" or name == "available") and pa.types.is_integer(of):
        values = values.cast(pa.bool_())
    return [None if isinstance(each, float) and math.isnan(each) else each for each in values.to_pylist()]


# ── the table ────────────────────────────────────────────────────────────────────────────


def store(engine: Engine, items: Sequence[Description]) -> ItemsReceipt:
    """Store items in one transaction: missing fields stay as they are, and a new item is available."""
    changes = [
        ("available = excluded.available,", [item for item in items if "available" in item]),
        ("", [item for item in items if "available" not in item]),
    ]
    words = _DIALECTS[engine.dialect.name]
    with writing(engine) as connection:
        values = {"changed": now(), "version": bump(connection, "items")}
        for available, chosen in changes:
            statement = text(_STORE.format(available=available, **words))
            for start in range(0, len(chosen), _ROWS_AT_ONCE):
                rows = [_row(item) for item in chosen[start : start + _ROWS_AT_ONCE]]
                connection.execute(statement, {**values, "rows": canonical(rows)})
    return ItemsReceipt(stored=len(items))


def _row(item: Description) -> tuple[str, bool, Description]:
    properties = {name: value for name, value in item.items() if name not in ("item_id", "available")}
    return item["item_id"], item.get("available", True), properties


def set_available(engine: Engine, item_id: str, is_available: bool) -> None:
    """Withdraw an item, or make it available again."""
    store(engine, [{"item_id": item_id, "available": is_available}])


def listed(
    engine: Engine, available: bool | None = None, after: str = "", limit: int = 100, words: str = ""
) -> list[Item]:
    """Return items of the catalogue by id; with `words`, those whose id and properties contain all of them."""
    page = select(_items).where(_items.c.item_id > after).order_by(_items.c.item_id).limit(limit)
    for word in words.split():
        id_and_properties = _items.c.item_id + "\n" + _items.c.properties
        page = page.where(id_and_properties.icontains(word, autoescape=True))
    if available is not None:
        page = page.where(_items.c.available.is_(available))
    with reading(engine) as connection:
        return [_item(row) for row in connection.execute(page)]


def item(engine: Engine, item_id: str) -> Item:
    """Return an item; raise an `UnknownIdError` if the catalogue does not have it."""
    with reading(engine) as connection:
        row = connection.execute(select(_items).where(_items.c.item_id == item_id)).one_or_none()
    if row is None:
        raise UnknownIdError(f"the catalogue has no item {item_id!r}; `PUT /v1/items` or `fairstream items` adds it")
    return _item(row)


def _item(row: Any) -> Item:
    properties = {name: value for name, value in json.loads(row.properties).items() if value is not None}
    return Item(**properties, item_id=row.item_id, available=row.available, changed=row.changed)


def features_table(engine: Engine, config: ItemProperties) -> pa.Table | None:
    """Return the items that have a feature, with their features as `FairRecommender.fit` reads them; None: none has.

    A number becomes one of four classes for each power of ten, which later prices do not change.
    """
    kinds = {name: kind for name in config.features if (kind := config.properties.get(name, "time")) != "time"}
    types: dict[Kind, Any] = {"texts": pa.list_(pa.string()), "number": pa.int64(), "boolean": pa.bool_()}
    features = pa.schema(
        [("item_id", pa.string()), *((name, types.get(kind, pa.string())) for name, kind in kinds.items())]
    )
    columns: dict[str, list[Any]] = {name: [] for name in features.names}
    for row, properties in _rows_after(engine, (0, "")):
        values = {name: _feature(properties.get(name), kind) for name, kind in kinds.items()}
        if any(value is not None for value in values.values()):
            for name, value in {"item_id": row.item_id, **values}.items():
                columns[name].append(value)
    return pa.table(columns, features) if columns["item_id"] else None


def _feature(value: Any, kind: Kind) -> Any:
    try:
        value = None if value is None else _value(value, kind)
    except ValueError:  # of another type than is declared now
        return None
    if kind != "number" or value is None:
        return value or None
    return 0 if value <= 0 else 1_000 + round(4 * math.log10(value))


def _rows_after(engine: Engine, last: tuple[int, str]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the rows after a version and id, in this order, with their properties."""
    while True:
        page = select(_items).where(tuple_(_items.c.version, _items.c.item_id) > last)
        with reading(engine) as connection:
            rows = list(connection.execute(page.order_by(_items.c.version, _items.c.item_id).limit(_ROWS_AT_ONCE)))
        if not rows:
            return
        yield from zip(rows, json.loads(f"[{','.join(row.properties for row in rows)}]"), strict=True)
        last = (rows[-1].version, rows[-1].item_id)


class CatalogueReader:
    """The catalogue in memory; it reads each change of the table once, by its version."""

    def __init__(self, engine: Engine, kinds: Mapping[str, Kind]) -> None:
        self.catalogue = Catalogue.of(kinds)
        self._engine, self._lock = engine, Lock()
        self._last = (0, "")  # version and id of the last row that was read

    def catch_up(self) -> Catalogue:
        """Read all committed changes and return the catalogue; any thread may call it."""
        with self._lock:
            rows = _rows_after(self._engine, self._last)
            while part := [*islice(rows, _ROWS_OF_A_CHANGE)]:
                changed = {row.item_id: (row.available, properties) for row, properties in part}
                self.catalogue = self.catalogue.updated([*changed], *map(list, zip(*changed.values(), strict=True)))
                self._last = (part[-1][0].version, part[-1][0].item_id)
            return self.catalogue
