"""A short day in a made-up shop: nobody is shown what is forbidden, and nothing that was acknowledged is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.shop_day import main
from benchmarks.shop_page import totals

SMALL = "--people 3000 --items 800 --visits 8000 --begin 10 --hours 9 --seconds-per-hour 6 --model mf"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", "--postgres"])
def test_a_day_in_a_shop(tmp_path: Path, where: str) -> None:
    day = main([str(tmp_path / "day.html"), *SMALL.split(), *where.split()])
    everyone = totals(day["hours"])["everyone"]
    assert everyone["visits"] > 2000
    assert everyone["forbidden"] == 0
    assert day["stored"] == day["acknowledged"] > 60_000
    assert not day["waiting"]
    assert everyone["served"] > 1.2 * everyone["popular"]
    notes = [note for hour in day["hours"] for note in hour["notes"]]
    assert any(
        re.fullmatch(r"i\d+ is recalled in \d+ ms; of [1-9]\d* lists with it 0 are left", note) for note in notes
    )
    assert any("the database is away" in note for note in notes)
    page = (tmp_path / "day.html").read_text()
    assert page.count('class="chart"') >= 8
    assert "<script" not in page
