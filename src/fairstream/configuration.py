"""The base of every configuration object, and how its complaints are worded."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

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
        """What does not fit becomes one `ConfigurationError`."""
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise ConfigurationError("; ".join(map(self._sentence, error.errors()))) from None

    def with_options(self, **options: Any) -> Self:
        """The same configuration with some options changed, checked again."""
        return type(self)(**{**self.model_dump(), **options})

    def __repr__(self) -> str:
        """The options that differ from their defaults."""
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
        if kind == "value_error":  # raised by a validator of ours, worded as it should be
            return str(detail["ctx"]["error"])
        field = cls.model_fields.get(name)
        default = "" if field is None or field.is_required() else f" (the default is {field.default!r})"
        wording = _WORDING.get(kind) or _WORDING.get(kind.partition("_")[0])
        if wording is None:
            return f"{name}: {detail['msg'].lower()}, got {value!r}{default}"
        return f"{name} {wording.format(**detail.get('ctx', {}))}, got {value!r}{default}"
