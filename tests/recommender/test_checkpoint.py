"""Save and load: bit for bit the same recommender, or one sentence and the old one untouched."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fairstream
from fairstream import CheckpointError, ConfigurationError, Context, FairRecommender, ItemTable, Scorer, UserTable
from fairstream.data import Vocabulary
from fairstream.files import replace_file
from fairstream.recommender import checkpoint
from fairstream.recommender.checkpoint import vocabulary_from_tensors, vocabulary_tensors
from fairstream.training.optimizers import state_tensors
from support import make_recommender

FAST = {"pretrain_epochs": 2, "update_epochs": 2, "embedding_dim": 8, "batch_size": 64, "device": "cpu"}
STREAM = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)


class Biased(Scorer):
    """A model of one's own, with a layer and a buffer beside its tables."""

    def __init__(self, n_users: int, n_items: int, width: int = 4) -> None:
        super().__init__()
        self.user, self.item = UserTable(n_users, width), ItemTable(n_items, width)
        self.layer = torch.nn.Linear(width, width)
        self.register_buffer("n_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, users: torch.Tensor, items: torch.Tensor, context: Context) -> torch.Tensor:
        if self.training:
            self.n_calls += 1
        return (self.layer(self.user(users)).unsqueeze(1) * self.item(items)).sum(-1)


class Lucky(Biased):
    """A model that keeps something random which no checkpoint holds."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items)
        self.register_buffer("luck", torch.rand(4), persistent=False)

    def forward(self, users: torch.Tensor, items: torch.Tensor, context: Context) -> torch.Tensor:
        return super().forward(users, items, context) + (self.item(items) * self.luck).sum(-1)


class Tied(Biased):
    """Two layers that share their weights."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items)
        self.again = self.layer


def by_name(table: pa.Table) -> pa.Table:
    """The same table with strings for ids, from several alphabets."""
    for column in {"user_id", "item_id"} & set(table.column_names):
        names = [f"{'aé漢🎬'[number % 4]}{number}" for number in table[column].to_pylist()]
        table = table.set_column(table.column_names.index(column), column, [names])
    return table


def parts(named: bool = False) -> tuple[list[pa.Table], pa.Table]:
    """Three periods' events, and the users."""
    tables = [*(STREAM.events.slice(*at) for at in ((0, 1200), (1200, 400), (1600, 400))), STREAM.users]
    *periods, users = map(by_name, tables) if named else tables
    return periods, users


def fitted(model: Any = "mf", *, named: bool = False, **options: Any) -> FairRecommender:
    (first, *_), users = parts(named)
    recommender = make_recommender(model, **{**FAST, **options})
    recommender.fit(fairstream.read_events(first, users=users, group="community", advantaged="majority"))
    return recommender


def through_a_file(recommender: FairRecommender, folder: Path, model: Any = None) -> FairRecommender:
    recommender.save(folder)
    return fairstream.load(folder, device="cpu", **({} if model is None else {"model": model}))


def recommended(recommender: FairRecommender) -> pa.Table:
    """For everyone who is known, and for somebody who is not."""
    stranger = pa.array(
        [10**6 if pa.types.is_integer(recommender.state.user_ids.ids.type) else "?"],
        recommender.state.user_ids.ids.type,
    )
    return recommender.recommend(pa.concat_arrays([recommender.state.user_ids.ids, stranger]), k=10)


def tensors(recommender: FairRecommender) -> dict[str, torch.Tensor]:
    state = recommender.state
    optimizer = state_tensors(state.optimizer, state.model)
    return {**state.model.state_dict(), **{f"optimizer/{name}": value for name, value in optimizer.items()}}


def assert_same(one: FairRecommender, other: FairRecommender) -> None:
    ours, theirs = tensors(one), tensors(other)
    assert set(ours) == set(theirs)
    different = [name for name, value in ours.items() if not torch.equal(value, theirs[name])]
    assert not different
    assert [value.dtype for value in ours.values()] == [theirs[name].dtype for name in ours]
    assert one.state.t == other.state.t
    assert dict(one.state.memory) == dict(other.state.memory)
    assert one.state.trained.tolist() == other.state.trained.tolist()
    assert one.state.history.n_items_before == other.state.history.n_items_before
    assert one.state.history.recent_popularity.tolist() == other.state.history.recent_popularity.tolist()
    for field in ("attribute", "names", "choice"):
        assert getattr(one.state.groups, field) == getattr(other.state.groups, field)
    assert one.state.groups.codes.tolist() == other.state.groups.codes.tolist()
    assert one.recipe.to_json() == other.recipe.to_json()
    assert recommended(one) == recommended(other)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tensor_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def the_sentence(use: Callable[[], object]) -> str:
    """What a failure says; it must say it in one sentence."""
    with pytest.raises(CheckpointError) as caught:
        use()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert not sentence.endswith((":", " "))
    return sentence


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    fitted().save(tmp_path / "saved")
    return tmp_path / "saved"


# ── bit for bit ──────────────────────────────────────────────────────────────────────────


@pytest.mark.few(2)
@pytest.mark.parametrize(("model", "optimizer", "named"), [("mf", "row", True), ("ncf", "dense", False)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"restart_every": 2},
        {"restart": "on-degradation"},
        {"method": "Retrain"},
        {"method": "Pretrain-Fair"},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "fade",
)
def test_saving_and_loading_changes_nothing_that_follows(
    model: str, optimizer: str, options: dict[str, Any], named: bool, tmp_path: Path
) -> None:
    (_, *later), users = parts(named)
    untouched = fitted(model, optimizer=optimizer, named=named, seed=3, **options)
    travelled = through_a_file(untouched, tmp_path)
    assert_same(untouched, travelled)
    for events in later:
        judged = [
            recommender.evaluate(events, users=users, min_group_size=1, n_resamples=20).to_dict()
            for recommender in (untouched, travelled)
        ]
        assert judged[0] == judged[1]
        steps = [recommender.update(events, users=users).last_update.step for recommender in (untouched, travelled)]
        assert steps[0] == steps[1]
        assert_same(untouched, travelled)
        travelled = through_a_file(travelled, tmp_path)
        assert_same(untouched, travelled)


@pytest.mark.few(1)
@pytest.mark.parametrize("advantaged", ["g2", None])
def test_any_number_of_groups_survives_a_checkpoint(advantaged: str | None, tmp_path: Path) -> None:
    (first, second, third), users = parts()
    names = [None if user % 6 == 5 else f"g{user % 6}" for user in range(100)]
    arrived = set(second["user_id"].to_pylist()) - set(first["user_id"].to_pylist())
    names = ["late" if user in arrived else name for user, name in enumerate(names)]  # a group that only comes later
    users = users.set_column(1, "community", [names])
    early = users.filter(pc.is_in(users["user_id"], pc.unique(first["user_id"])))
    untouched = make_recommender("mf", **FAST)
    untouched.fit(fairstream.read_events(first, users=early, group="community", advantaged=advantaged))
    travelled = through_a_file(untouched, tmp_path)
    began = untouched.state.groups
    for events in (second, third):
        for recommender in (untouched, travelled):
            recommender.update(events, users=users)
        assert_same(untouched, travelled)
        travelled = through_a_file(travelled, tmp_path)
        assert_same(untouched, travelled)
    assert len(began.names) == 5
    assert untouched.state.groups.names == (*began.names, "late")


def test_a_model_of_ones_own_is_saved_whole(tmp_path: Path) -> None:
    (_, *later), users = parts()
    untouched = fitted(Biased)
    travelled = through_a_file(untouched, tmp_path, Biased)
    for events in later:
        for recommender in (untouched, travelled):
            recommender.update(events, users=users)
    assert int(travelled.model.state_dict()["n_calls"]) > 0
    assert_same(untouched, travelled)


def test_the_engine_is_kept(tmp_path: Path) -> None:
    for engine in ("reference", "fused", "auto"):
        made = make_recommender("mf", pretrain_epochs=1, device="cpu", engine=engine)
        made.fit(STREAM.events, users=STREAM.users)
        made.save(tmp_path / engine)
        assert fairstream.load(tmp_path / engine)._trainer.engine == engine


def test_a_model_with_tied_weights_is_saved_too(tmp_path: Path) -> None:
    untouched = fitted(Tied)
    assert_same(untouched, through_a_file(untouched, tmp_path, Tied))


@pytest.mark.slow
def test_a_restarted_model_is_made_again_as_it_was_started(tmp_path: Path) -> None:
    (_, second, third), users = parts()
    untouched = fitted(Lucky, restart_every=2)
    for events in (second.slice(0, 100), second.slice(100)):  # fine-tune, then restart
        untouched.update(events, users=users)
    travelled = through_a_file(untouched, tmp_path, Lucky)
    for recommender in (untouched, travelled):
        recommender.update(third, users=users)
    assert_same(untouched, travelled)


def test_loading_leaves_the_loaded_checkpoint_alone(saved: Path) -> None:
    before = contents(saved)
    _, users = parts()
    fairstream.load(saved, device="cpu").update(STREAM.events.slice(1200), users=users)
    assert contents(saved) == before


@given(st.lists(st.text(max_size=8), unique=True, min_size=1) | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_any_ids_come_back(ids: list[Any]) -> None:
    vocabulary = Vocabulary(ids)
    back = vocabulary_from_tensors("x", vocabulary_tensors("x", vocabulary))
    assert back.ids == vocabulary.ids
    assert back.lookup(ids).tolist() == vocabulary.lookup(ids).tolist()


# ── what is in the folder ────────────────────────────────────────────────────────────────


def test_a_checkpoint_is_json_and_safetensors_and_nothing_else(saved: Path) -> None:
    assert {path.name for path in saved.iterdir()} == {"manifest.json", tensor_file(saved).name}
    manifest = json.loads((saved / "manifest.json").read_text())
    assert manifest["fairstream"] == fairstream.__version__
    assert manifest["tensors"]["file"] == tensor_file(saved).name
    with safetensors.safe_open(tensor_file(saved), framework="pt") as file:
        assert "model/user.weight" in file.keys()  # noqa: SIM118 (the file is no mapping)


def test_saving_again_replaces_the_checkpoint(saved: Path) -> None:
    first = tensor_file(saved).name
    recommender = fairstream.load(saved, device="cpu")
    recommender.save(saved)
    assert tensor_file(saved).name == first  # the same content, the same name
    recommender.update(STREAM.events.slice(1200), users=STREAM.users)
    recommender.save(str(saved))
    assert {path.name for path in saved.iterdir()} == {"manifest.json", tensor_file(saved).name}
    assert tensor_file(saved).name != first
    assert_same(recommender, fairstream.load(saved, device="cpu"))


def test_the_folder_is_made_and_other_files_in_it_stay(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    fitted().save(folder)
    (folder / "notes.txt").write_text("mine")
    fitted(seed=1).save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert len(contents(folder)) == 3


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "part-0.parquet").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds other files .part-0.parquet.; save into a new folder"):
        fitted().save(tmp_path)
    assert contents(tmp_path) == {"part-0.parquet": b"mine"}


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["mf", "item-item", "transitions", "blend"])
def test_a_frozen_checkpoint_recommends_and_observes_the_same_and_learns_nothing(model: str, tmp_path: Path) -> None:
    recommender, (_, later, _) = fitted(model), parts()[0]
    recommender.save(tmp_path)
    frozen = fairstream.load(tmp_path, frozen=True)
    content = tensor_file(tmp_path).read_bytes()
    assert recommended(frozen) == recommended(recommender)
    for each in (frozen, recommender):
        each.observe(later.slice(0, 100))
    assert recommended(frozen) == recommended(recommender)
    for forbidden in (
        lambda: frozen.update(later),
        lambda: frozen.forget(STREAM.events["user_id"][0].as_py()),
        lambda: frozen.save(tmp_path / "copy"),
    ):
        with pytest.raises(ConfigurationError, match="load it without"):
            forbidden()
    assert tensor_file(tmp_path).read_bytes() == content
    tensor_file(tmp_path).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "do not match their checksum" in the_sentence(lambda: fairstream.load(tmp_path, frozen=True))


# ── damage ───────────────────────────────────────────────────────────────────────────────


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_any_changed_byte_of_the_tensors_is_noticed(saved: Path, place: float, flip: int) -> None:
    path = tensor_file(saved)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[int(place * len(changed))] ^= flip
    path.write_bytes(changed)
    assert "do not match their checksum" in the_sentence(lambda: fairstream.load(saved))
    path.write_bytes(whole)
    assert_same(fairstream.load(saved, device="cpu"), fairstream.load(saved, device="cpu"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), which=st.sampled_from(["manifest.json", "tensors"]))
def test_any_truncated_file_is_noticed(saved: Path, share: float, which: str) -> None:
    path = saved / which if which == "manifest.json" else tensor_file(saved)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert "is damaged" in the_sentence(lambda: fairstream.load(saved))
    path.write_bytes(whole)


def test_missing_files_are_named(saved: Path, tmp_path: Path) -> None:
    assert "manifest.json is missing" in the_sentence(lambda: fairstream.load(tmp_path / "nowhere"))
    path = tensor_file(saved)
    path.rename(tmp_path / path.name)
    assert f"{path.name} is missing" in the_sentence(lambda: fairstream.load(saved))
    (tmp_path / path.name).rename(path)
    (saved / "manifest.json").unlink()
    assert "manifest.json is missing" in the_sentence(lambda: fairstream.load(saved))


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe\x00", b"{", b"[1, 2]", b"3", b"null", b'{"format": 6}', b"{}"])
def test_a_garbage_manifest_is_noticed(saved: Path, garbage: bytes) -> None:
    (saved / "manifest.json").write_bytes(garbage)
    assert "is damaged" in the_sentence(lambda: fairstream.load(saved))


def _without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest.pop(key)


def _with(**entries: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest.update(entries)


def _within(key: str, **entries: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest[key].update(entries)


@pytest.mark.parametrize(
    "spoil",
    [
        _without("format"),
        _without("tensors"),
        _without("memory"),
        _without("groups"),
        _without("t"),
        _with(format=2),
        _without("period_ends"),
        _without("n_items_before"),
        _without("columns"),
        _with(groups={"attribute": "community", "names": ["majority", "minority"]}),
        _with(tensors="tensors.safetensors"),
        _with(groups={"attribute": "community"}),
        _without("recipe"),
        _without("seed"),
        _with(recipe={"model": {"name": "mf", "settings": {"embedding_dim": -1}}}),
        _with(recipe={"model": {"name": "svd", "settings": {}}}),
        _with(recipe=None),
        _with(seed="x"),
        _with(seed=-1),
        _with(t="x"),
        _with(groups={"attribute": "community", "names": ["majority"]}),
        _with(groups=None),
        _with(groups={"attribute": 3, "names": ["majority", "minority"], "choice": "larger"}),
        _with(t=-1),
        _with(period_ends=[]),
        _with(last_time={"dtype": "<M8[us]", "value": 2**70}),
        _with(period_ends=[None]),
        _with(memory=3),
        _with(event_weights=None),
        _with(replays=[]),
        _within("columns", rating_above="x"),
        _within("recipe", fairness=3),
        _within("recipe", fairness={"a": 1}),
        _within("recipe", target={"a": 1}),
        _within("recipe", target="x"),
        _within("recipe", strategy=None),
        _within("recipe", strategy={"name": "fine-tune", "options": {"a": 1}}),
        _within("recipe", group_weight=None),
        _within("recipe", update_epochs="x"),
        lambda manifest: manifest["recipe"].pop("update_learning_rate"),
    ],
)
def test_a_manifest_that_fairstream_did_not_write_is_refused(
    saved: Path, spoil: Callable[[dict[str, Any]], object]
) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    spoil(manifest)
    (saved / "manifest.json").write_text(json.dumps(manifest))
    assert str(saved) in the_sentence(lambda: fairstream.load(saved))


def test_another_format_says_what_to_do(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps({**manifest, "format": 999}))
    sentence = the_sentence(lambda: fairstream.load(saved))
    assert "format 999, this version reads 6; use the version of fairstream that wrote it" in sentence


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_of_the_first_format_says_what_to_do(saved: Path, whole: bool) -> None:
    manifest = json.loads((saved / "manifest.json").read_text()) if whole else {}
    for name in ("memory", "n_items_before"):
        manifest.pop(name, None)
    (saved / "manifest.json").write_text(json.dumps({**manifest, "format": 1}))
    sentence = the_sentence(lambda: fairstream.load(saved))
    assert sentence == (
        f"{saved} has checkpoint format 1, this version reads 6; use the version of fairstream that wrote it"
    )


def test_a_model_of_ones_own_needs_its_constructor_and_others_take_none(saved: Path, tmp_path: Path) -> None:
    fitted(Biased).save(tmp_path / "own")
    with pytest.raises(ConfigurationError, match="custom model; pass it again as model="):
        fairstream.load(tmp_path / "own")
    with pytest.raises(ConfigurationError, match="do not pass a model"):
        fairstream.load(saved, model=Biased)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"fairness": "sined"}, "fairness loss must be one of signed, absolute"),
        ({"fairness": fairstream.GroupWeight(3.0)}, "the group weight of a checkpoint cannot change: .* saved with 1"),
        ({"target": 0.02}, "target must be fairstream.LeastRegret"),
        ({"strategy": "sometimes"}, "strategy must be one of keep, retrain"),
        (
            {"training": fairstream.Training(optimizer="dense")},
            "optimizer of a checkpoint cannot change: .* saved with 'row'",
        ),
        ({"model": fairstream.models.MF(embedding_dim=9)}, "the model of a checkpoint cannot change"),
        ({"engine": "fast"}, "engine must be one of"),
        ({"training": {"batch_size": 3}}, "training must be fairstream.Training"),
        ({"training": {}}, "training must be fairstream.Training"),
    ],
)
def test_a_wrong_option_is_never_a_damaged_checkpoint(saved: Path, changed: dict[str, Any], sentence: str) -> None:
    before = contents(saved)
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        fairstream.load(saved, **changed)
    assert "damaged" not in str(caught.value)
    assert contents(saved) == before


