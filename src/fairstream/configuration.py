"""The base of every configuration object, and the wording of its errors."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from fairstream.errors import ConfigurationError

_WORDING = {
    "greater_than": "must be > {gt:g}",
    "greater_than_equal": "must be >= {ge:g}",
    "less_than": "must be < {lt:g}",
    "less_than_equal": "must be <= {le:g}",
    "finite_number": "must be a finite number",
    "literal_error": "must be one of {expected}",
    "int": "must be a whole number",
    "float": "must be a number",
    "string": "must be a name",
    "model_type": "must be {class_name}(…) or its settings by name",
}


class Configuration(BaseModel):
    """Frozen, strict about names, and documented field by field."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    def __init__(self, **options: Any) -> None:
        """Raise one `ConfigurationError` that names every wrong option."""
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise ConfigurationError("; ".join(map(self._sentence, error.errors()))) from None

    def with_options(self, **options: Any) -> Self:
        """Return the same configuration with some options changed, checked again."""
        return type(self)(**{**self.model_dump(), **options})

    def __repr__(self) -> str:
        """Show the options that differ from their defaults."""
        fields = type(self).model_fields
        changed = {name: getattr(self, name) for name in fields if getattr(self, name) != fields[name].get_default()}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    __str__ = __repr__

    @classmethod
    def _unknown(cls, name: str) -> str:
        return f"{name} is not an option; the options are {', '.join(sorted(cls.model_fields))}"

    @classmethod
    def _sentence(cls, detail: ErrorDetails) -> str:
        name = str(detail["loc"][0]) if detail["loc"] else ""
        kind, value = detail["type"], detail["input"]
        if kind == "extra_forbidden":
            return cls._unknown(name)
        if kind == "value_error":  # from our own validators, which word it themselves
            return str(detail["ctx"]["error"])
        field = cls.model_fields.get(name)
        default = (
            ""
            if field is None or field.default in (None, PydanticUndefined)
            else f" (the default is {field.default!r})"
        )
        wording = _WORDING.get(kind) or _WORDING.get(kind.partition("_")[0])
        if wording is None:
            return f"{name}: {detail['msg']}, got {value!r}{default}"
        return f"{name} {wording.format(**detail.get('ctx', {}))}, got {value!r}{default}"


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float = 0,
    below: float = math.inf,
    whole: bool = False,
) -> None:
    """Raise a `ConfigurationError` unless `value` is a finite number, or a whole one, in a range.

    The range begins at `least`, or after `above`.

    >>> check_number("epochs", 3, least=1, whole=True)
    """
    is_number = isinstance(value, Integral if whole else Real) and math.isfinite(value)
    if not is_number:
        expected = "a whole number" if whole else "a finite number"
    elif value < below and (value >= least if above is None else value > above):
        return
    elif below < math.inf:
        expected = f"between {least if above is None else above:g} and {below:g}"
    else:
        expected = f">= {least:g}" if above is None else f"> {above:g}"
    raise ConfigurationError(f"{name} must be {expected}, got {value!r}")
