"""The pages over HTTP: who may see them and press their buttons, and that nothing written by others is markup."""

from __future__ import annotations

import html
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from made_up import BEGINS, DAY, METRIC, N_PERIODS, add_model, add_period, add_update, filled, model_id
from running import Client, Standing, sign_in, signed_in
from sqlalchemy import event, update
from sqlalchemy.exc import OperationalError

from fairstream.service import impressions, items, registry, rules, schema
from fairstream.service.audit import entries
from fairstream.service.budget import Budget, PrivacyStatus
from fairstream.service.dashboard.overview import Overview
from fairstream.service.dashboard.web import COOKIE, LASTS
from fairstream.service.database import now, writing
from fairstream.service.event_store import EventStore
from fairstream.service.experiments import Options, listed, start
from fairstream.service.gaps import gap_in, score_in
from fairstream.service.impressions import Shown
from fairstream.service.incoming import batch_from_json
from fairstream.service.keys import make_key, revoke_key
from fairstream.service.registry import put_into_service
from fairstream.service.settings import LiveConfig, Privacy
from fairstream.service.tally import Tally
from fairstream.service.workspace import Workspace
from fairstream.text import number, percent

pytestmark = pytest.mark.sqlite_only
Maker = Callable[..., Workspace]
HOSTILE = "<script>alert('x')</script>&\"'"
SHORT_HOSTILE = "<img src=x onerror=alert(1)>"
MODEL = f"/models/{model_id(9)}"
PRIVATE = (
    "/",
    "/models",
    "/updates",
    "/lists",
    "/items",
    "/experiments",
    MODEL,
)
BUTTONS = ("/updates", f"{MODEL}/promote", "/rollback", "/items/withdraw", "/items/restore")
EXPERIMENT_BUTTONS = ("/experiments/start", "/experiments/stop", "/experiments/promote")


class Reader(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.headings: list[int] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags[tag] += 1
        self.attributes.append((tag, attributes))
        if attributes.get("id"):
            self.ids[str(attributes["id"])] += 1
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "shop"
    filled(Workspace.create(folder, LiveConfig(group="community"))).close()
    return folder


@pytest.fixture
def shop(source: Path, tmp_path: Path) -> Iterator[Workspace]:
    """Twelve made-up periods, the test's own."""
    shutil.copytree(source, tmp_path / "shop")
    with Workspace.open(tmp_path / "shop") as workspace:
        yield workspace


def test_without_a_key_every_page_asks_for_one(shop: Workspace) -> None:
    client = Client(shop)
    for path, cookies in product(PRIVATE, ({}, {COOKIE: "x" * 43}, {COOKIE: ""})):
        client.cookies.clear()
        client.cookies.update(cookies)
        answer = client.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login")
        assert answer.content == b""


@pytest.mark.slow
def test_a_session_works_on_every_process_and_ends_when_its_key_is_revoked(shop: Workspace) -> None:
    first, key = Client(shop), make_key(shop.engine, "mine", "read")
    answer = sign_in(first, f" {key}\n")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert key not in answer.headers["set-cookie"]
    assert all(first.get(path).status_code == 200 for path in PRIVATE)
    with Workspace.open(shop.folder) as other_process:
        second = Client(other_process)
        second.cookies.update(first.cookies)
        assert second.get("/").status_code == 200
    revoke_key(shop.engine, "mine")
    assert first.get("/").status_code == 303


def test_a_session_of_another_workspace_opens_nothing(shop: Workspace, new_workspace: Maker) -> None:
    client, other = signed_in(shop), new_workspace()
    make_key(other.engine, "my read", "read")  # of the same name
    stranger = Client(other)
    stranger.cookies.update(client.cookies)
    assert stranger.get("/").status_code == 303


@pytest.mark.parametrize("https", [True, False])
def test_the_cookie_is_kept_from_scripts_and_other_sites(shop: Workspace, https: bool) -> None:
    answer = sign_in(Client(shop, https=https), make_key(shop.engine, "a", "read"))
    flags = set(answer.headers["set-cookie"].lower().split("; "))
    assert {"httponly", "samesite=strict", f"max-age={LASTS}", "path=/"} <= flags
    assert ("secure" in flags) == https


def test_signing_out_takes_the_cookie_away_and_ends_the_session_of_a_copy(shop: Workspace) -> None:
    client, copy, other = signed_in(shop), Client(shop), Client(shop)
    sign_in(other, make_key(shop.engine, "another", "read"))
    copy.cookies.update(client.cookies)
    assert copy.get("/").status_code == 200
    assert client.post("/logout").headers["location"] == "/login"
    assert client.get("/").status_code == 303
    assert copy.get("/").status_code == 303
    assert other.get("/").status_code == 200


def test_what_is_no_key_is_refused_with_a_sentence(shop: Workspace) -> None:
    client, ingest = Client(shop), make_key(shop.engine, "sensor", "ingest")
    for key, status in (("", 401), ("fs_wrong", 401), ("ü", 401), ("\0", 401), ("x" * 5000, 400), (ingest, 403)):
        answer = sign_in(client, key)
        assert answer.status_code == status, key
        assert 'role="alert"' in answer.text
        assert "set-cookie" not in answer.headers
    for body in (b"", b"\xff\xfe", b"key", b"&&&=", b"key=%ff%fe", b"a=1&" * 50):
        assert client.post("/login", content=body).status_code in (400, 401), body


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("to", "gone_to"),
    [
        (MODEL, MODEL),
        ("/updates", "/updates"),
        ("//evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/models/..\\evil", "/"),
        ("/models/a/../../b", "/"),
        ("/models/a\r\nSet-Cookie: x=1", "/"),
    ],
)
def test_after_signing_in_only_own_pages_are_gone_to(new_workspace: Maker, to: str, gone_to: str) -> None:
    workspace = new_workspace()
    answer = sign_in(Client(workspace), make_key(workspace.engine, "a", "read"), to=to)
    assert answer.headers["location"] == gone_to


