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
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "string_type": "must be a name",
}


class Configuration(BaseModel):
    """Frozen, strict about names, and documented field by field."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    def __init__(self, **options: Any) -> None:
        """What does not fit becomes one `ConfigurationError`."""
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise ConfigurationError("; ".join(self._sentences(error.errors()))) from None

    def with_options(self, **options: Any) -> Self:
        """The same configuration with some options changed, checked again."""
        return type(self)(**{**self.model_dump(), **options})

    @classmethod
    def _sentences(cls, details: list[ErrorDetails]) -> list[str]:
        """One for each complaint; a value that is neither a number nor a word is one complaint."""
        sentences, words = [], {d["loc"][0]: d for d in details if d["type"] == "literal_error" and len(d["loc"]) > 1}
        for detail in details:
            word = words.get(detail["loc"][0]) if detail["loc"] else None
            if word is not detail:
                sentences.append(cls._sentence(detail) + (f", or {word['ctx']['expected']}" if word else ""))
        return sentences

    @classmethod
    def _sentence(cls, detail: ErrorDetails) -> str:
        name = str(detail["loc"][0]) if detail["loc"] else ""
        kind, found = detail["type"], detail["input"]
        if kind == "extra_forbidden":
            known = ", ".join(sorted(cls.model_fields))
            return f"{name} is not an option; the options are {known}"
        if kind == "value_error":  # raised by a validator of ours, worded as it should be
            return str(detail["ctx"]["error"])
        field = cls.model_fields.get(name)
        default = "" if field is None or field.is_required() else f" (the default is {field.default!r})"
        wording = _WORDING.get(kind)
        if wording is None:
            return f"{name}: {detail['msg'].lower()}, got {found!r}{default}"
        return f"{name} {wording.format(**detail.get('ctx', {}))}, got {found!r}{default}"