@pytest.mark.parametrize(
    "strategy", [fairstream.FineTune(restart_every=2), fairstream.RestartOnDegradation(), "retrain"]
)
def test_another_strategy_starts_afresh(saved: Path, strategy: Any) -> None:
    again = fairstream.load(saved, strategy=strategy)
    assert dict(again.state.memory) == {}
    again.update(pa.table({"user_id": [1, 2], "item_id": [9998, 9999], "time": [9.0, 9.0]}))
    assert again.last_update.t == 1


@pytest.mark.slow
def test_loading_beside_saving_always_gives_a_whole_checkpoint(tmp_path: Path) -> None:
    """The writer removes the old tensors once the new manifest is there; a reader may stand between the two."""
    one, other = fitted(), fitted(seed=1)
    one.save(tmp_path)
    expected = [recommended(one), recommended(other)]
    done = Event()

    def save() -> None:
        try:
            for _ in range(15):
                other.save(tmp_path)
                one.save(tmp_path)
        finally:
            done.set()

    writer = Thread(target=save)
    writer.start()
    loaded = []
    while not done.is_set():
        loaded.append(fairstream.load(tmp_path))
    writer.join()
    assert loaded
    assert all(recommended(recommender) in expected for recommender in loaded)


def test_the_wrong_model_is_refused(tmp_path: Path) -> None:
    fitted(Biased).save(tmp_path)
    sentence = the_sentence(lambda: fairstream.load(tmp_path, model=partial(Biased, width=5)))
    assert "does not fit this model" in sentence


