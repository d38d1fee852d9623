"""From a downloaded file to the raw data in it: its checksums first, then the members that are known."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from fairstream.data.datasets.fetch import LARGEST
from fairstream.data.datasets.sources import Source
from fairstream.errors import DataError


@dataclass(frozen=True)
class Checksums:
    """What a file is known by."""

    size: int
    sha256: str
    md5: str
    """For the homes that publish no other; it tells a broken file, not a forged one."""

    @classmethod
    def of(cls, path: Path) -> Checksums:
        """Read the file once for all of them."""
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                sha256.update(piece)
                md5.update(piece)
        return cls(path.stat().st_size, sha256.hexdigest(), md5.hexdigest())

    def need(self, source: Source, sha256: str | None) -> str:
        """Raise where the file is not the one that was asked for; else say what it was checked against.

        A SHA-256 that the caller gives counts in the place of what the home publishes.
        """
        kind, wanted, found = ("sha256", sha256.lower(), self.sha256) if sha256 else ("md5", source.md5, self.md5)
        if wanted is None:
            return "none is published"
        if found != wanted:
            raise DataError(
                f"{source.file_name} must have the {kind} {wanted}, but what came has {found} ({self.size:,} bytes); "
                f"fetch it again, or if this is the file that you want, give --sha256 {self.sha256}"
            )
        return "as asked for" if sha256 else "the md5 is the published one"


def unpack(archive: Path, source: Source, folder: Path) -> Path:
    """The raw data, as `read_events` reads it, in the existing `folder`.

    Of an archive only the members that are known by name are read, and written under names of
    ours: what else it holds, and where it would like to be put, does not matter.
    """
    if not source.members:
        raw = folder / source.file_name
        shutil.copyfile(archive, raw)
        return raw
    try:
        with zipfile.ZipFile(archive) as opened:
            for member, name in source.members.items():
                _copy(opened, member, folder / name)
    except KeyError as error:
        raise DataError(f"{archive.name} must hold {', '.join(source.members)}: {error.args[0]}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive.name} cannot be read as a zip archive: {error}") from None
    return folder


def _copy(opened: zipfile.ZipFile, member: str, to: Path) -> None:
    if opened.getinfo(member).file_size > LARGEST:  # no more than what is said here is ever read
        raise DataError(
            f"{member} must be at most {LARGEST:,} bytes, but says it has more; get the archive from its home"
        )
    with opened.open(member) as inside, to.open("wb") as file:
        shutil.copyfileobj(inside, file)
