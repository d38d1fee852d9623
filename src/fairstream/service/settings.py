"""Workspace configuration (`fairstream.toml`)."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from fairstream.configuration import Configuration
from fairstream.data.filters import KEYWORDS, Kind
from fairstream.errors import ConfigurationError
from fairstream.files import replace_file

if TYPE_CHECKING:
    from fairstream.service.learning import Learning

FILE = "fairstream.toml"
_LEARNING = "learning"
_ALWAYS_WRITTEN = ("model", "method", "target", "seed", "device")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_KINDS = {"event": 1.0, "view": 1.0, "click": 1.0, "cart": 2.0, "like": 2.0, "purchase": 4.0, "dislike": -1.0}
_PROPERTIES: dict[str, Kind] = {
    "title": "text",
    "text": "text",
    "category": "text",
    "categories": "texts",
    "price": "number",
    "stock": "number",
    "brand": "text",
}
_RESERVED = KEYWORDS | {"item_id", "available", "changed"}
_SCHEDULE = re.compile(r"([0-9]{1,12}) *(s|m|h|d|events?)(?: +at +([01][0-9]|2[0-3]):([0-5][0-9]))?")


@dataclass(frozen=True)
class Every:
    """A schedule of updates."""

    n: int
    unit: Literal["seconds", "events"]
    at: int | None = None  # seconds after midnight (UTC)

    @classmethod
    def parse(cls, text: str) -> Every:
        """From "1d", "6h", "30m", "90s", "10000 events", or with a time of day in UTC, "1d at 03:00".

        >>> Every.parse("6h"), Every.parse("10000 events")
        (Every(n=21600, unit='seconds', at=None), Every(n=10000, unit='events', at=None))
        >>> Every.parse("1d at 03:00")
        Every(n=86400, unit='seconds', at=10800)
        """
        match = _SCHEDULE.fullmatch(text.strip())
        if match is None or int(match[1]) == 0 or (match[3] and match[2] != "d"):
            raise ConfigurationError(
                f'every must be like "1d", "1d at 03:00" (UTC), "6h", "30m", "90s" or "10000 events", got {text!r}'
            )
        if match[2].startswith("event"):
            return cls(int(match[1]), "events")
        at = None if match[3] is None else int(match[3]) * 3600 + int(match[4]) * 60
        return cls(int(match[1]) * _SECONDS[match[2]], "seconds", at)

    def latest(self, now: float) -> float:
        """Return the time such that an update is due now if the last one was requested before it."""
        return now - self.n if self.at is None else (now - self.at) // self.n * self.n + self.at


class EventKinds(Configuration):
    """The kinds of events, and how much each counts."""

    kinds: dict[Annotated[str, Field(pattern=r"^[\w.\- ]{1,64}$")], Annotated[float, Field(strict=True)]] = _KINDS
    """The weight of each kind in learning. 0: stored, nothing else. Below 0: negative feedback, which is never \
learned as a choice; the item leaves the person's lists."""
    default: str = "event"
    """The kind of an event that names none."""
    repeats: tuple[str, ...] = ()
    """Kinds whose items may be recommended again."""
    judge_by: tuple[str, ...] = ()
    """Kinds by which evaluation, gate and targets judge; without any, all with a weight above 0."""

    @property
    def learned(self) -> list[str]:
        """The kinds that models learn."""
        return [kind for kind, weight in self.kinds.items() if weight > 0]

    @property
    def judged(self) -> list[str]:
        """The kinds that evaluation, gate and targets judge by."""
        return list(self.judge_by) or self.learned

    @property
    def words(self) -> str:
        """What judges, for a sentence: "events", or "purchases"."""
        return judged(self.judge_by)

    def for_reading(self) -> dict[str, Any]:
        """The options of `read_events`."""
        return {"kinds": self.kinds, "returning": self.repeats, "judge_by": self.judge_by}

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if not self.learned:
            raise ValueError("kinds needs at least one kind with a weight above 0: nothing else is learned")
        for option, named in (("default", [self.default]), ("repeats", self.repeats), ("judge_by", self.judge_by)):
            if unknown := [kind for kind in named if kind not in self.kinds]:
                raise ValueError(f"{option} must name one of the kinds {', '.join(self.kinds)}, got {unknown[0]!r}")
        if unlearned := [kind for kind in self.judge_by if self.kinds[kind] <= 0]:
            raise ValueError(f"judge_by must name kinds with a weight above 0, and that of {unlearned[0]!r} is not")
        return self