# ── failing to write ─────────────────────────────────────────────────────────────────────


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    recommender = fitted()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert f"could not be written to {folder}" in the_sentence(lambda folder=folder: recommender.save(folder))
    assert contents(tmp_path) == {"file": b"mine"}


_SAVE_ON_A_FULL_DISK = """
import json, resource, signal, sys
from pathlib import Path
import fairstream

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
told = []
for base, limits in json.load(sys.stdin):
    folder = Path(base) / "saved"
    recommender = fairstream.load(folder, device="cpu")
    recommender.update(Path(base) / "later.parquet", users=Path(base) / "users.parquet")
    told.append([])
    for limit in limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # no file can grow beyond it, as on a full disk
        try:
            recommender.save(folder)
        except fairstream.CheckpointError as error:
            told[-1].append(str(error))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(json.dumps(told))
"""


class FullDisk(NamedTuple):
    """What a save on a full disk met with."""

    recommender: FairRecommender
    folder: Path
    before: dict[str, bytes]
    told: list[str]


# Group names are in the manifest: very long ones make it larger than the tensors.
_FULL = {"the tensors do not fit": (1, [0, 1, 4_096, 30_000]), "the manifest does not fit": (50_000, [150_000])}


@pytest.fixture(scope="module")
def full_disks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FullDisk]:
    """Saved recommenders, and another process that updates them and cannot save them over the first."""
    if not hasattr(signal, "SIGXFSZ"):
        pytest.skip("needs a limit on the size of files")
    first, later, _ = parts()[0]
    saved, jobs = [], []
    for repeats, limits in _FULL.values():
        base = tmp_path_factory.mktemp("full-disk")
        community = [name[:3] * repeats for name in STREAM.users["community"].to_pylist()]
        users = STREAM.users.set_column(1, "community", [community])
        pa.parquet.write_table(later, base / "later.parquet")
        pa.parquet.write_table(users.slice(0, 10), base / "users.parquet")
        recommender = make_recommender("mf", **FAST)
        recommender.fit(fairstream.read_events(first, users=users))
        recommender.save(base / "saved")
        saved.append((recommender, base / "saved", contents(base / "saved")))
        jobs.append((str(base), limits))
    done = subprocess.run(
        [sys.executable, "-c", _SAVE_ON_A_FULL_DISK],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [len(said) for said in told] == [len(limits) for _, limits in jobs]  # each of them failed
    return {name: FullDisk(*disk, said) for name, disk, said in zip(_FULL, saved, told, strict=True)}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) for name in _FULL])  # a process of its own
