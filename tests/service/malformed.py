"""Values, JSON and Arrow that a service should not trip over, made at random from a seed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

MARK = "canary"
"""Stands in ids that are sent; it must never be found in a log."""
BAD_IDS: list[Any] = [
    "", "\x00", f"{MARK}\x00", f"{MARK}\n", "\x1f", "\x7f", "\x85", MARK * 50, "é" * 257, "\ud800", f"{MARK}\udfff",
    None, True, False, 1.5, -0.5, float("nan"), float("inf"), [], {}, [MARK], {"id": MARK}, 10**300, [[[[]]]],
]  # fmt: skip
BAD_TIMES: list[Any] = [
    None, True, "", "now", "2026-13-01", "2026-02-30T00:00:00Z", "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-01-01T00:00:00+99:99", float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 10**18, 10**300, -(10**300),
    253_402_300_800, -2_208_988_801, 9_999_999_999, [], {}, [1], "\x00", "１９９９-01-01", "1" * 5000, "\ud800",
]  # fmt: skip
ODD_TEXTS = [
    "../../../../etc/passwd", "..\\..\\secret", "%2e%2e%2f", "'; DROP TABLE events; --", '" OR 1=1 --', "\u202e",
    "\ufeff",
    "<script>alert(1)</script>", "${jndi:ldap://x}", "{{7*7}}", "null", "NaN", "-1", "0", "~" + "0" * 32, "a" * 257,
    "a" * 5000, "\x00", "\n", "\r\nX-Injected: 1", "é" * 256, "😀" * 200, "\ud800", "%", "%zz", "?", "#", "/", "//",
    ".", "..",
    " ", "recommendations", "/recommendations", "u1/recommendations",
]  # fmt: skip


def event(rng: Random, n: int) -> dict[str, Any]:
    """A good one."""
    return {
        "event_id": f"{MARK}-{n}-{rng.randrange(10**9)}",
        "user_id": f"{MARK}{rng.randrange(50)}",
        "item_id": f"i{rng.randrange(60)}",
        "time": 1_600_000_000 + rng.randrange(10**7),
    }


def bad_event(rng: Random, n: int) -> dict[str, Any]:
    """One with something in it that cannot be taken."""
    made = event(rng, n)
    way = rng.randrange(5)
    if way == 0:
        made[rng.choice(["user_id", "item_id"])] = rng.choice(BAD_IDS)
    elif way == 1:
        made["time"] = rng.choice(BAD_TIMES)
    elif way == 2:
        del made[rng.choice(["user_id", "item_id", "time"])]
    elif way == 3:
        made["event_id"] = rng.choice([bad for bad in BAD_IDS if bad is not None] + ["~mine"])
    else:
        made[rng.choice(["more", "", "User_id", "\ud800", "a" * 1000, "x\ny"])] = rng.choice([1, None, {}, MARK])
    return made


def bad_json(rng: Random) -> bytes:
    """Text that is not JSON, or JSON of another shape."""
    return rng.choice(
        [
            b"", b" ", b"{", b"[", b"]", b"nul", b"NaN", b"Infinity", b"-", b"3", b'"text"', b"true", b"null", b"[1]",
            b"[[]]",
            b"[null]", b'{"events": 3}', b'{"events": {}}', b'{"events": [], "x": 1}', b'{"users": 1}', b"{}",
            b'{"a": }',
            b"\xff\xfe\x00", b"\xef\xbb\xbf[{}]", b'"\xc3\x28"', b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000,
            b'{"user_id": "u", "item_id": "i", "time": 1' + b"0" * 5000 + b"}", b"[{}]", b"[,]", b"{'user_id': 1}",
            b'[{"user_id": "u", "item_id": "i", "time": 1},]', "[{}]".encode("utf-16"), b"\x00", b"--\r\n\r\n",
            b"a=1&b=2",
            bytes(rng.randrange(256) for _ in range(rng.randrange(1, 200))) + b"\xff",
        ]
    )  # fmt: skip


def text(value: Any) -> bytes:
    """As JSON, also where JSON would not have it."""
    return json.dumps(value).encode()


def scratched(rng: Random, content: bytes) -> bytes:
    """The same with some bits turned, some bytes gone, doubled or put in, or its end cut off."""
    made = bytearray(content)
    way = rng.randrange(4)
    for _ in range(rng.choice([1, 1, 1, 3, 20])):
        if not made:
            break
        at = rng.randrange(len(made))
        if way == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            made[at : at + rng.randrange(1, 16)] = b""
        elif way == 2:
            made[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        else:
            return bytes(made[:at])
    return bytes(made)


def good_table(rng: Random, n: int) -> pa.Table:
    return pa.Table.from_pylist([event(rng, n) for _ in range(rng.randrange(1, 20))])


def wrong_tables(rng: Random, n: int) -> pa.Table:
    """Valid Arrow that cannot be taken: other columns, other types, more than a body of its size could hold."""
    good = good_table(rng, n)
    at = rng.choice(["user_id", "item_id"])
    place = good.column_names.index(at)
    row = len(good)

    def repeated() -> pa.Table:
        many = 280_000
        word = pa.DictionaryArray.from_arrays(pa.array(np.zeros(many, np.int8)), pa.array(["x" * 256]))
        return pa.table({"user_id": word, "item_id": word, "time": pa.array(np.zeros(many, np.int8))})

    ways: list[Any] = [
        lambda: good.drop_columns([at]),
        lambda: good.append_column("more", pa.nulls(row)),
        lambda: good.append_column(at, good[at]),
        lambda: good.rename_columns(["a", "b\n", "c", "d"]),
        lambda: good.set_column(place, at, pa.nulls(row)),
        lambda: good.set_column(place, at, pa.array([None] * row, pa.string())),
        lambda: good.set_column(place, at, pa.array([{"a\nb": 1}] * row)),
        lambda: good.set_column(place, at, pa.array([[MARK]] * row)),
        lambda: good.set_column(place, at, pa.array([b"\xff\x00"] * row)),
        lambda: good.set_column(place, at, pa.array([1.5] * row)),
        lambda: good.set_column(place, at, pa.array([True] * row)),
        lambda: good.set_column(place, at, pa.array([MARK + "\x00"] * row)),
        lambda: good.set_column(place, at, pa.array(["a" * 257] * row).dictionary_encode()),
        lambda: good.set_column(place, at, pa.array([1] * row).dictionary_encode()),
        lambda: good.set_column(place, at, pa.array([b"0" * 16] * row, pa.uuid())),
        lambda: good.set_column(place, at, pa.array(["{}"] * row, pa.json_())),
        lambda: good.set_column(place, at, pa.array([b"\xff"] * row).view(pa.string())),
        lambda: good.set_column(place, at, pa.RunEndEncodedArray.from_arrays([row], [MARK])),
        lambda: good.set_column(place, at, pa.array(["x" * 10**6] * row, pa.string_view())),
        lambda: good.set_column(3, "time", pa.array([None] * row, pa.int64())),
        lambda: good.set_column(3, "time", pa.array([float("nan")] * row)),
        lambda: good.set_column(3, "time", pa.array([2**64 - 1] * row, pa.uint64())),
        lambda: good.set_column(3, "time", pa.array([2**62] * row).view(pa.timestamp("s"))),
        lambda: good.set_column(3, "time", pa.array([2**62] * row).view(pa.date64())),
        lambda: good.set_column(3, "time", pa.array([1] * row).view(pa.duration("s"))),
        lambda: good.set_column(3, "time", pa.array([1] * row).cast(pa.decimal128(20))),
        lambda: good.set_column(3, "time", pa.array(["never"] * row)),
        lambda: good.set_column(3, "time", pa.array(["1"] * row).dictionary_encode()),
        lambda: good.set_column(0, "event_id", pa.array(["~x"] * row)),
        lambda: pa.table({name: pa.nulls(2_000_000_000) for name in ("user_id", "item_id", "time")}),
        repeated,
        lambda: pa.table({}),
    ]
    return rng.choice(ways)()
