"""Parts of one's own, end to end: the examples of docs/how-to/extending.md are what is tested here."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

import fairstream as fs
from fairstream.evaluation.metrics import METRICS
from fairstream.models import MODELS, MFScorer
from fairstream.objectives import FAIRNESS_LOSSES, LOSSES
from fairstream.strategies import STRATEGIES
from support import make_recommender

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extending.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
pytestmark = pytest.mark.slow  # the page trains a model in most of its examples
QUICK: dict[str, Any] = {"pretrain_epochs": 2, "update_epochs": 1, "embedding_dim": 8, "device": "cpu"}
QUICK_RUN = {name: value for name, value in QUICK.items() if name != "embedding_dim"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What the code blocks of the page define, run from top to bottom as one module."""
    module = ModuleType("extending_page")
    registries = [MODELS, LOSSES, FAIRNESS_LOSSES, METRICS, STRATEGIES]
    before = [(dict(registry._parts), dict(registry._names)) for registry in registries]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        patch.setitem(sys.modules, module.__name__, module)
        for number, block in enumerate(BLOCKS):
            exec(compile(block, f"{PAGE.name}, block {number}", "exec"), module.__dict__)
        yield SimpleNamespace(**module.__dict__)
    for registry, (parts, names) in zip(registries, before, strict=True):
        registry._parts, registry._names = parts, names  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def later(stream: fs.SyntheticStream) -> Any:
    return stream.events.slice(3000, 400)


@pytest.fixture(scope="module")
def first(stream: fs.SyntheticStream) -> fs.EventLog:
    return fs.read_events(stream.events.slice(0, 3000), users=stream.users, group="community", advantaged="majority")


def events(users: Any, items: Any) -> pa.Table:
    users, items = (np.atleast_1d(column) for column in (users, items))
    return pa.table({"user_id": users, "item_id": items, "time": 1e6 + np.arange(float(len(users)))})


def test_every_block_of_the_page_runs(page: Any) -> None:
    assert len(BLOCKS) >= 10
    assert page.rec.recipe.model.name == "gru4rec"


def test_the_model_of_the_page_takes_fewer_than_80_lines() -> None:
    (block,) = [block for block in BLOCKS if "class GRU4Rec(" in block]
    assert len(block.splitlines()) < 80


def test_a_model_goes_through_everything(
    page: Any, stream: fs.SyntheticStream, first: fs.EventLog, later: Any, tmp_path: Path
) -> None:
    model = page.GRU4Rec
    rec = make_recommender(model=model, loss="sampled-softmax", **QUICK).fit(first)
    assert rec.last_update is not None
    assert rec.last_update.report is not None
    assert rec.last_update.report.engine == "reference"
    assert 0 <= rec.evaluate(later, users=stream.users, n_resamples=0)["ndcg@20"].mean <= 1
    rec.update(later, users=stream.users)
    users = stream.users["user_id"]
    rec.save(tmp_path)
    again = fs.load(tmp_path)  # the page has registered the model
    assert again.recommend(users) == rec.recommend(users)
    for recommender in (rec, again):
        recommender.update(stream.events.slice(3400, 300), users=stream.users)
    assert again.recommend(users) == rec.recommend(users)
    assert rec.forget([users[5].as_py()]) == 1
    assert rec.recommend([users[5].as_py()], k=3)["source"].to_pylist() == ["popularity"] * 3
    rec.update(stream.events.slice(3700), users=stream.users)


@pytest.mark.slow
def test_a_sequence_model_learns_what_follows_what(page: Any) -> None:
    """Everybody goes from item i to item i + 1: what comes next follows from the last item and from nothing else."""
    rng = np.random.default_rng(0)
    users, step = np.divmod(np.arange(80 * 9), 9)
    items = (rng.integers(0, 40, 80)[users] + step) % 40
    table = pa.table({"user_id": users, "item_id": items, "time": step.astype(float)})
    people = pa.table({"user_id": np.arange(80), "side": np.where(np.arange(80) % 3, "a", "b")})
    is_last = step == 8
    known = fs.read_events(table.filter(pa.array(~is_last)), users=people, group="side", advantaged="a")
    for loss in ("softmax", "sampled-softmax"):
        options = QUICK | {"pretrain_epochs": 60, "embedding_dim": 16, "learning_rate": 0.02}
        rec = make_recommender(model=page.GRU4Rec, loss=loss, **options).fit(known)
        test = rec.evaluate(table.filter(pa.array(is_last)), k=3, n_resamples=0)
        assert test["ndcg@3"].mean > 0.9, loss  # by chance: 0.05


