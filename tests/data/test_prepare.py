"""From the published file to the folder that a run reads: the same events, checked, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import socket
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import ConfigurationError, DataError, EventLog, read_events
from fairstream.data.datasets import prepare
from fairstream.data.datasets.prepare import Prepared, get_dataset
from fairstream.data.datasets.sources import PUBLISHED, SOURCES, nearest
from raw_layouts import (
    PEOPLE,
    RATINGS,
    Row,
    members_1m,
    original,
    write_1m,
    write_100k,
    write_modcloth,
    zipped,
)
from web import Cut, Page, Redirect, Web, address_without_server

NAMES = list(SOURCES)
WRITE = {"movielens-1m": write_1m, "movielens-100k": write_100k, "modcloth": write_modcloth}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def get(web: Web, content: bytes, to: Path, name: str = "movielens-1m", **options: Any) -> Prepared:
    """From the server, with the checksum that the content has."""
    url = web.serve("/archive", content)
    return get_dataset(name, to=to, url=url, **{"sha256": sha256(content), **options})


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


WHOLE = ["interactions.parquet", "movielens-1m", "source.json", "users.parquet"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["address", "file"])
def test_what_is_prepared_is_what_the_raw_data_says(web: Web, name: str, how: str, tmp_path: Path) -> None:
    content, to = original(name), tmp_path / "to"
    if how == "address":
        prepared = get(web, content, to, name)
    else:
        (tmp_path / "archive").write_bytes(content)
        prepared = get_dataset(name, to=to, archive=tmp_path / "archive", sha256=sha256(content))
    raw = tmp_path / "raw"
    raw.mkdir()
    source = SOURCES[name]
    expected = read_events(WRITE[name](raw))
    log = read_events(to / name, group=source.group, advantaged=source.advantaged)
    assert log.fingerprint() == expected.fingerprint()
    assert log.notes == ()
    assert prepared.is_new
    assert prepared.folder == to / name
    assert names_in(to) == sorted([name, "interactions.parquet", "users.parquet", "source.json"])


@pytest.mark.slow
@given(
    ratings=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 20), st.integers(1, 5), st.integers(978_300_000, 978_300_020)),
        max_size=40,
    )
)
def test_any_ratings_are_prepared_as_they_are_read(web: Web, ratings: list[Row]) -> None:
    ratings = [*RATINGS, *ratings]
    people = [*PEOPLE, *((u, "MF"[u % 2], 25, 1, "0") for u in range(5, 9))]  # of user 9 nothing is known
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        raw.mkdir()
        get(web, zipped(members_1m(ratings, people)), Path(folder))
        expected = read_events(write_1m(raw, ratings, people))
        assert read_events(Path(folder) / "movielens-1m").fingerprint() == expected.fingerprint()
        by_age = [read_events(place, group="age").groups for place in (raw, Path(folder) / "movielens-1m")]
        assert by_age[0] is not None
        assert by_age[1] is not None
        assert by_age[0].codes.tolist() == by_age[1].codes.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_where_it_came_from_is_written_down(web: Web, name: str, tmp_path: Path) -> None:
    content = original(name)
    prepared = get(web, content, tmp_path, name)
    about = json.loads((tmp_path / name / "source.json").read_text())
    log = read_events(tmp_path / name)
    assert about == json.loads(json.dumps(prepared.about))
    assert about["from"] == f"{web.address}/archive"
    assert (about["size"], about["sha256"]) == (len(content), sha256(content))
    assert about["md5"] == hashlib.md5(content).hexdigest()
    assert about["counts"] == {"n_events": len(log), "n_users": log.n_users, "n_items": log.n_items}
    assert about["terms"] == SOURCES[name].terms
    assert about["fetched"].endswith("+00:00")


@pytest.mark.parametrize("name", NAMES)
def test_other_counts_than_the_papers_are_told_and_kept(web: Web, name: str, tmp_path: Path) -> None:
    prepared = get(web, original(name), tmp_path, name)
    in_paper = {known.name: known for known in PUBLISHED}
    if name not in in_paper:
        assert prepared.difference is None
        return
    assert prepared.difference is not None
    for count in (*in_paper[name].counts, *prepared.about["counts"].values()):
        assert f"{count:,}" in prepared.difference
    assert (tmp_path / name / "interactions.parquet").is_file()


def test_only_users_with_events_are_kept(web: Web, tmp_path: Path) -> None:
    get(web, original("movielens-1m"), tmp_path)
    users = pa.parquet.read_table(tmp_path / "movielens-1m" / "users.parquet")
    assert users.column_names == ["user_id", "gender", "age", "occupation", "zip"]
    assert users["user_id"].to_pylist() == [1, 2, 3]  # and not 4, who has none


@pytest.mark.slow
def test_the_papers_data_comes_out_with_the_papers_counts(web: Web, paper_data: Path, tmp_path: Path) -> None:
    """ModCloth in its raw layout, with events that do not count among those that do."""
    events, users = (
        pa.parquet.read_table(paper_data / "modcloth" / f"{name}.parquet").to_pandas()
        for name in ("interactions", "users")
    )
    shapes = dict(zip(users.user_id, users.body_shape, strict=True))
    reviews: list[Row] = []
    for n, (user, item, time) in enumerate(zip(events.user_id, events.item_id, events.timestamp, strict=True)):
        reviews.append((item, user, 3 + n % 3, str(time), shapes[user]))
        if n % 9 == 0:
            reviews.append((item + 5000, user, n % 2 + 1, str(time), shapes[user]))
            reviews.append((item, user + 50_000, 5, str(time), ""))
    prepared = get(web, write_modcloth(tmp_path, reviews).read_bytes(), tmp_path, "modcloth")
    assert prepared.source.counts
    assert prepared.difference is None
    assert read_events(tmp_path / "modcloth").fingerprint() == read_events(paper_data / "modcloth").fingerprint()


@pytest.mark.parametrize("known", PUBLISHED, ids=lambda known: known.name)
def test_the_papers_own_counts_are_no_difference(known: Any) -> None:
    counts = dict(zip(("n_events", "n_users", "n_items"), known.counts, strict=True))
    prepared = Prepared(SOURCES[known.name], Path(), {"counts": counts}, is_new=True)
    assert prepared.difference is None
    assert nearest(*counts.values()) == known
    assert Prepared(prepared.source, Path(), {"counts": counts | {"n_items": 1}}, is_new=True).difference is not None


# ── checksums ────────────────────────────────────────────────────────────────────────────


def test_a_wrong_checksum_ends_it_before_anything_is_unpacked(web: Web, tmp_path: Path) -> None:
    content = b"not even an archive"
    with pytest.raises(DataError, match=r"must have the sha256 0{64}, but has [0-9a-f]{64} \(19 bytes\)"):
        get(web, content, tmp_path / "to", sha256="0" * 64)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("name", ["movielens-1m", "movielens-100k"])
def test_the_published_checksum_counts_where_none_is_given(web: Web, name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"must have the md5 {SOURCES[name].md5}, .* give --sha256 {'.' * 64}"):
        get(web, original(name), tmp_path / "to", name, sha256=None)
    assert names_in(tmp_path) == []


def test_without_a_published_checksum_what_comes_is_taken_and_its_own_written_down(web: Web, tmp_path: Path) -> None:
    prepared = get(web, original("modcloth"), tmp_path, "modcloth", sha256=None)
    assert (prepared.about["sha256"], prepared.about["checksum"]) == (sha256(original("modcloth")), "none is published")


def test_a_checksum_may_be_written_in_capitals(web: Web, tmp_path: Path) -> None:
    content = original("movielens-1m")
    assert get(web, content, tmp_path, sha256=sha256(content).upper()).is_new


# ── what goes wrong ──────────────────────────────────────────────────────────────────────

MEMBERS = members_1m()
LACKING = zipped({name: MEMBERS[name] for name in MEMBERS if "users" not in name})
HEAD, BODY = zipped(MEMBERS).split(b"ml-1m/ratings.dat", 1)
BAD_ARCHIVES: dict[str, tuple[bytes, str]] = {
    "no archive": (b"<html>", "cannot be read as a zip archive"),
    "nothing": (b"", "cannot be read as a zip archive"),
    "half an archive": (zipped(MEMBERS)[:-40], "cannot be read as a zip archive"),
    "damaged": (HEAD + b"ml-1m/ratings.dat0000000" + BODY[7:], "cannot be read as a zip archive"),
    "no users": (LACKING, "must hold ml-1m/ratings.dat, ml-1m/users.dat: .*no item named 'ml-1m/users.dat'"),
    "another data set": (original("movielens-100k"), "must hold ml-1m/ratings.dat"),
    "bad ratings": (
        zipped(MEMBERS | {"ml-1m/ratings.dat": b"1::2::x::4\n"}),
        "ml-1m.zip/ml-1m/ratings.dat must have the fields",
    ),
    "no ratings above 2": (zipped(MEMBERS | {"ml-1m/ratings.dat": b"1::2::1::4\n"}), "none of the 1 events"),
}


@pytest.mark.parametrize(("content", "named"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_a_bad_archive_is_one_sentence_and_leaves_nothing(web: Web, content: bytes, named: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"\A[^\n]*{named}[^\n]*\Z"):
        get(web, content, tmp_path / "deep" / "down")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("page", [None, Cut(original("movielens-1m")[:100], 900)], ids=["missing", "cut"])
def test_a_failed_download_says_what_to_do_and_leaves_nothing(web: Web, page: Page | None, tmp_path: Path) -> None:
    web.pages = {} if page is None else {"/archive": page}
    advice = f"get {SOURCES['movielens-1m'].url} by other means .*`fairstream data get movielens-1m --from ml-1m.zip`"
    with pytest.raises(DataError, match=rf"\A[^\n]*could not be fetched: [^\n]*{advice}[^\n]*\Z"):
        get_dataset("movielens-1m", to=tmp_path / "to", url=f"{web.address}/archive")
    assert names_in(tmp_path) == []


def test_without_a_connection_what_was_there_stays(web: Web, tmp_path: Path) -> None:
    get(web, original("movielens-1m"), tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "movielens-1m").iterdir()}
    with pytest.raises(DataError, match="Connection refused"):
        get_dataset("movielens-1m", to=tmp_path, url=address_without_server() + "/archive", force=True)
    assert {path: path.read_bytes() for path in (tmp_path / "movielens-1m").iterdir()} == before
    assert names_in(tmp_path) == WHOLE


CANNOT: dict[str, tuple[Page, str]] = {
    "cut": (Cut(b"half", told=8), "4 bytes read, 4 more expected"),
    "cut in a chunk": (Cut(b"half", told=None), "4 bytes read"),
    "to a file": (Redirect("file:///etc/hostname"), "No connection adapters were found for 'file:"),
    "to FTP": (Redirect("ftp://127.0.0.1/file"), "No connection adapters were found for 'ftp:"),
    "in a circle": (Redirect("/archive"), "Exceeded 30 redirects"),
    "to what is missing": (Redirect("/nowhere"), "404"),
}


@pytest.mark.parametrize(("page", "reason"), CANNOT.values(), ids=CANNOT)
def test_what_cannot_be_downloaded_is_one_sentence_and_leaves_nothing(
    web: Web, page: Page, reason: str, tmp_path: Path
) -> None:
    web.pages = {"/archive": page}
    with pytest.raises(DataError, match=rf"\A{web.address}/archive could not be fetched: [^\n]*{reason}[^\n]*\Z"):
        get_dataset("modcloth", to=tmp_path / "to", url=f"{web.address}/archive")
    assert names_in(tmp_path) == []


def test_a_redirect_is_followed(web: Web, tmp_path: Path) -> None:
    web.pages = {"/archive": Redirect("/there"), "/there": original("modcloth")}
    assert get_dataset("modcloth", to=tmp_path, url=f"{web.address}/archive").is_new


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(DataError, match="timed out"):
            get_dataset("modcloth", to=tmp_path / "to", url=url)
    assert names_in(tmp_path) == []


class Bar:
    """A progress bar as pooch uses it."""

    def __init__(self, *, interrupting: bool = False) -> None:
        self.total, self.done, self.interrupting = 0, 0, interrupting

    def update(self, n_bytes: int) -> None:
        self.done += n_bytes
        if self.interrupting:
            raise KeyboardInterrupt

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def test_the_progress_bar_ends_at_the_size_of_the_file(web: Web, tmp_path: Path) -> None:
    bar, content = Bar(), original("movielens-1m")
    get(web, content, tmp_path, progressbar=bar)
    assert bar.done == bar.total == len(content)


def test_an_interruption_leaves_nothing(web: Web, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        get(web, original("movielens-1m"), tmp_path / "to", progressbar=Bar(interrupting=True))
    assert names_in(tmp_path) == []


def test_an_archive_cannot_choose_where_it_is_put(web: Web, tmp_path: Path) -> None:
    outside = tmp_path / "a" / "b"
    hostile = {f"{'../' * n}ratings.dat": b"stolen" for n in range(1, 8)} | {str(tmp_path / "absolute"): b"stolen"}
    prepared = get(web, zipped(hostile | MEMBERS), outside)
    assert prepared.about["counts"]["n_events"] == 4
    assert names_in(tmp_path) == sorted(["a", "b", *WHOLE])


def test_an_encrypted_archive_is_refused(web: Web, tmp_path: Path) -> None:
    content = bytearray(original("movielens-1m"))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag of every member, in both places
        for start in (n for n in range(len(content)) if content[n : n + 4] == mark):
            content[start + at] |= 1
    assert zipfile.is_zipfile(BytesIO(content))
    with pytest.raises(DataError, match=r"cannot be read as a zip archive: [^\n]*encrypted[^\n]*\Z"):
        get(web, bytes(content), tmp_path / "to")
    assert names_in(tmp_path) == []


# ── what is there already ────────────────────────────────────────────────────────────────


def test_what_is_there_is_left_alone_and_nothing_is_asked_of_the_server(web: Web, tmp_path: Path) -> None:
    first = get(web, original("movielens-1m"), tmp_path)
    asked = len(web.asked)
    again = get_dataset("movielens-1m", to=tmp_path)
    assert len(web.asked) == asked
    assert not again.is_new
    assert again.about == json.loads(json.dumps(first.about))


def test_what_is_there_must_have_the_checksum_that_is_asked_for(web: Web, tmp_path: Path) -> None:
    content = original("movielens-1m")
    get(web, content, tmp_path)
    assert not get(web, content, tmp_path, sha256=sha256(content).upper()).is_new
    with pytest.raises(
        DataError, match=rf"sha256 0{{64}}, but exists already from one with {sha256(content)}; .*--force"
    ):
        get(web, content, tmp_path, sha256="0" * 64)


@pytest.mark.parametrize("about", [{}, [], {"files": {}}, "sha256", "counts", "terms"], ids=str)
def test_a_manifest_that_does_not_tell_all_is_none(web: Web, about: Any, tmp_path: Path) -> None:
    manifest = get(web, original("movielens-1m"), tmp_path).folder / "source.json"
    if isinstance(about, str):
        about = {name: part for name, part in json.loads(manifest.read_text()).items() if name != about}
    manifest.write_text(json.dumps(about))
    with pytest.raises(DataError, match="exists already and is not what"):
        get(web, original("movielens-1m"), tmp_path)


def test_force_makes_it_anew(web: Web, tmp_path: Path) -> None:
    get(web, original("movielens-1m"), tmp_path)
    fewer = zipped(members_1m(RATINGS[:4]))
    again = get(web, fewer, tmp_path, force=True)
    assert again.is_new
    assert len(read_events(tmp_path / "movielens-1m", group="gender")) == again.about["counts"]["n_events"] == 3
    assert names_in(tmp_path) == WHOLE


@pytest.mark.parametrize("name", ["interactions.parquet", "users.parquet", "source.json"])
@pytest.mark.parametrize("how", ["missing", "cut"])
def test_what_is_not_whole_is_replaced_only_when_asked(web: Web, name: str, how: str, tmp_path: Path) -> None:
    content = original("movielens-1m")
    whole = {path: path.read_bytes() for path in get(web, content, tmp_path).folder.iterdir()}
    file = tmp_path / "movielens-1m" / name
    file.unlink() if how == "missing" else file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"exists already and is not what .* wrote; .*--data, .*--force"):
        get(web, content, tmp_path)
    get(web, content, tmp_path, force=True)
    for path, expected in whole.items():
        assert path.name == "source.json" or path.read_bytes() == expected


def test_what_is_somebody_elses_is_never_replaced(web: Web, tmp_path: Path) -> None:
    mine = tmp_path / "movielens-1m" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    for force in (False, True):
        with pytest.raises(DataError, match=r"holds something else \(thesis.txt\); choose another with --data"):
            get(web, original("movielens-1m"), tmp_path, force=force)
    assert names_in(tmp_path) == ["movielens-1m", "thesis.txt"]


def test_a_file_in_the_place_of_the_folder(web: Web, tmp_path: Path) -> None:
    (tmp_path / "movielens-1m").write_text("mine")
    with pytest.raises(DataError, match="holds something else"):
        get(web, original("movielens-1m"), tmp_path, force=True)
    with pytest.raises(DataError, match=r"\A[^\n]*could not be written[^\n]*\Z"):
        get(web, original("movielens-1m"), tmp_path / "movielens-1m")
    assert (tmp_path / "movielens-1m").read_text() == "mine"


def test_an_empty_folder_is_filled(web: Web, tmp_path: Path) -> None:
    (tmp_path / "movielens-1m").mkdir()
    assert get(web, original("movielens-1m"), tmp_path).is_new


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--url or --from, not both"):
        get_dataset("modcloth", to=tmp_path, url="http://127.0.0.1/", archive=tmp_path)
    with pytest.raises(ConfigurationError, match="sha256 must be 64 hexadecimal digits, got 'abc'"):
        get_dataset("modcloth", to=tmp_path, sha256="abc")
    with pytest.raises(DataError, match="there is no file"):
        get_dataset("modcloth", to=tmp_path, archive=tmp_path / "nothing.csv")
    with pytest.raises(DataError, match="are movielens-1m, movielens-100k, modcloth, got 'netflix'"):
        get_dataset("netflix", to=tmp_path)
    assert names_in(tmp_path) == []


def test_the_prepared_folder_feeds_a_log(web: Web, tmp_path: Path) -> None:
    """The ids are those of the raw data, so what is learned can be told in the terms of its home."""
    get(web, original("modcloth"), tmp_path, "modcloth")
    log: EventLog = read_events(tmp_path / "modcloth")
    assert set(log.user_ids.ids.to_pylist()) == {"Alex", "Robyn", "De, Anna"}