class ItemProperties(Configuration):
    """The properties of items."""

    properties: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]{0,63}$")], Kind] = _PROPERTIES
    """The type of each property: text, texts (several), number, boolean or time. Filters and rules use them."""
    features: tuple[str, ...] = ("category", "categories", "brand", "price", "title")
    """Properties that blend, sasrec and gru learn from, so that they recommend a new item before its first event. The \
first 32 words of an item count; numbers count as classes. Leave out properties that change often, such as stock."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in self.properties.keys() & _RESERVED:
            raise ValueError(f"no property may be named {', '.join(sorted(_RESERVED))}, got {name!r}")
        for name in self.features if "features" in self.model_fields_set else ():
            if self.properties.get(name, "time") == "time":
                raise ValueError(f"features must name properties that are declared and no times, got {name!r}")
        return self


class Gate(Configuration):
    """When a candidate is promoted."""

    k: int = Field(20, ge=1)
    """Length of the lists that are judged, by NDCG@k."""
    held_out: float = Field(0.5, gt=0, le=1)
    """Share of each period's users whose latest events judge the candidate; it is drawn by lot, and the next period \
learns these events."""
    max_fall: float = Field(0.1, ge=0, lt=1)
    """How much performance may fall for everyone together, as a share of the earlier performance."""
    max_group_fall: float = Field(0.02, ge=0, lt=1)
    """How much it may fall for any group."""
    max_rise: float = Field(0.05, ge=0)
    """How much the largest gap between a group and the rest may rise, in units of the metric."""
    max_drift: float = Field(0.5, gt=0, le=1)
    """How much worse the model in service may do on a period than on the last learned one, for everyone and for every \
group, as a share; beyond it the events themselves count as changed."""
    drift_patience: int = Field(2, ge=1)
    """After so many rejected candidates in a row, the gate accepts the new level from a candidate that is no worse \
than the model in service; it accepts one that is surely better, and no worse than recent popularity, at once."""
    max_user_share: float = Field(0.1, gt=0, le=1)
    """The largest share of a period's events that may come from one user; further events are neither learned nor \
tested."""
    min_group_size: int = Field(20, ge=1)
    """Groups with fewer tested users are neither judged nor reported, anywhere."""
    min_tested_users: int = Field(100, ge=2)
    """A period stays open until its held-out events test this many users."""


class Privacy(Configuration):
    """What may be published about groups."""

    epsilon_per_quarter: Annotated[float, Field(gt=0, le=500)] | Literal["off"] = 4.0
    """Budget of differential privacy: all that a quarter (91 days) publishes about groups is (epsilon, 10^-6)-private \
in one person's group. "off": exact numbers, for made-up people or where sizes and means of groups are public anyway."""


class Alerts(Configuration):
    """Messages about updates and experiments."""

    webhook: str | None = Field(None, pattern="^https?://")
    """Address (http or https) for JSON messages: after a promotion, after every `after`-th update in a row that \
promoted nothing, and at the end of an experiment."""
    secret: str | None = Field(None, min_length=16)
    """Key of the messages' signature, HMAC-SHA256 in the header X-Fairstream-Signature; by default none."""
    after: int = Field(2, ge=1)
    """How many updates in a row must promote nothing (rejected, failed or skipped) for an alert."""


