"""A log in a folder: uncompressed Arrow files that can be memory-mapped, and a manifest.

The manifest lists every file with its size. The folder gets its name only when everything in it
has been written: it holds a complete log or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from fairstream._version import __version__
from fairstream.errors import DataError
from fairstream.files import new_folder

_MANIFEST, _FORMAT = "fairstream-log.json", 1


def is_log(source: Any) -> bool:
    """Return whether `source` is the folder of a log."""
    return isinstance(source, str | Path) and (Path(source) / _MANIFEST).is_file()


def check_new(folder: Path) -> None:
    """Raise DataError unless the folder is missing or empty: nothing is ever overwritten."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DataError(f"{folder} exists already; a log needs a new folder: name another or remove this one")


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn an OSError into a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"the log could not be written to {folder}: {error.strerror or error}") from None


def write_log(folder: Path, arrays: Mapping[str, pa.Array], about: Mapping[str, Any]) -> None:
    """Write each array to its own file, and `about` into the manifest."""
    check_new(folder)
    with writing_to(folder), new_folder(folder) as being_written:
        for name, array in arrays.items():
            batch = pa.record_batch({name: array})  # one batch, so that it can be mapped as one array
            with (
                pa.OSFile(str(being_written / f"{name}.arrow"), "wb") as file,
                pa.ipc.new_file(file, batch.schema) as writer,
            ):
                writer.write_batch(batch)
        sizes = {file.name: file.stat().st_size for file in being_written.iterdir()}
        manifest = {"fairstream": __version__, "format": _FORMAT, "files": sizes, **about}
        (being_written / _MANIFEST).write_text(json.dumps(manifest, indent=2))


class StoredLog:
    """The files of a stored log, checked; DataError where they cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self.checked():
            self.about: dict[str, Any] = json.loads((folder / _MANIFEST).read_bytes())
            if self.about["format"] != _FORMAT:
                raise DataError(
                    f"{folder} holds a log of format {self.about['format']}, this version reads {_FORMAT}; "
                    f"use the version of fairstream that wrote it"
                )
            for name, size in self.about["files"].items():
                self.check((folder / name).stat().st_size == size)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Turn a failure to read the folder into a DataError."""
        try:
            yield
        except FileNotFoundError as error:
            raise DataError(f"{self._folder} is incomplete: {Path(error.filename).name} is missing") from None
        except OSError as error:
            raise DataError(f"{self._folder} cannot be read: {error.strerror or error}") from None
        except (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            self.check(False)

    def check(self, condition: bool) -> None:
        if not condition:
            raise DataError(f"{self._folder} is damaged: its files are not what fairstream wrote; ingest it again")

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """Return a column of numbers as an array over its file.

        The mapping is private: writing to the array does not change the file.
        """
        whole, array = self._array(name)
        self.check(array.null_count == 0)
        values: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
        # Nothing to map, or a type that NumPy converts to a wider one, such as dates.
        if len(array) == 0 or values.nbytes * 8 != len(array) * array.type.bit_width:
            return values
        start = array.buffers()[1].address - whole.address
        mapped = np.memmap(self._folder / f"{name}.arrow", values.dtype, "c", start, values.shape)
        return np.asarray(mapped)

    def ids(self, name: str) -> pa.Array:
        _, array = self._array(name)
        self.check(array.null_count == 0 and array.type in (pa.int64(), pa.large_string()))
        return array

    def _array(self, name: str) -> tuple[pa.Buffer, pa.Array]:
        file = pa.memory_map(str(self._folder / f"{name}.arrow"))
        whole = file.read_buffer()
        stored = pa.ipc.open_file(whole)
        self.check(stored.num_record_batches == 1)
        return whole, stored.get_batch(0).column(name)
