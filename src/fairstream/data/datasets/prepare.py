"""Downloading a data set of the paper with pooch, and preparing the folder that `fairstream run` reads."""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pooch
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from fairstream._version import __version__
from fairstream.data.datasets import open_dataset
from fairstream.data.datasets.published import PUBLISHED, difference_from_paper
from fairstream.data.datasets.raw import Dataset
from fairstream.data.datasets.sources import Source, data_home, find_source
from fairstream.data.log import EventLog
from fairstream.data.readers import read_events
from fairstream.errors import ConfigurationError, DataError
from fairstream.files import new_folder, sibling_tempdir

_MANIFEST = "source.json"
_FILES = ("interactions.parquet", "users.parquet", _MANIFEST)
_REQUIRED = {"from", "size", "sha256", "checksum", "terms"}
_TIMEOUT_S = 30
_LARGEST = 1 << 30
"""Bytes; no file of these data sets is nearly as large, so an archive with a larger one is something else."""


@dataclass(frozen=True)
class Prepared:
    """A prepared data set, and where it came from."""

    source: Source
    folder: Path
    about: Mapping[str, Any]
    """The content of `source.json`."""
    is_new: bool
    """False where it existed already and was left alone."""

    @property
    def is_in_paper(self) -> bool:
        """Whether the paper gives counts of this data set."""
        return any(known.name == self.source.name for known in PUBLISHED)

    @property
    def difference(self) -> str | None:
        """A sentence with both counts, where those of the paper are others."""
        return difference_from_paper(self.source.name, **self.about["counts"])


def get_dataset(
    name: str,
    *,
    to: Path | None = None,
    url: str | None = None,
    sha256: str | None = None,
    archive: Path | None = None,
    force: bool = False,
    progressbar: Any = None,
) -> Prepared:
    """Download the data set `name`, check it, and prepare it in the folder `to`/`name`.

    Parameters
    ----------
    name
        One of `SOURCES`.
    to
        The folder to make the folder `name` in; by default `data_home()`.
    url
        Another address of the same file.
    sha256
        The checksum that the file must have; by default the published one, if there is one.
    archive
        A file that was downloaded before, in place of an address.
    force
        Replace what was prepared before; otherwise it is left alone.
    progressbar
        An object with the interface of tqdm (`total`, `update`, `reset`, `close`), as pooch takes it.

    Raises
    ------
    DataError
        If the file cannot be downloaded, has another checksum, or does not hold the data set.
    ConfigurationError
        If the options contradict each other.
    """
    source = find_source(name)
    _check_options(url, sha256, archive)
    folder = (data_home() if to is None else to) / name
    if not force and (about := _read_manifest(folder)) is not None:
        _check_same(folder, about["sha256"], sha256)
        return Prepared(source, folder, about, is_new=False)
    _check_replaceable(folder, force=force)
    with _cleaned_up(folder), sibling_tempdir(folder, "tmp") as working:
        if archive is None:
            archive, origin = working / source.file_name, url or source.url
            _download(source, origin, archive, progressbar)
        else:
            origin = archive.name
        hashes = _checked(archive, source, sha256)
        dataset = _open(archive, source, working / "raw")
        log = read_events(dataset.events)
        about = _about(source, origin, hashes, log)
        with new_folder(folder, replacing=True) as being_written:
            _write(being_written, log, dataset.users, about)
    return Prepared(source, folder, about, is_new=True)


def _download(source: Source, url: str, path: Path, progressbar: Any) -> None:
    if not re.match(r"https?://", url):
        raise ConfigurationError(f"an address must begin with http:// or https://, got {url!r}")
    downloader = pooch.HTTPDownloader(progressbar=progressbar or False, timeout=_TIMEOUT_S)
    try:
        downloader(url, str(path), None)  # without pooch.retrieve, which logs to the terminal
    except (OSError, ValueError) as error:  # every exception of requests is one of these
        reason = " ".join(str(error).split())
        raise DataError(
            f"{url} could not be fetched: {reason}; without a connection, get {source.url} by other means and "
            f"prepare it with `fairstream data get {source.name} --from {source.file_name}`"
        ) from None


def _checked(path: Path, source: Source, sha256: str | None) -> dict[str, Any]:
    """Return the size and the checksums of the file; raise DataError where they are not the expected ones."""
    hashes = {kind: pooch.file_hash(str(path), alg=kind) for kind in ("sha256", "md5")}
    size = path.stat().st_size
    kind, expected = ("sha256", sha256.lower()) if sha256 else ("md5", source.md5)
    if expected is not None and hashes[kind] != expected:
        raise DataError(
            f"{source.file_name} must have the {kind} {expected}, but has {hashes[kind]} ({size:,} bytes); "
            f"fetch it again, or if this is the file that you want, give --sha256 {hashes['sha256']}"
        )
    checksum = "none is published" if expected is None else "as given" if sha256 else "the md5 is the published one"
    return {"size": size, **hashes, "checksum": checksum}


