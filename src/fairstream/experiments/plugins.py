"""Importing modules that register models, losses, metrics or strategies."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from fairstream.errors import ConfigurationError


def import_plugins(names: Iterable[str]) -> None:
    """Import modules, each once in a process, so that the names they register can be used.

    Parameters
    ----------
    names
        Modules on the import path (`mypackage.models`), or Python files (`models.py`).

    Raises
    ------
    ConfigurationError
        If a module is not there or fails to import.

    Examples
    --------
    >>> import_plugins(["math"])

    """
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
    # Under a name of its own: importing `models.py` must not hide another module `models`.
    name = f"fairstream_plugin:{path}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
