"""Fetching a data set of the paper and preparing it: the folder that `fairstream run` reads, whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from fairstream._version import __version__
from fairstream.data.datasets.archives import Checksums, unpack
from fairstream.data.datasets.dataset import Dataset
from fairstream.data.datasets.fetch import OnProgress, fetch
from fairstream.data.datasets.locate import data_home
from fairstream.data.datasets.published import PUBLISHED, difference_from_paper
from fairstream.data.datasets.sources import Source, find_source
from fairstream.data.log import EventLog
from fairstream.data.readers import open_tables, read_events
from fairstream.errors import ConfigurationError, DataError
from fairstream.files import new_folder, sibling_tempdir

_MANIFEST = "source.json"
_FILES = ("interactions.parquet", "users.parquet", _MANIFEST)
_TOLD = {"from", "size", "sha256", "checksum", "terms"}


@dataclass(frozen=True)
class Prepared:
    """A prepared data set, and what is known of where it came from."""

    source: Source
    folder: Path
    about: Mapping[str, Any]
    """What `source.json` says."""
    is_new: bool
    """False where it was there already and has been left alone."""

    @property
    def is_in_paper(self) -> bool:
        """Whether the paper gives counts of this data set."""
        return any(known.name == self.source.name for known in PUBLISHED)

    @property
    def difference(self) -> str | None:
        """A sentence with both counts, where the paper gives other ones for the data set."""
        return difference_from_paper(self.source.name, **self.about["counts"])


def get_dataset(
    name: str,
    *,
    to: Path | None = None,
    url: str | None = None,
    sha256: str | None = None,
    archive: Path | None = None,
    force: bool = False,
    on_progress: OnProgress = lambda done, total: None,
) -> Prepared:
    """Prepare the data set `name` in the folder `to`/`name`, from its home, from `url` or from a file that is here.

    The file must have the `sha256` that is given or else the checksum that its home publishes.
    What is there already is left alone, unless `force` says to make it anew.
    """
    source = find_source(name)
    _need_one_origin(url, sha256, archive)
    folder = (data_home() if to is None else to) / name
    if not force and (about := _read_manifest(folder)) is not None:
        _need_same(folder, about["sha256"], sha256)
        return Prepared(source, folder, about, is_new=False)
    _need_place(folder, force=force)
    with _nothing_left_behind(folder), sibling_tempdir(folder, "tmp") as working:
        if archive is None:
            archive, origin = working / source.file_name, url or source.url
            _fetch(source, origin, archive, on_progress)
        else:
            origin = archive.name
        found = Checksums.of(archive)
        checked = found.need(source, sha256)
        dataset = _open(archive, source, working / "raw")
        log = read_events(dataset.events)
        about = _about(source, origin, found, checked, log)
        with new_folder(folder, replacing=True) as being_written:
            _write(being_written, log, dataset.users, about)
    return Prepared(source, folder, about, is_new=True)


def _fetch(source: Source, url: str, path: Path, on_progress: OnProgress) -> None:
    try:
        fetch(url, path, on_progress=on_progress)
    except DataError as error:
        raise DataError(
            f"{error}; without a connection, get {source.url} by other means and prepare it with "
            f"`fairstream data get {source.name} --from {source.file_name}`"
        ) from None


def _open(archive: Path, source: Source, raw: Path) -> Dataset:
    raw.mkdir()
    try:
        return open_tables(unpack(archive, source, raw), None)
    except DataError as error:  # nobody knows the folder that this was unpacked to
        raise DataError(str(error).replace(str(raw), archive.name)) from None


def _need_one_origin(url: str | None, sha256: str | None, archive: Path | None) -> None:
    if url is not None and archive is not None:
        raise ConfigurationError("a data set comes from an address or from a file; give --url or --from, not both")
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ConfigurationError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")
    if archive is not None and not archive.is_file():
        raise DataError(f"there is no file {archive} to prepare; give the archive as its home gives it")


def _need_same(folder: Path, found: str, wanted: str | None) -> None:
    if wanted is not None and wanted.lower() != found:
        raise DataError(
            f"{folder} must come from a file with the sha256 {wanted.lower()}, but is there already "
            f"from one with {found}; replace it with --force"
        )


def _need_place(folder: Path, *, force: bool) -> None:
    """Only what this module wrote is ever replaced."""
    if not folder.exists():
        return
    foreign = [folder.name] if not folder.is_dir() else [e.name for e in folder.iterdir() if e.name not in _FILES]
    if foreign:
        raise DataError(f"{folder} holds something else ({', '.join(sorted(foreign)[:4])}); choose another with --to")
    if not force and any(folder.iterdir()):
        raise DataError(
            f"{folder} is there already and is not what `fairstream data get` left there; "
            f"choose another with --to, or replace it with --force"
        )


@contextmanager
def _nothing_left_behind(folder: Path) -> Iterator[None]:
    """Whatever fails, the folders above that were made for it go too; what the disk refuses becomes one sentence."""
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


def _about(source: Source, origin: str, found: Checksums, checked: str, log: EventLog) -> dict[str, Any]:
    return {
        "fairstream": __version__,
        "name": source.name,
        "home": source.url,
        "from": origin,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        **asdict(found),
        "checksum": checked,
        "counts": {"n_events": len(log), "n_users": log.n_users, "n_items": log.n_items},
        "notes": log.notes,
        "terms": source.terms,
    }


def _write(folder: Path, log: EventLog, users: pa.Table, about: dict[str, Any]) -> None:
    """The events that count, in the order of time, with the ids of the raw data, and the users who have any."""
    ids, items = log.user_ids.ids, log.item_ids.ids
    events = pa.table({"user_id": ids.take(log.users), "item_id": items.take(log.items), "timestamp": log.times})
    pa.parquet.write_table(events, folder / "interactions.parquet")
    has_events = pc.is_in(users["user_id"].cast(ids.type), value_set=ids)
    pa.parquet.write_table(users.filter(has_events), folder / "users.parquet")
    about["files"] = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps(about, indent=2) + "\n")


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """What a whole prepared folder says of itself; None for anything else."""
    try:
        about: dict[str, Any] = json.loads((folder / _MANIFEST).read_bytes())
        is_whole = set(about["files"]) == set(_FILES) - {_MANIFEST} and all(
            (folder / name).stat().st_size == size for name, size in about["files"].items()
        )
        tells_all = set(about) >= _TOLD and set(about["counts"]) == {"n_events", "n_users", "n_items"}
        return about if is_whole and tells_all else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
