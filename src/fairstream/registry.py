"""Models, losses, metrics and strategies by name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from fairstream.errors import ConfigurationError

T = TypeVar("T")
CUSTOM = "custom"  # the name of unregistered objects in stored configurations


class Registry(Mapping[str, T], Generic[T]):
    """Parts of one kind by name. Names are compared in lower case.

    Examples
    --------
    >>> losses = Registry("loss")
    >>> losses.register("zero", lambda scores: 0 * scores.sum())
    >>> "Zero" in losses, list(losses)
    (True, ['zero'])
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}
        self._names: dict[str, str] = {}
        self._deferred: dict[str, str] = {}  # name in lower case → the module that registers it

    def register(self, name: str, part: T, *, replace: bool = False) -> None:
        """Make `part` available under `name`."""
        if not name or name.strip() != name:
            raise ConfigurationError(f"a {self.kind} needs a name without spaces around it, got {name!r}")
        if name.lower() == CUSTOM:
            raise ConfigurationError(f"the name {CUSTOM!r} stands for unregistered objects; choose another name")
        self._load(name)  # a deferred name is taken, too
        if self._parts.get(name.lower(), part) is not part and not replace:
            raise ConfigurationError(f"there is a {self.kind} named {name!r} already; choose another name")
        self._names[name.lower()] = name
        self._parts[name.lower()] = part

    def defer(self, module: str, *names: str) -> None:
        """Announce names that a module registers; the first use of one imports the module."""
        for name in names:
            self._names[name.lower()], self._deferred[name.lower()] = name, module

    def _load(self, name: str) -> None:
        """Import the module of a deferred name; other threads wait until it has registered its names."""
        if name.lower() in self._deferred and name.lower() not in self._parts:
            importlib.import_module(self._deferred[name.lower()])

    def canonical(self, name: str) -> str:
        """The name as it was registered, or an error that lists the names that exist."""
        try:
            return self._names[name.lower()]
        except (KeyError, AttributeError):
            known = ", ".join(self)
            raise ConfigurationError(f"{self.kind} must be one of {known}, or your own object, got {name!r}") from None

    def name_of(self, part: object) -> str | None:
        """The name of a registered part; None if it is not registered."""
        return next((self._names[name] for name, known in self._parts.items() if known is part), None)

    def __getitem__(self, name: str) -> T:
        key = self.canonical(name).lower()
        self._load(key)
        return self._parts[key]

    def get(self, name: str, default: Any = None) -> Any:
        """The part of this name, or `default`."""
        return self[name] if name in self else default  # noqa: SIM401

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.values())

    def __len__(self) -> int:
        return len(self._names)


def load_plugins(names: Iterable[str] = ()) -> None:
    """Import modules that register custom parts, each once in a process.

    Installed packages that declare an entry point in the group `fairstream` are imported too.

    Parameters
    ----------
    names
        Modules on the import path (`mypackage.models`), or Python files (`models.py`).

    Raises
    ------
    ConfigurationError
        If a module is missing or fails to import.
    """
    for entry in entry_points(group="fairstream"):
        entry.load()
    for name in names:
        try:
            if name.endswith(".py"):
                _import_file(Path(name).resolve())
            else:
                importlib.import_module(name)
        except Exception as error:
            raise ConfigurationError(
                f"the plugin {name} cannot be imported: {type(error).__name__}: {error}; give a module or a .py file"
            ) from error


def _import_file(path: Path) -> None:
    # Under a separate name: importing `models.py` must not hide another module `models`.
    name = f"fairstream_plugin:{path}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