def full_disk(full_disks: dict[str, FullDisk], request: pytest.FixtureRequest) -> FullDisk:
    return full_disks[request.param]


def test_a_full_disk_is_said_in_one_sentence(full_disk: FullDisk) -> None:
    for sentence in full_disk.told:
        assert f"could not be written to {full_disk.folder}: File too large" in sentence
        assert "what was saved there before is untouched" in sentence
        assert "\n" not in sentence


def test_a_full_disk_leaves_the_earlier_checkpoint_as_it_was(full_disk: FullDisk) -> None:
    after = contents(full_disk.folder)
    assert {name: after.get(name) for name in full_disk.before} == full_disk.before
    assert not [name for name in after if name.endswith("tmp")]
    assert_same(full_disk.recommender, fairstream.load(full_disk.folder, device="cpu"))


def test_a_full_disk_leaves_nothing_new_behind(full_disk: FullDisk) -> None:
    assert set(contents(full_disk.folder)) == set(full_disk.before)


def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def refusing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(22, "Invalid argument")
        real(handle)

    monkeypatch.setattr(os, "fsync", refusing)
    recommender = fitted()
    recommender.save(tmp_path)
    recommender.save(tmp_path)
    assert_same(recommender, fairstream.load(tmp_path, device="cpu"))


def test_files_of_ones_own_are_left_alone(saved: Path) -> None:
    mine = saved / "tensors-mine.safetensors"
    mine.write_bytes(b"mine")
    fitted().save(saved)
    assert mine.read_bytes() == b"mine"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_no_damage(saved: Path) -> None:
    with pytest.raises(fairstream.ConfigurationError, match="needs a CUDA device"):
        fairstream.load(saved, device="cuda")
    with pytest.raises(fairstream.ConfigurationError, match="device must be one of"):
        fairstream.load(saved, device="gpu")
    assert fairstream.load(saved).model.state_dict()  # without a word, onto the device it was saved from