class Limits(Configuration):
    """Limits of the service."""

    max_body_bytes: int = Field(64 << 20, ge=1024)
    """Largest body of a request."""
    max_k: int = Field(100, ge=1)
    """Longest list of a request."""
    max_users: int = Field(1000, ge=1)
    """Most users in one batch of recommendations."""
    cached_lists: int = Field(100_000, ge=1)
    """Lists that each process caches, about 2 KB each; any other list takes a few milliseconds."""
    requests_per_second: float = Field(20_000, gt=0)
    """Requests of one key to each process, on average; short bursts may be twice that. A process answers about 8,000 \
lists a second on one core, so the default stops only a client in an endless loop."""
    max_open_events: int = Field(5_000_000, ge=1000)
    """Events that may wait for the next update; the service refuses further ones until an update has run."""
    max_key_share: float = Field(0.5, gt=0, le=1)
    """Share of these events that may come from one ingest key, if there are several keys."""
    max_connections: int = Field(1000, ge=10)
    """Open connections of each process; it answers requests on further ones with 503."""
    max_future_seconds: int = Field(300, ge=0)
    """How far ahead of the clock an event may be dated: clocks differ a little, time zones by hours."""


class Impressions(Configuration):
    """Lists that people saw, and their results."""

    window_hours: float = Field(24, gt=0, le=24 * 365)
    """An event counts as the result of a list that showed its item to its user at most this long before."""
    avoid_after: int | None = Field(None, ge=1)
    """Leave an item out of a user's lists after it was shown this often without an event; by default never."""
    avoid_days: float = Field(7, gt=0, le=365)
    """How long the item is left out, counted from the last time that it was shown."""


class Retention(Configuration):
    """Deletion of old data."""

    events_days: int | None = Field(None, ge=1)
    """Days after which events that no kept model needs are deleted, also for new models; by default never."""
    impressions_days: int = Field(90, ge=1)
    """Days after which lists that were shown are deleted; the hourly counts stay."""