def _open(archive: Path, source: Source, raw: Path) -> Dataset:
    """Extract the known members of an archive, or copy the file, to where `open_dataset` reads it."""
    raw.mkdir()
    try:
        if not source.members:
            (raw / source.file_name).symlink_to(archive.resolve())
            return open_dataset(raw / source.file_name)
        with zipfile.ZipFile(archive) as opened:
            if too_large := [name for name in source.members if opened.getinfo(name).file_size > _LARGEST]:
                raise DataError(f"{too_large[0]} must have at most {_LARGEST:,} bytes; is this the published archive?")
            paths = [Path(opened.extract(member, raw)) for member in source.members]
        return open_dataset(paths[0].parent)
    except KeyError as error:
        raise DataError(f"{archive.name} must hold {', '.join(source.members)}: {error.args[0]}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive.name} cannot be read as a zip archive: {error}") from None
    except DataError as error:  # the user does not know the temporary folder
        raise DataError(str(error).replace(str(raw), archive.name)) from None


def _check_options(url: str | None, sha256: str | None, archive: Path | None) -> None:
    if url is not None and archive is not None:
        raise ConfigurationError("a data set comes from an address or from a file; give --url or --from, not both")
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ConfigurationError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")
    if archive is not None and not archive.is_file():
        raise DataError(f"there is no file {archive} to prepare; give the archive as it is published")


def _check_same(folder: Path, stored: str, given: str | None) -> None:
    if given is not None and given.lower() != stored:
        raise DataError(
            f"{folder} must come from a file with the sha256 {given.lower()}, but exists already "
            f"from one with {stored}; replace it with --force"
        )


def _check_replaceable(folder: Path, *, force: bool) -> None:
    """Raise DataError where the folder holds anything that this module did not write."""
    if not folder.exists():
        return
    foreign = [folder.name] if not folder.is_dir() else [e.name for e in folder.iterdir() if e.name not in _FILES]
    if foreign:
        raise DataError(f"{folder} holds something else ({', '.join(sorted(foreign)[:4])}); choose another with --data")
    if not force and any(folder.iterdir()):
        raise DataError(
            f"{folder} exists already and is not what `fairstream data get` wrote; "
            f"choose another with --data, or replace it with --force"
        )


@contextmanager
def _cleaned_up(folder: Path) -> Iterator[None]:
    """Remove the parent folders that were made, should the block fail; turn an OSError into a DataError."""
    missing = [above for above in folder.parents if not above.exists()]
    try:
        yield
    except BaseException as error:
        for above in missing:
            with suppress(OSError):
                above.rmdir()
        if isinstance(error, OSError):
            at = f" ({error.filename})" if error.filename else ""
            raise DataError(f"{folder} could not be written: {error.strerror or error}{at}") from None
        raise


def _about(source: Source, origin: str, hashes: Mapping[str, Any], log: EventLog) -> dict[str, Any]:
    return {
        "fairstream": __version__,
        "name": source.name,
        "home": source.url,
        "from": origin,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        **hashes,
        "counts": {"n_events": len(log), "n_users": log.n_users, "n_items": log.n_items},
        "notes": log.notes,
        "terms": source.terms,
    }


def _write(folder: Path, log: EventLog, users: pa.Table, about: dict[str, Any]) -> None:
    """Write the events that count, in chronological order with the original ids, and their users."""
    ids, items = log.user_ids.ids, log.item_ids.ids
    events = pa.table({"user_id": ids.take(log.users), "item_id": items.take(log.items), "timestamp": log.times})
    pa.parquet.write_table(events, folder / "interactions.parquet")
    has_events = pc.is_in(users["user_id"].cast(ids.type), value_set=ids)
    pa.parquet.write_table(users.filter(has_events), folder / "users.parquet")
    about["files"] = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps(about, indent=2) + "\n")


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a complete prepared folder; None for anything else."""
    try:
        about: dict[str, Any] = json.loads((folder / _MANIFEST).read_bytes())
        is_complete = set(about["files"]) == set(_FILES) - {_MANIFEST} and all(
            (folder / name).stat().st_size == size for name, size in about["files"].items()
        )
        has_all = set(about) >= _REQUIRED and set(about["counts"]) == {"n_events", "n_users", "n_items"}
        return about if is_complete and has_all else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