def test_a_changed_future_changes_nothing_before_it(page: Any, stream: fs.SyntheticStream) -> None:
    cut = 3000
    future = stream.events.slice(cut)
    order = np.random.default_rng(0).permutation(len(future))
    shuffled = future.take(order).set_column(future.column_names.index("time"), "time", future["time"])
    results = []
    for tail in (future, shuffled):
        log = fs.read_events(
            pa.concat_tables([stream.events.slice(0, cut), tail]),
            users=stream.users,
            group="community",
            advantaged="majority",
        )
        assert len(log) == len(stream.events)
        run = fs.run(
            log,
            model=page.GRU4Rec,
            loss="softmax",
            pretrain_events=2600,
            period="200",
            n_periods=4,
            n_resamples=0,
            **QUICK_RUN,
        )
        one, two, *_ = run
        known = (one.tasks["next"].to_dict(), one.update.report, two.update.report)
        results.append((known, two.tasks["next"].to_dict()))
    (known, unknown), (other_known, other_unknown) = results
    assert known == other_known
    assert unknown != other_unknown  # so the comparison sees a difference where there is one


# ── each part is really used by the default engine ───────────────────────────────────────


def test_a_loss_of_ones_own_is_used(page: Any, first: fs.EventLog) -> None:
    calls = []

    def counted(scores: Tensor) -> Tensor:
        calls.append(scores.shape)
        return page.margin_softmax(scores)

    own = make_recommender("mf", loss=counted, engine="auto", **QUICK).fit(first)
    assert own.last_update is not None
    report = own.last_update.report
    assert report is not None
    assert len(calls) == QUICK["pretrain_epochs"] * report.n_batches
    assert report.engine == "reference"
    papers = make_recommender("mf", engine="reference", **QUICK).fit(first)
    assert not torch.equal(own.model.item.weight, papers.model.item.weight)


def test_a_fairness_loss_of_ones_own_is_used(page: Any, first: fs.EventLog) -> None:
    own, papers = (
        make_recommender("mf", fairness=fairness, engine="auto", **QUICK).fit(first)
        for fairness in (page.mean_gap, None)
    )
    assert own.last_update is not None
    assert own.last_update.report is not None
    assert own.last_update.report.engine == "reference"
    assert not torch.allclose(own.model.item.weight, papers.model.item.weight, atol=1e-6)


def test_metrics_of_ones_own_are_used(page: Any, stream: fs.SyntheticStream, first: fs.EventLog, later: Any) -> None:
    calls: list[int] = []

    def counted(lists: Any, truth: Any) -> Any:
        calls.append(len(lists.items))
        return page.novelty(lists, truth)

    metrics = {"coverage@5": page.coverage, "novelty@5": counted, "n@5": lambda lists, truth: truth.n_positives}
    rec = make_recommender("popularity", metrics=metrics, **QUICK).fit(first)
    evaluation = rec.evaluate(later, users=stream.users, k=5, n_resamples=0)
    assert set(evaluation.metrics) == set(metrics)
    assert calls[0] == evaluation.n_users
    lists = rec.recommend(np.unique(later["user_id"]), k=5)
    assert evaluation["coverage@5"].mean == pytest.approx(len(lists["item_id"].unique()) / rec.state.history.n_items)
    assert set(evaluation["novelty@5"].by_group) == {"majority", "minority"}


def test_a_metric_by_name_is_used_in_a_run(page: Any, log: fs.EventLog) -> None:
    run = fs.run(log, model="popularity", metrics=("coverage@10", "ndcg@10"), n_periods=2, n_resamples=0, **QUICK_RUN)
    assert {"coverage@10", "ndcg@10"} <= set(run.begin().tasks["next"].metrics)


def test_a_strategy_of_ones_own_is_used(page: Any, stream: fs.SyntheticStream, first: fs.EventLog) -> None:
    rec = make_recommender("mf", strategy=page.LastFour(), engine="auto", **QUICK).fit(first)
    steps = []
    for start in range(3000, 3800, 200):
        rec.update(stream.events.slice(start, 200), users=stream.users)
        assert rec.last_update is not None
        steps.append((rec.last_update.step, rec.last_update.report and rec.last_update.report.n_interactions))
    # The last four periods: at first the pre-training data are one of them.
    assert steps == [("last four", 3200), ("keep", None), ("last four", 3600), ("keep", None)]


def test_an_extra_loss_is_used(page: Any, stream: fs.SyntheticStream, first: fs.EventLog, later: Any) -> None:
    options = QUICK | {"pretrain_epochs": 6, "update_epochs": 6, "learning_rate": 0.02}
    start = make_recommender(**{"model": "mf", **options}).fit(first)
    users, items = torch.arange(50), torch.arange(60).repeat(50, 1)

    def moved(strategy: Any) -> float:
        rec = (
            make_recommender(strategy=strategy, **{"model": "mf", **options})
            .fit(first)
            .update(later, users=stream.users)
        )
        with torch.no_grad():
            change = rec.model(users, items, fs.Context()) - start.model(users, items, fs.Context())
        return float(change.abs().mean())

    assert moved(page.Distill()) < 0.9 * moved("fine-tune")