class LiveConfig(Configuration):
    """A workspace's `fairstream.toml`."""

    group: str = Field("group", min_length=1)
    """Name of the attribute whose groups are compared."""
    groups: list[str] | None = Field(None, min_length=2)
    """The values of that attribute, as they are spelled; others are refused. By default every value is a group."""
    advantaged: str | None = None
    """The best-served group; by default the larger of two, and none of more. Fairness losses and group weights need \
it, a target does not."""
    every: str | None = None
    """When the service updates by itself: "1d", "1d at 03:00" (UTC), "6h", "30m", "90s" or "10000 events"; by default \
only on request."""
    keep_models: int = Field(10, ge=2)
    """Models to keep on disk for a rollback."""
    learning_options: dict[str, Any] = Field(default_factory=dict)
    """The options of the table `[learning]`; `learning`, which needs PyTorch, checks them."""
    events: EventKinds = EventKinds()
    items: ItemProperties = ItemProperties()
    gate: Gate = Gate()
    privacy: Privacy = Privacy()
    alerts: Alerts = Alerts()
    limits: Limits = Limits()
    retention: Retention = Retention()
    impressions: Impressions = Impressions()

    def __init__(self, *, learning: Learning | None = None, **options: Any) -> None:
        if learning is not None:
            chosen = learning.chosen | {name: getattr(learning, name) for name in _ALWAYS_WRITTEN}
            options["learning_options"] = {  # as TOML, which has no null
                name: value for name, value in chosen.items() if value is not None
            }
        super().__init__(**options)

    @cached_property
    def learning(self) -> Learning:
        """How the model learns; it needs PyTorch."""
        from fairstream.service.learning import Learning  # noqa: PLC0415

        with _naming(_LEARNING):
            return Learning(**self.learning_options)

    def to_dict(self) -> dict[str, Any]:
        """All options, table by table, as the file has them."""
        return {**self.model_dump(exclude={"learning_options"}), _LEARNING: self.learning.model_dump()}

    @field_validator("groups")
    @classmethod
    def _check_groups(cls, groups: list[str] | None) -> list[str] | None:
        if groups is not None and (len(set(groups)) < len(groups) or any(name != name.strip() for name in groups)):
            raise ValueError(f"groups must be different names without blanks around them, got {groups!r}")
        return groups

    @model_validator(mode="after")
    def _check_advantaged(self) -> Self:
        if self.groups is not None and self.advantaged not in (None, *self.groups):
            raise ValueError(f"advantaged must be one of groups, {', '.join(self.groups)}, got {self.advantaged!r}")
        if not self.has_advantaged and self.learning_options.get("group_weight", 1) != 1:
            raise ValueError(
                f"group_weight is for every group but the advantaged one, and none of {', '.join(self.groups or ())} "
                f"was named; name the best-served one as advantaged, or use a target, which can raise any group"
            )
        return self

    @property
    def has_advantaged(self) -> bool:
        """Whether the advantaged group is named, or follows because there are at most two."""
        return self.advantaged is not None or len(self.groups or ()) <= 2

    @field_validator("every")
    @classmethod
    def _check_every(cls, every: str | None) -> str | None:
        if every is not None:
            Every.parse(every)
        return every

    @classmethod
    def read(cls, folder: Path) -> LiveConfig:
        """Read the workspace's file; raise a `ConfigurationError` of one sentence if it is wrong."""
        try:
            return cls.parse((folder / FILE).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(
                f"{folder / FILE} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from None

    @classmethod
    def parse(cls, content: str) -> LiveConfig:
        """Return the configuration of a file's content and the environment, which takes precedence."""
        options = tomllib.loads(content)
        learning = _table(_LEARNING, options)
        if "FAIRSTREAM_LEARNING_MODEL" in os.environ:  # the file's settings belong to the model that it names
            learning.pop("model_settings", None)
        learning |= _from_environment("FAIRSTREAM_LEARNING_", {})
        parts = {}
        for name, kind in _parts().items():
            given = _from_environment(f"FAIRSTREAM_{name.upper()}_", kind.model_fields)
            with _naming(name):
                parts[name] = kind(**_table(name, options) | given)
        own = _from_environment("FAIRSTREAM_", cls.model_fields)
        own = {name: value for name, value in own.items() if name in cls.model_fields}
        return cls(**{**options, **own, **parts, "learning_options": learning})

    def to_toml(self) -> str:
        """Return the content of the file, each option with its description above it."""
        chosen = [*_ALWAYS_WRITTEN, *(name for name in self.learning_options if name not in _ALWAYS_WRITTEN)]
        tables = {_LEARNING: _lines(self.learning, chosen)}
        tables |= {name: _lines(getattr(self, name), kind.model_fields) for name, kind in _parts().items()}
        lines = [line for name, options in tables.items() for line in ("", f"[{name}]", *options)]
        own = [name for name in type(self).model_fields if name not in (*tables, "learning_options")]
        return "\n".join([*_lines(self, own), *lines, ""])

    def write(self, folder: Path) -> None:
        """Write the file."""
        replace_file(folder / FILE, self.to_toml().encode())


def _parts() -> dict[str, type[Configuration]]:
    """Return the tables of the file but `[learning]`."""
    defaults = {name: field.default for name, field in LiveConfig.model_fields.items()}
    return {name: type(default) for name, default in defaults.items() if isinstance(default, Configuration)}


def _table(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Take a table out of the options of the file."""
    table = options.pop(name, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"[{name}] of {FILE} must be a table of options, got {table!r}")
    return table


@contextmanager
def _naming(table: str) -> Iterator[None]:
    """Name the table in errors."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"[{table}] {error}") from None


def _from_environment(prefix: str, fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """Return the options that variables with a prefix set: plain text for a text, otherwise TOML or plain text."""
    options = dict[str, Any]()
    for variable, text in os.environ.items():
        if variable.startswith(prefix):
            field = fields.get(name := variable.removeprefix(prefix).lower())
            options[name] = text if field and field.annotation in (str, str | None) else _value(text)
    return options


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _lines(config: Configuration, names: Iterable[str]) -> Iterator[str]:
    """Yield options as TOML, those that are not set as comments: TOML has no null."""
    for name in names:
        value: Any = getattr(config, name)
        yield f"# {type(config).model_fields[name].description}"
        yield f"# {name} =" if value is None else f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        options = [f"{json.dumps(name)} = {_toml(inner)}" for name, inner in value.items() if inner is not None]
        return f"{{ {', '.join(options)} }}"
    return json.dumps(value, ensure_ascii=False)  # JSON's strings, numbers, booleans and lists are TOML's, too


def judged(kinds: Iterable[str]) -> str:
    """What judges, for a sentence: "events", or "purchases"."""
    return " and ".join(f"{kind}s" for kind in kinds) or "events"
