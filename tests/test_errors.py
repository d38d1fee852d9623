"""The tree of exceptions is the one that is drawn."""

from __future__ import annotations

import inspect
import re

import pytest

import fairstream
from fairstream import errors


def drawn_tree() -> dict[str, str | None]:
    """Each class in the drawing of errors.py's docstring, and the class it hangs from."""
    assert errors.__doc__ is not None
    drawing = errors.__doc__.split("```")[1]
    parents: dict[str, str | None] = {}
    above: dict[int, str] = {}  # depth → the last name drawn at it
    for line in drawing.strip("\n").splitlines():
        indent, name = re.fullmatch(r"([│├└─\s]*)(\w+)(?: .*)?", line).groups()
        depth = len(indent) // 4
        parents[name] = above[depth - 1] if depth else None
        above[depth] = name
    return parents


def classes() -> dict[str, type[Exception]]:
    return {
        name: member
        for name, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, Exception) and member.__module__ == errors.__name__
    }


def test_the_drawing_is_the_tree() -> None:
    def parent(member: type[Exception]) -> str | None:
        return next((base.__name__ for base in member.__mro__[1:] if base.__module__ == errors.__name__), None)

    assert drawn_tree() == {name: parent(member) for name, member in classes().items()}


def test_the_whole_tree_can_be_caught_at_its_root() -> None:
    assert all(issubclass(member, fairstream.FairstreamError) for member in classes().values())


def test_every_error_is_public_and_documented() -> None:
    for name, member in classes().items():
        assert name in fairstream.__all__
        assert getattr(fairstream, name) is member
        assert member.__doc__


@pytest.mark.parametrize(
    ("error", "usual"),
    [
        (errors.ConfigurationError, ValueError),
        (errors.DataError, ValueError),
        (errors.ModelError, ArithmeticError),
        (errors.CheckpointError, OSError),
    ],
)
def test_who_expects_the_usual_error_catches_ours(error: type[Exception], usual: type[Exception]) -> None:
    with pytest.raises(usual) as caught:
        raise error("expected this, found that; do so")
    assert str(caught.value) == "expected this, found that; do so"


def test_a_message_that_quotes_line_breaks_is_one_line() -> None:
    error = fairstream.DataError("there is no column 'user_id', only 'a\nb\r\nc'")
    assert str(error) == "there is no column 'user_id', only 'a b c'"