def test_parts_with_names_are_found_by_load(page: Any, first: fs.EventLog, tmp_path: Path) -> None:
    make_recommender(model="gru4rec", loss="margin-softmax", **QUICK).fit(first).save(tmp_path)
    assert type(fs.load(tmp_path).model) is page.GRU4Rec


def test_a_plugin_is_imported_before_its_names_are_looked_up(log: fs.EventLog, tmp_path: Path) -> None:
    plugin = tmp_path / "my_parts.py"
    plugin.write_text(
        "import fairstream as fs\n"
        "from fairstream.models import MFScorer\n"
        "class Tiny(MFScorer):\n"
        "    def __init__(self, n_users, n_items):\n"
        "        super().__init__(n_users, n_items, embedding_dim=3)\n"
        "fs.register_model('tiny-of-a-plugin', Tiny)\n"
    )
    run = fs.run(log, model="tiny-of-a-plugin", plugins=(str(plugin),), n_periods=2, n_resamples=0, **QUICK_RUN)
    assert run.begin() is not None
    assert run.state.model.item.embedding_dim == 3
    with pytest.raises(fs.ConfigurationError, match="cannot be imported"):
        fs.run(log, model="mf", plugins=("no_such_file.py",))


# ── traps that model authors used to fall into ───────────────────────────────────────────


class Positions(fs.WindowScorer):
    """A direct `Table` for positions, beside a padded item table."""

    history_length = 8

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.item, self.position = fs.ItemTable(n_items, 4, padding=True), fs.Table(8, 4)

    def states(self, history: Tensor) -> Tensor:
        known = self.item(history) + self.position.weight * (history >= 0).unsqueeze(-1)
        return known.cumsum(dim=1)


def test_a_table_of_positions_does_not_grow(stream: fs.SyntheticStream, first: fs.EventLog, later: Any) -> None:
    rec = make_recommender(model=Positions, **QUICK).fit(first).update(later, users=stream.users)
    assert rec.model.position.num_embeddings == 8
    assert rec.model.item.num_embeddings == rec.state.history.n_items > first.n_items


class Padded(MFScorer):
    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)
        self.item = fs.ItemTable(n_items + 1, 4)


def test_a_row_for_padding_is_refused_with_what_to_do(first: fs.EventLog) -> None:
    with pytest.raises(fs.ModelError, match="padding=True"):
        make_recommender(model=Padded, **QUICK).fit(first)


class CachesActivations(MFScorer):
    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)
        self.last: Tensor | None = None

    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        self.last = super().forward(users, items)
        return self.last


def test_a_model_that_caches_activations_can_be_updated(
    stream: fs.SyntheticStream, first: fs.EventLog, later: Any
) -> None:
    rec, plain = (
        make_recommender(model=model, **QUICK).fit(first)
        for model in (CachesActivations, lambda n_users, n_items: Plain(n_users, n_items, embedding_dim=4))
    )
    assert rec.model.last.requires_grad  # what PyTorch refuses to copy
    for recommender in (rec, plain):
        recommender.update(later, users=stream.users)
        recommender.forget([first.user_ids.ids[0].as_py()])
    assert torch.equal(rec.model.item.weight, plain.model.item.weight)
    assert copy.deepcopy(rec).recommend(later["user_id"]) == rec.recommend(later["user_id"])


class Plain(MFScorer):
    """Not the built-in class, so that the same engine trains it."""


class Constant(fs.Scorer):
    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()

    def forward(self, users: Tensor, items: Tensor, context: Any = None) -> Tensor:
        return items.float()


def test_a_model_without_parameters_is_refused_with_what_to_do(first: fs.EventLog) -> None:
    with pytest.raises(fs.ModelError, match=r"Constant has no trainable parameters.*ClosedFormScorer"):
        make_recommender(model=Constant, **QUICK).fit(first)


class RemembersUsers(Plain):
    """Keeps a number for each user outside the tables."""

    level: Tensor

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)
        self.register_buffer("level", torch.arange(float(n_users)))

    def forget(self, users: Tensor) -> None:
        super().forget(users)
        kept = torch.ones(len(self.level), dtype=torch.bool)
        kept[users] = False
        self.level = self.level[kept]


