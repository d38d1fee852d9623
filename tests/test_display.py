"""Tables and numbers: the same cells in a terminal, a notebook and a page."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fairstream.display import Table
from fairstream.text import between, number, percent, signed, text_table


def printed(table: Table, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["[b]F[/b]", "[/]", "[link=x]", ":smile:"])
def test_terminals_print_names_as_they_are(name: str) -> None:
    output = printed(Table([name, "users"], [[name, "1"]], title=name, caption=name))
    assert output.count(name) == 4


def test_columns_are_aligned_and_only_capitals_wrap() -> None:
    words = "long words that wrap"
    output = printed(Table(["a", "n", "why"], [["x", "1", words], [], ["y", "2", "z"]], align="lrL"), width=16)
    assert words not in output
    assert " n" in output
    assert output.count("──") >= 2
    assert text_table(["a"], [["x"], [], ["y"]]).splitlines() == ["a", "─", "x", "─", "y"]


@given(st.floats(-10, 10))
def test_numbers_keep_their_sign_and_have_a_real_minus(value: float) -> None:
    assert "-" not in number(value) + signed(value) + percent(value) + between((value, value))
    assert float(number(value).replace("−", "-")) == pytest.approx(value, abs=5e-5)
    assert float(signed(value).replace("−", "-").lstrip("±")) == pytest.approx(value, abs=5e-5)
    assert signed(value)[0] in "+−±"
