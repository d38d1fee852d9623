"""The parts of the service, each by itself."""

from __future__ import annotations

import io
import json
from bisect import bisect_left
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.errors import ConfigurationError
from fairstream.service.api import limits
from fairstream.service.api.limits import Bucket
from fairstream.service.api.logs import Logs
from fairstream.service.api.metrics import BUCKETS, Latency, Metrics
from fairstream.service.api.refusals import Refused
from fairstream.service.api.writer import Writer
from fairstream.service.event_store import EventStore
from fairstream.service.incoming import batch_from_json
from fairstream.service.serving import Serving
from fairstream.service.settings import Every
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS


@given(n=st.integers(1, 10**9), unit=st.sampled_from([("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)]))
def test_schedules_are_read(n: int, unit: tuple[str, int]) -> None:
    assert Every.parse(f"{n}{unit[0]}") == Every(n * unit[1], "seconds")
    assert Every.parse(f" {n} events ") == Every(n, "events")


@given(text=st.sampled_from(["0d", "1w", "-1d", "1.5h", "events", "١d", "", "1d\n2d"]) | st.text(alphabet="dhm x"))
def test_what_is_no_schedule_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        Every.parse(text)
    assert "\n" not in str(told.value)


@given(
    rate=st.floats(0.1, 1000),
    waits=st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_a_bucket_lets_through_its_rate_and_a_burst(rate: float, waits: list[float]) -> None:
    clock = 100.0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits.time, "monotonic", lambda: clock)
        bucket, passed = Bucket(rate), 0
        for wait in waits:
            clock += wait
            refused_for = bucket.take()
            if refused_for == 0:
                passed += 1
            else:
                before, clock = clock, clock + refused_for
                assert bucket.take() == 0  # what was promised holds
                passed, _ = passed + 1, before
        assert passed <= max(1, 2 * rate) + rate * (clock - 100) + 1e-3


@given(seconds=st.lists(st.floats(0, 20), min_size=1))
def test_quantiles_lie_in_the_bucket_of_the_exact_ones(seconds: list[float]) -> None:
    latency = Latency()
    for one in seconds:
        latency.add(one)
    for q in (0.5, 0.99):
        exact = sorted(seconds)[max(0, -(-int(q * 100) * len(seconds) // 100) - 1)]
        found = latency.quantile(q)
        assert found is not None
        place = min(bisect_left(BUCKETS, exact), len(BUCKETS) - 1)
        assert (0.0, *BUCKETS)[place] <= found <= BUCKETS[place]


def test_numbers_are_shown_in_prometheus_format() -> None:
    metrics = Metrics()
    metrics.count("GET", "/v1/x", 200, 0.002)
    metrics.events["accepted"] += 7
    text = metrics.text("m1", {"open_events": 3, "none": None}).decode()
    for line in (
        'fairstream_requests_total{method="GET",route="/v1/x",status="200"} 1.0',
        'fairstream_request_seconds_bucket{le="0.0025",route="/v1/x"} 1.0',
        'fairstream_events_total{outcome="accepted"} 7.0',
        "fairstream_open_events 3.0",
        'fairstream_model_info{id="m1"} 1.0',
    ):
        assert line in text


def test_logs_are_lines_of_json_and_what_is_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    logs = Logs(stream)
    logs._lines = type(logs._lines)(maxlen=3)
    for n in range(5):
        logs.request("GET", "/v1/{x}", 200, 0.001, 'a "key"' if n else None)
    logs.say("model swapped", model="ü\n")
    logs.start()
    logs.stop()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["request", "request", "model swapped", "lines lost"]
    assert (lines[0]["key"], lines[2]["model"], lines[3]["n"]) == ('a "key"', "ü\n", 3)


@pytest.fixture
def new_writer(new_workspace: Callable[..., Workspace]) -> Callable[..., tuple[Writer, EventStore, Workspace]]:
    def make(max_open: int = 10**6) -> tuple[Writer, EventStore, Workspace]:
        workspace = new_workspace()
        store, logs = EventStore(workspace), Logs(io.StringIO())
        return Writer(store, Serving(), logs, max_open), store, workspace

    return make


def test_batches_that_wait_together_each_get_their_own_receipt(
    new_writer: Callable[..., tuple[Writer, EventStore, Workspace]],
) -> None:
    writer, store, workspace = new_writer()
    batches = [
        batch_from_json(
            [{"user_id": f"u{n}", "item_id": "i", "time": 1, "event_id": str((7 * n + m) % 50)} for m in range(n % 6)],
            workspace.config.limits,
        )
        for n in range(60)
    ]
    receipts = [writer.store(batch) for batch in batches]  # before it runs: they go together
    writer.start()
    seen: set[str] = set()
    for batch, receipt in zip(batches, receipts, strict=True):
        ids = set(batch.table["event_id"].to_pylist())
        assert receipt.result(PATIENCE_SECONDS) == (len(ids - seen), len(ids & seen), 0)
        seen |= ids
    writer.stop()
    assert store.last_seq() >= len(seen)


def test_more_than_can_wait_is_refused_and_what_was_taken_is_stored(
    new_writer: Callable[..., tuple[Writer, EventStore, Workspace]],
) -> None:
    writer, store, workspace = new_writer(max_open=300)
    one = [batch_from_json([{"user_id": "u", "item_id": "i", "time": n}], workspace.config.limits) for n in range(400)]
    taken = [writer.store(batch) for batch in one[:256]]
    with pytest.raises(Refused) as refused:
        writer.store(one[256])
    assert refused.value.status_code == 503
    writer.start()
    writer.stop()
    assert all(receipt.result(0) == (1, 0, 0) for receipt in taken)
    assert store.n_open() == len(taken) < 300


def test_a_database_that_does_not_answer_is_a_refusal(
    new_writer: Callable[..., tuple[Writer, EventStore, Workspace]], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, store, workspace = new_writer()
    good, bad = (
        batch_from_json([{"user_id": "u", "item_id": item, "time": 1}], workspace.config.limits)
        for item in ("good", "bad")
    )
    append_all = store.append_all

    def failing(batches: list[object]) -> object:
        if any("bad" in batch.table["item_id"].to_pylist() for batch in batches):  # type: ignore[attr-defined]
            raise OSError("disk full")
        return append_all(batches)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "append_all", failing)
    receipts = [writer.store(batch) for batch in (good, bad, good)]
    writer.start()
    writer.stop()
    assert receipts[0].result(0).accepted == 1
    assert receipts[2].result(0).repeated == 1
    with pytest.raises(Refused):
        receipts[1].result(0)
