"""Downloading a data set of the paper with pooch, and preparing the folder that `fairstream run` reads."""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pooch
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from fairstream._version import __version__
from fairstream.data.datasets.sources import Source, data_home, difference_from_paper, find_source
from fairstream.data.events import open_events, read_events
from fairstream.data.log import EventLog
from fairstream.data.reading import Columns
from fairstream.errors import ConfigurationError, DataError
from fairstream.files import new_folder

_MANIFEST = "source.json"
_FILES = ("interactions.parquet", "users.parquet", _MANIFEST)
_REQUIRED = {"from", "size", "sha256", "checksum", "terms"}
_COUNTS = ("n_events", "n_users", "n_items")
_TIMEOUT_S = 30


@dataclass(frozen=True)
class Prepared:
    """A prepared data set."""

    source: Source
    folder: Path
    about: Mapping[str, Any]  # the content of `source.json`
    is_new: bool  # False: it existed already and was left alone

    @property
    def difference(self) -> str | None:
        """A sentence with both counts if those of the paper differ."""
        return difference_from_paper(self.source.name, *(self.about["counts"][name] for name in _COUNTS))


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
    """Download the data set `name`, check it, and prepare it in the folder `to`/`name` (by default in `data_home()`).

    `url` is another address of the same file, `archive` a file that was downloaded before. The checksum is the
    published one, if there is one, unless `sha256` is given. With `force`, a prepared folder is replaced. `progressbar`
    has the interface of tqdm (`total`, `update`, `reset`, `close`), as pooch takes it.
    """
    source = find_source(name)
    if url is not None and archive is not None:
        raise ConfigurationError("a data set comes from an address or from a file; give --url or --from, not both")
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ConfigurationError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")
    if archive is not None and not archive.is_file():
        raise DataError(f"there is no file {archive} to prepare; give the archive as it is published")
    folder = (data_home() if to is None else to) / name
    if not force and (about := _read_manifest(folder)) is not None:
        if sha256 is not None and sha256.lower() != about["sha256"]:
            raise DataError(
                f"{folder} must come from a file with the sha256 {sha256.lower()}, but exists already "
                f"from one with {about['sha256']}; replace it with --force"
            )
        return Prepared(source, folder, about, is_new=False)
    _check_replaceable(folder, force=force)
    with tempfile.TemporaryDirectory() as working:
        origin = url or source.url
        if archive is None:
            archive = Path(working) / source.file_name
            _download(source, origin, archive, progressbar)
        else:
            origin = archive.name
        hashes = _checked(archive, source, sha256)
        events, users = _open(archive, source, Path(working) / "raw")
        log = read_events(events)
    about = {
        "fairstream": __version__,
        "name": name,
        "home": source.url,
        "from": origin,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        **hashes,
        "counts": dict(zip(_COUNTS, (len(log), log.n_users, log.n_items), strict=True)),
        "notes": log.notes,
        "terms": source.terms,
    }
    try:
        with new_folder(folder, replacing=True) as being_written:
            _write(being_written, log, users, about)
    except OSError as error:
        raise DataError(f"{folder} could not be written: {error.strerror or error}") from None
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
    """Return the size and the checksums of the file; raise DataError if a checksum is not the expected one."""
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


def _open(archive: Path, source: Source, raw: Path) -> tuple[pa.Table, pa.Table]:
    """Extract the known members of an archive, or copy the file, to where the reader finds it, and read it."""
    raw.mkdir()
    path = raw / source.file_name
    try:
        if source.members:
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(raw, source.members)
            path = (raw / source.members[0]).parent
        else:
            path.symlink_to(archive.resolve())
        events, users = open_events(path, None, Columns())
        if users is None:
            raise DataError(f"{path.name} must have the columns of the published file")
        return events.read(), users.read()
    except KeyError as error:
        raise DataError(f"{archive.name} must hold {', '.join(source.members)}: {error.args[0]}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive.name} cannot be read as a zip archive: {error}") from None
    except DataError as error:  # the user does not know the temporary folder
        raise DataError(str(error).replace(str(raw), archive.name)) from None


def _check_replaceable(folder: Path, *, force: bool) -> None:
    """Raise DataError if the folder holds anything that this module did not write."""
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
        sizes = {name: (folder / name).stat().st_size for name in _FILES if name != _MANIFEST}
        has_all = set(about) >= _REQUIRED and set(about["counts"]) == set(_COUNTS)
        return about if has_all and about["files"] == sizes else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