def test_forget_reaches_the_model_and_leaves_older_states_alone(first: fs.EventLog) -> None:
    rec = make_recommender(model=RemembersUsers, **QUICK).fit(first)
    before = rec.state
    rec.forget([first.user_ids.ids[row].as_py() for row in (2, 5)])
    assert rec.model.level.tolist() == [float(u) for u in range(first.n_users) if u not in (2, 5)]
    assert len(before.model.level) == before.model.n_users == first.n_users


def test_a_history_model_reads_nobody_elses_events_after_forget(page: Any, first: fs.EventLog) -> None:
    rec = make_recommender(model=page.GRU4Rec, **QUICK).fit(first)
    ids = first.user_ids.ids.to_pylist()
    rows = [1, 4, 10]
    others = [user for row, user in enumerate(ids) if row not in rows]
    lists = rec.recommend(others)
    rec.forget([ids[row] for row in rows])
    assert rec.recommend(others) == lists
    assert len(rec.state.history) == int((~np.isin(first.users, rows)).sum())


def test_newcomers_with_observed_events_are_served_by_a_history_model(page: Any, first: fs.EventLog) -> None:
    rec = make_recommender(model=page.GRU4Rec, **QUICK).fit(first)
    newcomer, item = 10**6, first.item_ids.ids[3].as_py()
    assert set(rec.recommend([newcomer], k=3)["source"].to_pylist()) == {"popularity"}
    rec.observe(events(newcomer, item))
    lists = rec.recommend([newcomer], k=first.n_items)
    assert set(lists["source"].to_pylist()) == {"model"}
    assert item not in lists["item_id"].to_pylist()


class ReadsHistory(fs.Scorer):
    """Trained on single interactions, with the history before each."""

    history_length = 100
    n_leaks = 0

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.item, self.known = fs.ItemTable(n_items, 4), fs.ItemTable(n_items, 4, padding=True)

    def forward(self, users: Tensor, items: Tensor, context: fs.Context) -> Tensor:
        assert context.history is not None
        assert context.n_events is not None
        if self.training:
            ReadsHistory.n_leaks += int((context.history == items[:, :1]).sum())
        mean = self.known(context.history).sum(dim=1) / context.n_events.clamp(min=1)[:, None]
        return (self.item(items) @ mean.unsqueeze(-1)).squeeze(-1)


def test_in_training_the_history_ends_before_the_event(
    stream: fs.SyntheticStream, first: fs.EventLog, later: Any
) -> None:
    rec = make_recommender(model=ReadsHistory, **QUICK).fit(first).update(later, users=stream.users)
    assert ReadsHistory.n_leaks == 0  # nobody has an item twice, so an event's own item is not in its history
    assert "model" in rec.recommend(later["user_id"], k=1)["source"].to_pylist()


class WatchesItsMode(Plain):
    switched: list[bool] = []  # noqa: RUF012 (of all instances, because updates make new ones)

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)

    def train(self, mode: bool = True) -> Any:
        self.switched.append(mode)
        return super().train(mode)


def test_scoring_does_not_touch_the_mode_of_a_model_in_service(first: fs.EventLog, later: Any) -> None:
    rec = make_recommender(model=WatchesItsMode, **QUICK).fit(first)
    WatchesItsMode.switched.clear()
    rec.evaluate(later, n_resamples=0)
    rec.recommend(later["user_id"])
    assert WatchesItsMode.switched == []
    assert not rec.model.training


def test_an_update_does_not_put_the_model_in_service_into_training_mode(
    stream: fs.SyntheticStream, first: fs.EventLog, later: Any
) -> None:
    rec = make_recommender(model=Plain, **QUICK).fit(first)
    modes = []
    in_service = rec.state.model
    rec.update(later, users=stream.users, on_epoch=lambda done, total: modes.append(in_service.training))
    assert modes == [False]


def test_a_user_who_has_had_nearly_everything_is_left_out_of_windows(first: fs.EventLog) -> None:
    items = first.item_ids.ids.to_pylist()
    user, other = (first.user_ids.ids[row].as_py() for row in range(2))
    rec = make_recommender(model=Positions, loss="softmax", **QUICK).fit(first)
    rec.observe(events([user] * len(items), items), learn_later=False)
    with pytest.raises(fs.DataError, match="more than any user has items left"):
        rec.update(events(user, 10**6))
    rec.update(events([user, other], [10**6 + 1, 10**6]))
    assert rec.last_update is not None
    assert rec.last_update.report is not None


def test_the_page_names_every_part_kind_and_its_check() -> None:
    text = PAGE.read_text()
    assert all(f"check_{kind}" in text for kind in ("model", "loss", "fairness", "metric", "strategy"))
    assert all(f"register_{kind}" in text for kind in ("model", "loss", "fairness", "metric", "strategy"))
    assert inspect.getdoc(fs.testing)