def test_saving_the_same_again_keeps_its_tensors_where_the_manifest_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommender = fitted()
    recommender.save(tmp_path)
    before = contents(tmp_path)

    def full_for_manifests(path: Path, content: bytes) -> None:
        if path.name == "manifest.json":
            raise OSError(28, "No space left on device")
        replace_file(path, content)

    monkeypatch.setattr(checkpoint, "replace_file", full_for_manifests)
    assert "No space left on device" in the_sentence(lambda: recommender.save(tmp_path))
    assert contents(tmp_path) == before
    assert_same(recommender, fairstream.load(tmp_path, device="cpu"))


def test_a_target_for_a_checkpoint_without_groups_is_refused(tmp_path: Path) -> None:
    make_recommender("popularity").fit(pa.table({"user": [1, 1, 2], "item": [1, 2, 1], "time": [1, 2, 3]})).save(
        tmp_path
    )
    with pytest.raises(ConfigurationError, match=r"MaxGap is about a gap between groups, but .* has none"):
        fairstream.load(tmp_path, target=fairstream.MaxGap(0.05))
    assert fairstream.load(tmp_path, target=None).recommend(1).num_rows == 0


class _Remembers(fairstream.Strategy):
    """Fine-tune, and remember a value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def plan(self, period: fairstream.Period) -> fairstream.Plan:
        return fairstream.Plan.fine_tune(period).remembering(value=self.value)


def test_a_memory_that_no_checkpoint_holds_fails_the_update_and_changes_nothing(tmp_path: Path) -> None:
    rec = fairstream.FairRecommender("popularity", strategy=_Remembers(object()), device="cpu")
    rec.fit({"user_id": [1, 2], "item_id": [1, 2], "time": [1, 2]})
    with pytest.raises(ConfigurationError, match="the memory of a strategy must hold JSON values"):
        rec.update({"user_id": [1], "item_id": [2], "time": [3]})
    assert rec.state.t == 0
    rec.save(tmp_path / "model")


def test_a_plan_is_a_plan() -> None:
    class Forgets(fairstream.Strategy):
        def plan(self, period: fairstream.Period) -> fairstream.Plan:
            return None  # type: ignore[return-value]

    rec = fairstream.FairRecommender("popularity", strategy=Forgets(), device="cpu")
    rec.fit({"user_id": [1, 2], "item_id": [1, 2], "time": [1, 2]})
    with pytest.raises(ConfigurationError, match=r"Strategy.plan must return a fairstream.Plan, got None"):
        rec.update({"user_id": [1], "item_id": [2], "time": [3]})