def test_buttons_are_for_admins_who_came_from_the_page_itself(shop: Workspace) -> None:
    standing = Standing()
    admin, reader = signed_in(shop, "admin", standing), signed_in(shop, "read", standing)
    before = registry.in_service(shop.engine)
    assert 'name="token"' not in reader.get("/").text
    for button in BUTTONS + EXPERIMENT_BUTTONS:
        assert Client(shop).post(button).headers["location"] == "/login"
        assert admin.post(button).status_code == 403
        assert admin.post(button, data={"token": "guessed"}).status_code == 403
        assert admin.press(button, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        (token, *_) = re.findall(r'name="token" value="([^"]+)"', admin.get("/").text)
        assert reader.post(button, data={"token": token}).status_code == 403
    assert standing.started_by == []
    assert registry.in_service(shop.engine) == before


def test_a_button_does_what_it_says_once_and_says_so(shop: Workspace) -> None:
    standing = Standing()
    admin = signed_in(shop, "admin", standing)
    assert admin.press("/updates").headers["location"] == "/"
    assert standing.started_by == ["my admin"]
    assert "The update has been started." in admin.get("/").text
    assert "The update has been started." not in admin.get("/").text
    standing.is_updating = True
    admin.press("/updates")
    assert "An update is running already" in admin.get("/").text

    admin.press("/rollback")  # its files are not there: made-up models have none
    assert "Model" in admin.get("/").text
    with shop.models.new(model_id(10)), shop.models.new(model_id(9)):
        pass
    admin.press("/rollback")
    assert f"Rolled back to model {model_id(10)}." in admin.get("/").text
    admin.press(f"{MODEL}/promote")
    current = registry.in_service(shop.engine)
    assert current is not None
    assert current.model == model_id(9)
    last = list(entries(shop.engine))[-1]
    assert last.kind == "promote"
    assert '"by":"my admin"' in last.body


def test_nothing_changes_before_it_is_confirmed_and_the_page_says_who_did_it_last(shop: Workspace) -> None:
    standing = Standing()
    admin = signed_in(shop, "admin", standing)
    (token, *_) = re.findall(r'name="token" value="([^"]+)"', admin.get("/").text)
    before = registry.in_service(shop.engine), items.listed(shop.engine)
    for button in BUTTONS + EXPERIMENT_BUTTONS:
        asked = admin.post(button, data={"token": token, "item": HOSTILE})
        assert asked.status_code == 200
        assert "?</h1>" in asked.text
        assert HOSTILE not in asked.text
    assert standing.started_by == []
    assert (registry.in_service(shop.engine), items.listed(shop.engine)) == before
    assert "Nobody has done this yet." in admin.post("/items/withdraw", data={"token": token, "item": "i1"}).text
    admin.press("/items/withdraw", {"item": "i1"})
    again = admin.post("/items/restore", data={"token": token, "item": "i1"}).text
    assert "Let the item i1 be recommended again?" in again
    assert "item of i1 (withdrawn) by my admin" in again
    assert "requested by schedule" in admin.post("/updates", data={"token": token}).text


def test_under_a_path_of_its_own_every_link_form_and_cookie_has_that_path(shop: Workspace) -> None:
    client, root = Client(shop, root="/w/shop"), "/w/shop"
    assert client.get(f"{root}{MODEL}").headers["location"] == f"{root}/login?to={quote(MODEL, safe='')}"
    fields = {"key": make_key(shop.engine, "me", "admin"), "to": MODEL}
    answer = client.post(f"{root}/login", data=fields)
    assert answer.headers["location"] == f"{root}{MODEL}"
    assert f"path={root};" in answer.headers["set-cookie"].lower()
    for path in ("/", "/models", "/updates", "/lists?user=ann", "/items", MODEL):
        page = client.get(root + path)
        assert page.status_code == 200, path
        addresses = re.findall(r'(?:href|src|action)="([^"#][^"]*)"', page.text)
        assert addresses
        assert [address for address in addresses if not address.startswith(f"{root}/")] == []
    (token, *_) = re.findall(r'name="token" value="([^"]+)"', client.get(f"{root}/").text)
    form = {"token": token, "item": "i1"}
    assert f'action="{root}/items/withdraw"' in client.post(f"{root}/items/withdraw", data=form).text
    done = client.post(f"{root}/items/withdraw", data={**form, "confirmed": "yes"})
    assert done.headers["location"] == f"{root}/items"
    assert "i1" in client.get(f"{root}/items").text


def test_the_overview_shows_the_days_that_were_asked_for(shop: Workspace) -> None:
    client, first = signed_in(shop), datetime.fromtimestamp(BEGINS / 1e6, UTC).date()

    def periods(**days: object) -> list[int]:
        page = client.get("/", params={name: str(value) for name, value in days.items()}).text
        figures = re.findall(r'<figure id="chart-quality".*?</figure>', page, re.DOTALL)
        return sorted(int(t) for figure in figures for t in re.findall(r"· period (\d+)", figure))

    everything = list(range(1, N_PERIODS))  # that tested a model
    happened = {t: datetime.fromtimestamp((BEGINS + int((t + 0.8) * DAY)) / 1e6, UTC).date() for t in everything}
    assert periods() == everything
    for low, high in ((3, 6), (1, 1), (11, 11)):
        wanted = [t for t in everything if first + timedelta(low) <= happened[t] <= first + timedelta(high)]
        assert periods(**{"from": first + timedelta(low), "to": first + timedelta(high)}) == wanted
    assert periods(**{"from": first + timedelta(6)}) == [t for t in everything if happened[t] >= first + timedelta(6)]
    for odd in ("", "yesterday", "9999-12-31", "0000-00-00", "2026-13-01"):
        assert client.get("/", params={"from": odd, "to": odd}).status_code == 200, odd
    page = client.get("/", params={"days": "7"}).text  # the periods are older
    assert "No period of these days tested a model" in page
    assert f'value="{datetime.now(UTC).date()}"' in page


def test_every_answer_is_guarded_and_no_page_has_a_script(shop: Workspace) -> None:
    client = signed_in(shop, "admin")
    for path in (*PRIVATE, "/login", "/models/nobody", "/assets/nothing.js"):
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy, path
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert "<script" not in answer.text
            assert not re.search(r"\son\w+=|\sstyle=", answer.text)


def test_the_pages_hold_what_was_read(shop: Workspace) -> None:
    client, overview = signed_in(shop), Overview(shop)
    first = "".join(Reader(client.get("/").text).texts)
    assert "Everything is up to date" in first
    for period, scores in overview.evaluated:
        gap = gap_in(scores)
        assert gap is not None
        for value in (scores["mean"], gap.value, *(gap.interval or ()), *scores["by_group"].values()):
            assert value is None or number(value, 3) in first
        if period.t:
            assert f"{period.n_events:,}" in first
    assert "too few people to report" in first
    models = "".join(Reader(client.get("/models").text).texts)
    for model in overview.candidates.values():
        assert model.id in models
        assert model.reason[1:] in models
        scores = score_in(model.about["evaluation"])
        assert not scores or number(scores["mean"], 3) in models
    changes = "".join(Reader(client.get("/updates").text).texts)
    assert all(f"eason of update {t}" in changes for t in range(N_PERIODS))


def test_long_tables_have_pages(new_workspace: Maker) -> None:
    workspace, n = new_workspace(), 60
    with writing(workspace.engine) as connection:
        for t in range(n):
            add_period(connection, t)
            add_model(connection, f"m{t:02}", t)
            add_update(connection, t, id=f"u{t:02}", model=f"m{t:02}")
    client = signed_in(workspace)
    for path in ("/models", "/updates"):
        seen, at = list[str](), path
        while at:
            page = client.get(at).text
            seen += re.findall(r'href="/models/(m\d\d)"', page)
            at = next(iter(re.findall(rf'href="({path}\?before=[^"]+)"', page)), "")
        assert seen == [f"m{t:02}" for t in reversed(range(n))]
    for before in ("", "x", "-1", "0", "5", "9" * 40, "٣", "\0"):
        for path in ("/models", "/updates"):
            answer = client.get(path, params={"before": before})
            assert answer.status_code == (404 if before.isprintable() and before else 200), before


def test_one_list_can_be_looked_at_and_a_history_by_admins_alone(shop: Workspace) -> None:
    row = {"event_id": "e", "user_id": "ann", "item_id": "the thing of ann", "time": BEGINS / 1e6}
    EventStore(shop).append(batch_from_json([row], shop.config.limits))
    items.set_available(shop.engine, "recalled", False)
    items.set_available(shop.engine, "on sale again", True)
    read, admin = (signed_in(shop, scope).get("/lists", params={"user": "ann"}).text for scope in ("read", "admin"))
    for page in (read, admin):
        assert "item 19" in page
    broken = Client(shop, Standing(problem="there is no model yet"))
    sign_in(broken, make_key(shop.engine, "other", "read"))
    assert "on sale again" in broken.get("/items").text
    withdrawn = broken.get("/items", params={"withdrawn": "yes"}).text
    assert "recalled" in withdrawn
    assert "on sale again" not in withdrawn
    assert "the thing of ann" in admin
    assert "the thing of ann" not in read
    assert "There is no model yet." in broken.get("/lists", params={"user": "ann"}).text
    assert "The model in service cannot be used" in broken.get("/").text


def test_an_item_is_withdrawn_and_restored(shop: Workspace) -> None:
    admin = signed_in(shop, "admin")
    item = "a <b>thing</b> & more"
    assert admin.press("/items/withdraw", {"item": item}).headers["location"] == "/items"
    page = admin.get("/items").text
    assert f"Item {html.escape(item)} has been withdrawn." in page
    assert [row.item_id for row in items.listed(shop.engine, available=False)] == [item]
    assert "withdrawn by my admin" in page
    admin.press("/items/restore", {"item": item})
    assert items.listed(shop.engine, available=False) == []
    for odd in ("", "  ", "x" * 300, "a\0b"):
        admin.press("/items/withdraw", {"item": odd})
        assert "must have 1 to 256 printable characters" in admin.get("/items").text
    assert len(items.listed(shop.engine)) == 1


def test_an_experiment_is_started_watched_and_ended(shop: Workspace) -> None:
    admin, page = signed_in(shop, "admin"), "/experiments"
    assert "There is no other kept model to compare with" in admin.get(page).text
    with shop.models.new(model_id(10)), shop.models.new(model_id(11)):
        pass
    assert f'<option value="{model_id(10)}">' in admin.get(page).text
    admin.press(f"{page}/start", {"b": model_id(10), "mode": "sideways", "metric": "conversion"})
    assert "mode" in admin.get(page).text
    assert experiments_of(shop) == []
    admin.press(f"{page}/start", {"b": model_id(10), "mode": "split", "metric": "conversion"})
    [experiment] = experiments_of(shop)
    assert (experiment.state, experiment.b, experiment.options.metric) == ("running", model_id(10), "conversion")
    assert "each arm needs 100 people" in admin.get(page).text
    test = {"difference": -0.012, "interval": [-0.031, 0.007], "sentence": HOSTILE, "breaks_guard": False}
    looks = {"users": {"A": 1234, "B": 777}, "tests": {"conversion": {**test, "e_value": 1.0, "scale": 1.0}}}
    looks |= {"shadow": "In 16 pairs of lists …", "groups": {"withheld": "too few people"}}
    with writing(shop.engine) as connection:
        connection.execute(update(schema.experiments).values(looks=looks))
    shown = admin.get(page).text
    assert "In 16 pairs of lists …" in shown
    assert "No numbers of groups: too few people." in shown
    for words in ("1,234", "777", "−1.2 %", "from −3.1 % to +0.7 %", "holds", html.escape(HOSTILE).split("&#x27;")[0]):
        assert words in shown
    assert 'class="button"' not in shown
    assert "Start an experiment" not in shown
    admin.press(f"{page}/stop")
    ended = admin.get(page).text
    assert "It was stopped by my admin." in ended
    assert "Promote B" not in ended
    admin.press(f"{page}/start", {"b": model_id(10), "mode": "split", "metric": "conversion"})
    admin.press(f"{page}/promote")
    current = registry.in_service(shop.engine)
    assert current is not None
    assert current.model == model_id(10)
    assert "Start an experiment" in admin.get(page).text


def experiments_of(shop: Workspace) -> list[Any]:
    with shop.engine.connect() as connection:
        return listed(connection, 10)


def test_a_list_says_why_to_those_who_may_know_and_which_rules_moved_it(shop: Workspace) -> None:
    content = [
        {"pin": {"items": ["item 0", "gone"], "position": 1}},
        {"boost": {"filter": 'brand = "Acme"', "factor": 2}},
        {"at_most": {"n": 3, "per": "brand"}},
    ]
    rules.store(shop.engine, rules.rules_from_json(content, shop.config.items.properties), by="me")
    items.store(shop.engine, [{"item_id": "item 2", "title": "Boot & sock"}])
    for scope in ("read", "history", "admin"):
        page = signed_in(shop, scope).get("/lists", params={"user": "ann"}).text
        lines = re.findall(r"<li><span>([^<]*)</span>.*?</li>", page[: page.index("Top items")], re.DOTALL)
        assert lines[:4] == [f"item {n}" for n in range(4)]
        assert ("because of thing 3" in page) == (scope != "read")
        assert page.count("pinned") == page.count("Boot &amp; sock") == 1
        assert page.count("brand = &#34;Acme&#34;: 2 ×") == 1
    client = Client(shop)
    sign_in(client, make_key(shop.engine, "other", "read"))
    page = client.get("/items").text
    assert "item 0, gone at position 1 of every list." in page
    assert "Items with brand = &#34;Acme&#34; move up: 2 ×." in page
    assert "At most 3 items of the same brand." in page
    assert "Changed by me" in page


def test_in_an_experiment_the_list_of_b_is_explained_by_the_rules_of_b(shop: Workspace) -> None:
    def pinned(item: str) -> dict[str, Any]:
        return {"pin": {"items": [item], "position": 1}}

    rules.store(shop.engine, rules.rules_from_json([pinned("item 0")], {}), by="me")
    current = registry.in_service(shop.engine)
    assert current is not None
    with shop.models.new(current.model):
        pass
    experiment = start(shop, Options(b=current.model, steps=[0.5], rules=[pinned("item 1")]), by="me")
    client, arms = signed_in(shop), experiment.arms(shop.secret)
    for arm, item in (("A", "item 0"), ("B", "item 1")):
        user = next(f"u{n}" for n in range(99) if arms.arm_of(f"u{n}") == arm)
        page = client.get("/lists", params={"user": user}).text
        lines = re.findall(r"<li><span>([^<]*)</span>(.*?)</li>", page, re.DOTALL)
        assert [name for name, text in lines if "pinned" in text] == [item]
        assert ("model B of the experiment" in page) == (arm == "B")


def test_the_privacy_budget_is_shown(new_workspace: Maker) -> None:
    page = signed_in(new_workspace(privacy=Privacy(epsilon_per_quarter="off"))).get("/").text
    assert "there is no privacy budget" in page
    workspace = new_workspace(privacy=Privacy(epsilon_per_quarter=1.0))
    budget = Budget.read(workspace.engine, workspace.config.privacy)
    budget.spend("report", budget.limit("report"))
    with writing(workspace.engine) as connection:
        budget.store(connection)
    page = " ".join("".join(Reader(signed_in(workspace).get("/").text).texts).split())
    assert "(epsilon = 1" in page
    status = PrivacyStatus.of(workspace.engine, workspace.config.privacy)
    assert status.spent > 0.1
    assert f"Spent of the quarter’s budget{percent(status.spent)}" in page
    assert f"Left{percent(status.left)}" in page


def test_items_are_found_by_words_and_listed_in_parts(shop: Workspace) -> None:
    objects = [{"item_id": f"i{n:03}", "title": f"Boot <{n}>", "price": n, "available": n % 2 == 0} for n in range(60)]
    objects.append({"item_id": "100%_sock", "title": "Sök"})
    items.store(shop.engine, items.items_from_json(objects, shop.config.items.properties))
    client = signed_in(shop, "admin")

    def listed(at: str) -> list[str]:
        found, page = list[str](), ""
        while at:
            page = client.get(at).text
            found += re.findall(r'<tr><th scope="row">([^<]+)', page)
            at = html.unescape(next(iter(re.findall(r'href="(/items\?after=[^"]+)"', page)), ""))
        return found

    assert len(listed("/items")) == 61
    assert listed("/items?q=BOOT") == [f"i{n:03}" for n in range(60)]
    assert listed("/items?q=boot+i01") == [f"i01{n}" for n in range(10)]
    assert listed("/items?q=boot&withdrawn=yes") == [f"i{n:03}" for n in range(1, 60, 2)]
    assert listed("/items?q=s%C3%B6k") == listed("/items?q=0%25_") == ["100%_sock"]
    assert listed("/items?q=nothing") == []
    page = client.get("/items?q=i007").text
    assert "Boot &lt;7&gt;" in page
    assert 'action="/items/restore"' in page


def test_what_is_shown_and_sold_is_told_without_telling_of_one_person(shop: Workspace) -> None:
    assert "POST /v1/impressions" in signed_in(shop).get("/lists").text
    moment = now()
    shown = [Shown(f"u{n}", ["often", f"only {n}", *(["secret"] if n < 4 else [])], moment) for n in range(20)]
    impressions.store(shop, [shown])
    kinds = shop.config.events
    rows = [
        {"event_id": f"e-{kind}{n}", "user_id": f"u{n}", "item_id": item, "time": moment / 1e6, "kind": kind}
        for kind, item, people in (("click", "often", 12), ("purchase", "bought", 6), ("purchase", "secret", 4))
        for n in range(people)
    ]
    EventStore(shop).append(batch_from_json(rows, shop.config.limits, kinds))
    items.store(shop.engine, [{"item_id": f"only {n}", "available": True} for n in range(40)])
    tally = Tally(shop)
    tally.count()
    tally.count()
    client = Client(shop)
    sign_in(client, make_key(shop.engine, "other", "read"))
    page = client.get("/lists").text
    assert "secret" not in page
    assert "only 3" not in page
    for title, line in (
        ("Shown most", "often</span> <small>20 people"),
        ("Sold most", "bought</span> <small>6 people"),
        ("Chosen most", "often</span> <small>12 people"),
    ):
        assert line in page[page.index(title) :]
    overview = client.get("/").text
    assert "22 of 40 items in the latest 20 lists" in overview
    for chart, n in (("clicks", 12), ("conversion", 0)):
        figure = overview[overview.index(f'id="chart-{chart}"') :]
        assert f"<em>{percent(n / 44)}</em>" in figure[: figure.index("</figure>")]


def test_every_picture_has_a_sentence_and_every_page_its_order(shop: Workspace) -> None:
    client = signed_in(shop)
    for path in ("/", "/models", "/updates", "/lists", "/items", "/experiments", MODEL, "/login", "/models/nobody"):
        read = Reader(client.get(path).text)
        assert read.headings[0] == 1
        assert read.headings.count(1) == 1
        assert all(below <= above + 1 for above, below in zip(read.headings, read.headings[1:], strict=False))
        assert not [id_ for id_, n in read.ids.items() if n > 1]
        for tag, attributes in read.attributes:
            if attributes.get("class") == "chart":
                assert attributes["role"] == "img"
                assert str(attributes["aria-label"]).endswith(".")
            if tag == "a" and str(attributes.get("href", "")).startswith("#"):
                assert str(attributes["href"])[1:] in read.ids
        assert read.tags["main"] == read.tags["html"] == 1
    read = Reader(client.get("/").text)
    assert sum(attributes.get("class") == "chart" for _, attributes in read.attributes) == 4


def test_what_others_wrote_stays_text(new_workspace: Maker) -> None:
    workspace = new_workspace(group=HOSTILE)
    scores = {
        "mean": 0.2,
        "by_group": {HOSTILE: 0.3, "other": 0.1},
        "gaps": {HOSTILE: {"value": 0.2, "interval": [0.1, 0.3]}},
        "largest_gap": {"group": HOSTILE, "value": 0.2, "interval": [0.1, 0.3]},
    }
    check = {"name": HOSTILE, "ok": False, "sentence": HOSTILE, "group": HOSTILE}
    about = {
        "configuration": {HOSTILE: HOSTILE},
        "versions": {HOSTILE: HOSTILE},
        "data": {"sha256": HOSTILE, HOSTILE: HOSTILE},
        "evaluation": {"metrics": {METRIC: scores}},
    }
    with writing(workspace.engine) as connection:
        add_period(connection, 0, evaluation={"metrics": {METRIC: scores}})
        decision = {"promote": False, "reason": HOSTILE, "checks": [check]}
        add_model(connection, SHORT_HOSTILE, 0, decision=decision, about=about)
        add_update(connection, 0, state="rejected", reason=HOSTILE, requested_by=HOSTILE, model=SHORT_HOSTILE)
    client = signed_in(workspace, "admin")
    pages = [client.get("/"), client.get("/models"), client.get("/updates")]
    pages.append(client.get("/lists", params={"user": HOSTILE}))
    (link,) = set(re.findall(r'href="(/models/[^"]+)"', pages[1].text))
    pages.append(client.get(link))
    for answer in pages:
        assert answer.status_code == 200
        assert "<script" not in answer.text
        assert "<img src=x" not in answer.text
        assert html.escape("<script>alert(", quote=False) in answer.text


def test_a_gap_has_one_sign_and_its_margin_and_noise_is_called_noise(new_workspace: Maker) -> None:
    """The tile, the table and the accepted gap agree on who is behind; where it may be chance none of them says."""
    workspace = new_workspace(group="age")
    why = "too few people for the privacy noise (epsilon = 1)"
    scores = {
        "mean": 0.2,
        "by_group": {"young": 0.14, "old": 0.2, "rare": None},
        "gaps": {
            "young": {"value": -0.06, "interval": [-0.08, -0.04]},
            "old": {"value": 0.06, "interval": [0.04, 0.08]},
        },
        "largest_gap": {"group": "old", "value": 0.06, "interval": [0.04, 0.08], "p_value": 0.001},
    }
    levels = {"young": [0.14, [0.12, 0.16]], "old": [0.2, [0.17, 0.23]]}
    evaluation = {"metrics": {METRIC: scores}, "levels": levels, "withheld": {"rare": why}, "epsilon": 1.0}
    evaluation |= {"n_tested_users": 900, "n_cold_users": 0}
    control = {
        "target": {"name": "least-regret", "max_group_loss": 0.02},
        "level": {"group": "young", "weight": 2.0},
        "sentence": "events of young count 2 times in popularity: on the period that has ended that gave +3 %",
        "regret": {"young": [0.123, [0.05, 0.2]]},
        "withheld": {"old": why, "rare": "too few people to report"},
    }
    about = {"evaluation": evaluation, "control": control}
    untested = {
        "name": "performance",
        "ok": True,
        "is_tested": False,
        "group": "rare",
        "sentence": f"not tested: {why}",
    }
    with writing(workspace.engine) as connection:
        add_period(connection, 1, evaluation=evaluation)
        add_model(connection, "m1", 1, about=about, decision={"promote": True, "reason": "good", "checks": [untested]})
        put_into_service(connection, "m1")
    client = signed_in(workspace)
    pages = {path: " ".join(Reader(client.get(path).text).texts) for path in ("/", "/models", "/models/m1")}
    for page in pages.values():
        words = " ".join(page.split())
        assert "0.060 ± 0.020" in words
        assert "young behind" in words
        assert "Numbers of groups carry noise on purpose, for privacy (epsilon = " in words
        assert not re.search(r"young ahead|old behind|old ahead", words)
    for page in (pages["/"], pages["/models/m1"]):
        assert "0.140 ± 0.020" in page
        assert why in page
        assert "0.060 ± 0.020 behind" in page  # of the young: the number of the tile
        assert "0.060 ± 0.020 ahead" in page  # of the old
        assert "12.3 % (5.0 % to 20.0 %)" in page
        assert "Events of young count 2 times in popularity: on the period that has ended that gave +3 %." in page
        assert "no group may lose more than 2.0 % by it" in page
    assert "not tested" in pages["/models/m1"]
    drawn = client.get("/").text
    for chart, name, numbers in (("regret", "young", "12.3 %"), ("level", "young", "2")):
        figure = drawn[drawn.index(f'id="chart-{chart}"') :]
        assert re.search(rf"{name} <em>{numbers}", figure[: figure.index("</figure>")])


def test_without_groups_quality_is_shown_and_no_gap(new_workspace: Maker) -> None:
    workspace = new_workspace()
    with writing(workspace.engine) as connection:
        add_period(connection, 0)
        add_period(connection, 1, evaluation={"metrics": {METRIC: {"mean": 0.2, "by_group": {}}}, "n_tested_users": 50})
    page = signed_in(workspace).get("/").text
    assert "There are no groups to compare." in page
    assert "chart-quality" in page
    assert "chart-gap" not in page


def test_there_is_no_such_model(shop: Workspace) -> None:
    client = signed_in(shop)
    for id_ in ("nobody", "%00", "%ff", "a%0Ab", "%F0%9F%92%A5", "x" * 500, "%25", "..%5c"):
        assert client.get(f"/models/{id_}").status_code == 404, id_


def test_assets_are_named_by_their_content_and_kept(shop: Workspace) -> None:
    client = Client(shop)  # the page that asks for a key needs them, too
    addresses = set(re.findall(r'"(/assets/[^"]+)"', client.get("/login").text))
    assert len(addresses) == 2
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/assets/dashboard.0.css").status_code == 404
    assert client.get("/assets/..%2froutes.py").status_code == 404


def test_a_database_that_is_away_is_said_in_a_sentence(shop: Workspace) -> None:
    client = signed_in(shop, "admin")

    def _away(*_: object) -> None:
        raise OperationalError("select", {}, Exception("gone"))

    event.listen(shop.engine, "before_cursor_execute", _away)
    for answer in (*map(client.get, ("/", MODEL)), client.post("/rollback"), sign_in(client, "fs_any")):
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers
        assert "The database cannot be reached" in answer.text
    event.remove(shop.engine, "before_cursor_execute", _away)
    assert client.get("/").status_code == 200


def test_odd_states_of_the_database_still_have_a_page(new_workspace: Maker) -> None:
    """Everything is missing that may be missing."""
    workspace = new_workspace()
    client = signed_in(workspace, "admin")
    assert all(client.get(path).status_code == 200 for path in ("/", "/models", "/updates", "/lists"))
    scores = {"mean": None, "by_group": {"a": None}, "largest_gap": None, "disparity": None}
    with writing(workspace.engine) as connection:
        add_period(connection, 0, n_events=0, n_late=0, latest_time=2**62)
        add_period(connection, 1, evaluation={"metrics": {METRIC: scores}, "n_tested_users": 0, "n_cold_users": 0})
        add_period(connection, 2, evaluation={"metrics": {}})
        add_model(connection, "empty", 1, decision={}, about={})
        about = {"evaluation": None}
        add_model(connection, "less", 2, decision={"checks": None, "reason": None}, about=about, state="failed")
        add_model(connection, "late", 2, parent="gone", created=BEGINS + 9 * DAY)
        add_update(connection, 3, state="running", reason=None, started=None, finished=None)
    assert 'http-equiv="refresh"' in client.get("/").text
    for path in (
        "/",
        "/models",
        "/updates",
        "/models/empty",
        "/models/less",
        "/models/late",
    ):
        assert client.get(path).status_code == 200, path
