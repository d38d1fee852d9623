"""The operations of the service and their types. `clients/generate.py` writes this file; do not edit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NotRequired, TypedDict

from fairstream_client.transport import Transport


class AtMost(TypedDict):
    """Show at most n items with the same value of a property."""

    n: int
    """The most items with one value."""
    per: str
    """A property of one value; items without it are not limited."""


class AuditEntry(TypedDict):
    """A line of the audit record."""

    seq: int
    """Number of the entry, from 1."""
    time: str
    """When it happened."""
    kind: str
    """What was decided."""
    body: Any
    """The decision, as JSON."""
    previous: str
    """Hash of the entry before."""
    hash: str
    """Keyed hash of the entry and of the one before it."""


class AuditEntryPage(TypedDict):
    """A page of a long list."""

    data: list[AuditEntry]
    """The entries of this page."""
    cursor: str | None
    """The `cursor` of the next page; null on the last one."""


class Boost(TypedDict):
    """Divide the rank of the items that pass a filter by a factor."""

    filter: str
    """A condition on the properties of items."""
    factor: float
    """Above 1 moves items up, below 1 down: with 2 the item of rank 10 takes rank 5."""


class Event(TypedDict):
    """What somebody did with an item."""

    user_id: str | int
    """Id of the person."""
    item_id: str | int
    """Id of the item."""
    time: float | str
    """Seconds since 1970, or ISO 8601 (UTC unless it says otherwise); at most `limits.max_future_seconds` ahead."""
    kind: NotRequired[str | None]
    """One of the kinds in `[events]` of fairstream.toml; without one, its `default`."""
    event_id: NotRequired[str | int | None]
    """An event sent again under the same id is stored once; without one the other fields identify it."""


class EventBatch(TypedDict):
    """Several events, which are stored all or none."""

    events: list[Event]
    """The events."""


class EventsAnswer(TypedDict):
    """The events are on disk."""

    accepted: int
    """All events of the request: those stored now or before, and those of people who were forgotten."""
    stored: NotRequired[int | None]
    """Stored now. For admin keys alone."""
    repeated: NotRequired[int | None]
    """Stored before. For admin keys alone."""
    forgotten: NotRequired[int | None]
    """Of people who were forgotten and have done nothing since: not stored. For admin keys alone."""


class Experiment(TypedDict):
    """An experiment, its latest results, and how it ended."""

    id: str
    """Id of the experiment."""
    state: Literal["running", "ended"]
    """Whether it runs."""
    mode: Literal["split", "interleave", "shadow"]
    """How people get the lists of B."""
    a: str
    """Model of arm A: the one in service when the experiment started."""
    b: str
    """Model of arm B."""
    options: Options
    """What was asked for."""
    share: float
    """Share of users that get B."""
    started: str
    """When it began."""
    step_since: str
    """When the share was last changed."""
    ended: str | None
    """When it ended; null before."""
    looks: dict[str, Any]
    """Users of each arm, and each test with its interval."""
    decision: dict[str, Any] | None
    """The outcome and its sentence; null before."""
    sentences: list[str]
    """The state and the results, for people."""


class ForgetRequest(TypedDict):
    """A request to forget a person."""

    id: str
    """Id of the request: `GET /v1/forgettings/ID` shows whether it is completed."""
    n_events: int
    """Events that were removed; the attribute and models follow."""


class Forgetting(TypedDict):
    """A request to forget a person."""

    id: str
    """Id of the request."""
    requested: str
    """When it was requested."""
    completed: str | None
    """When the attribute and every model were without the person; null before."""


class FullModel(TypedDict):
    """A model, and what the gate decided."""

    id: str
    """Id of the model."""
    t: int
    """Number of its period, from 0."""
    parent: str | None
    """The model that it was fine-tuned from; null for the first one."""
    state: Literal["promoted", "rejected", "failed"]
    """What the gate decided."""
    created: str
    """When it was created."""
    training_seconds: float
    """How long training took."""
    folder: str
    """Name of its files, which never change: forgetting writes new ones."""
    decision: dict[str, Any]
    """The gate's checks, each with its numbers."""
    about: dict[str, Any]
    """Configuration, hash of the data, versions and sizes."""
    in_service: bool
    """Whether this model answers now."""


class FullPeriod(TypedDict):
    """A closed period, and the level that the target chose in its update."""

    t: int
    """Number of the period, from 0."""
    first_seq: int
    """Number of its first event."""
    last_seq: int
    """Number of its last event."""
    closed: str
    """When the update closed it."""
    n_events: int
    """Number of events."""
    n_users: int
    """Number of people with an event."""
    n_late: int
    """Events dated before the last one of the period before."""
    latest_time: int
    """Time of its latest event, in microseconds since 1970."""
    held_out: float
    """Share of its users whose latest events judged the candidate."""
    max_of_user: int
    """Events of one user beyond this number were left out."""
    replay_until: NotRequired[int | None]
    """Last event of the imported history that the period is a part of; else null."""
    evaluation: dict[str, Any] | None
    """Quality of the model in service, before it learned the period."""
    control: dict[str, Any] | None
    """The level that the target chose in its update; null without a target."""


class FullPeriodPage(TypedDict):
    """A page of a long list."""

    data: list[FullPeriod]
    """The entries of this page."""
    cursor: str | None
    """The `cursor` of the next page; null on the last one."""


class Impression(TypedDict):
    """A list that somebody saw."""

    user_id: str | int
    """Who saw it."""
    items: list[str | int]
    """The items that were shown, in their order."""
    time: NotRequired[float | str | None]
    """When it was shown: seconds since 1970 or ISO 8601; now if it is missing."""
    list_id: NotRequired[str | None]
    """`list_id` of the response that held the list; a list that is sent again under its id is stored once."""
    placement: NotRequired[str | None]
    """Where it was shown."""


class Impressions(TypedDict):
    """Lists that people saw."""

    impressions: list[Impression]
    """The lists; all of them are stored or none."""


class ImpressionsAnswer(TypedDict):
    """The lists are on disk."""

    accepted: int
    """All lists of the request: those stored now or before, and those of people who were forgotten."""
    stored: NotRequired[int | None]
    """Stored now. For admin keys alone."""
    repeated: NotRequired[int | None]
    """Stored before. For admin keys alone."""
    forgotten: NotRequired[int | None]
    """Of people who were forgotten: not stored. For admin keys alone."""


Item = dict[str, Any]
"""An item: whether it may be recommended, when it was changed, and its properties."""

ItemChange = dict[str, Any]
"""An item, with the fields that change; further fields are the properties of `[items]` in fairstream.toml."""


class ItemPage(TypedDict):
    """A page of a long list."""

    data: list[Item]
    """The entries of this page."""
    cursor: str | None
    """The `cursor` of the next page; null on the last one."""


class ItemsReceipt(TypedDict):
    """How many items a request has stored."""

    stored: int
    """Items that the request has stored."""


class Liveness(TypedDict):
    """The process is alive."""

    status: NotRequired[Literal["alive"]]
    """Always "alive"."""


class ManyRecommendations(TypedDict):
    """Several lists of one model."""

    model: str | None
    """Id of the model; null if there is none yet."""
    answers: list[Recommendations]
    """A list for each user or session, in the order of the request."""


class ModelInService(TypedDict):
    """The model in service."""

    model: str
    """Id of the model."""


class ModelRow(TypedDict):
    """A model in a list; `GET /v1/models/ID` adds its checks and configuration."""

    id: str
    """Id of the model."""
    t: int
    """Number of its period, from 0."""
    parent: str | None
    """The model that it was fine-tuned from; null for the first one."""
    state: Literal["promoted", "rejected", "failed"]
    """What the gate decided."""
    created: str
    """When it was created."""
    training_seconds: float
    """How long training took."""
    in_service: bool
    """Whether this model answers now."""
    reason: str | None
    """Why the gate decided so, in a sentence."""


class ModelRowPage(TypedDict):
    """A page of a long list."""

    data: list[ModelRow]
    """The entries of this page."""
    cursor: str | None
    """The `cursor` of the next page; null on the last one."""


class Options(TypedDict):
    """What an experiment compares, and when it ends."""

    b: str
    """The other model, whose files are kept; the model in service only with other rules."""
    mode: NotRequired[Literal["split", "interleave", "shadow"]]
    """split: each user gets lists of one model; interleave: lists that both models fill by turns; shadow: lists of
    B
    are made and measured, and never shown.
    """
    metric: NotRequired[Literal["click_through", "conversion"]]
    """The metric that decides. Interleaving is decided by whose items users click first."""
    rules: NotRequired[list[dict[str, Any]] | None]
    """Rules for the lists of B instead of those of `PUT /v1/rules`."""
    steps: NotRequired[list[float]]
    """Shares of users that get B, one after the other; of a split at most half."""
    step_hours: NotRequired[float]
    """The minimum time of each share; the next one also needs 100 users of B."""
    max_users: NotRequired[int]
    """After this many users of both arms the experiment ends without a difference."""
    alpha: NotRequired[float]
    """The probability that the experiment decides for a difference, or is rolled back, where there is none."""
    max_fall_of_click_through: NotRequired[float]
    """B is rolled back if it loses significantly more than this share of A's click-through, …"""
    max_fall_of_conversion: NotRequired[float]
    """… or of A's conversion, …"""
    max_rise_of_latency: NotRequired[float]
    """… or takes longer for a list by more than this share, …"""
    max_rise_of_fallback: NotRequired[float]
    """… or answers more users by popularity, as a share of users."""


class Pin(TypedDict):
    """Put items at a position of every list, in this order."""

    items: list[str]
    """Items, in order."""
    position: NotRequired[int]
    """Position of the first item; 1 is the top."""


class PrivacyStatus(TypedDict):
    """What may be published about groups in a quarter, and how much of it the last 91 days have used."""

    epsilon_per_quarter: float | str
    """The budget of a quarter; "off": numbers of groups are exact."""
    delta: float
    """The probability with which the guarantee may fail."""
    spent: float
    """Share of the budget that the last 91 days have used."""
    left: float
    """Share of the budget that is left."""
    spent_by: dict[str, float]
    """The same for sizes of groups, reports, the gate and the target."""
    max_guess: float
    """Highest probability with which somebody who knows all else guesses a group from all ever published."""
    max_guess_per_quarter: float
    """The same from what a quarter may publish."""


class Problem(TypedDict):
    """Why a request was refused."""

    detail: str
    """One sentence: what was expected, what was found, what to do."""
    code: Literal[
        "missing_key",
        "unknown_key",
        "missing_scope",
        "not_found",
        "unknown_id",
        "wrong_method",
        "conflict",
        "update_running",
        "body_too_large",
        "wrong_type",
        "invalid",
        "invalid_filter",
        "too_many_requests",
        "internal",
        "model_failed",
        "database_unavailable",
        "not_ready",
        "overloaded",
        "too_many_open_events",
        "disk_full",
    ]
    """A name for programs, which never changes."""
    update_id: NotRequired[str | None]
    """With `update_running`: the update that has not ended."""
    position: NotRequired[int | None]
    """With `invalid_filter`: the character of the filter that cannot be read, from 1."""


class Question(TypedDict):
    """Several lists: for users, or for anonymous sessions."""

    users: NotRequired[list[str | int] | None]
    """Users; at most `limits.max_users`."""
    histories: NotRequired[list[list[str | int]] | None]
    """Instead of users: the items that each anonymous session has had, in order."""
    k: NotRequired[int | None]
    """Number of items; 20 by default."""
    exclude: NotRequired[list[str | int]]
    """Items that must not be in a list."""
    only: NotRequired[list[str | int] | None]
    """The only items that may be in a list."""
    filter: NotRequired[str]
    """A condition on the properties of items."""
    explain: NotRequired[bool]
    """Whether to say why: `because` for each item."""


class Readiness(TypedDict):
    """Whether the service can answer, its model, and its problems."""

    status: Literal["ready", "degraded", "unavailable"]
    """Degraded: it answers, but has problems. Unavailable: it cannot make lists."""
    model: str | None
    """Id of the serving model; null if there is none yet, and lists are by popularity."""
    problems: list[str]
    """What is wrong, each in a sentence."""


class Recommendations(TypedDict):
    """The best items, best first."""

    list_id: str
    """Names this list, for `POST /v1/impressions`."""
    user_id: str | None
    """Id of the person; null for a session, and for lists of similar or popular items."""
    model: str | None
    """Id of the model; null if there is none yet."""
    source: Literal["model", "popularity"]
    """Popularity, if the model cannot score the person."""
    items: list[RecommendedItem]
    """The list, best first."""


class RecommendedItem(TypedDict):
    """An item of a list."""

    item_id: str
    """Id of the item."""
    score: float | None
    """The model's score; null in a list by popularity."""
    because: NotRequired[str | None]
    """With `explain`: the item that the person has had and that is most similar to this one."""


class Report(TypedDict):
    """Impressions since a moment, and their results."""

    since: str
    """When the counted hours begin."""
    everyone: Shares
    """All lists."""
    by_model: dict[str, Shares]
    """The same for each model; `popularity` stands for none."""
    by_group: dict[str, Any]
    """The shares of people who clicked and who converted among those who saw a list, as updates publish them."""


class Rule(TypedDict):
    """One of `pin`, `boost` and `at_most`."""

    pin: NotRequired[Pin | None]
    """Items at fixed positions."""
    boost: NotRequired[Boost | None]
    """Divide the rank of the items that pass a filter."""
    at_most: NotRequired[AtMost | None]
    """At most n items with the same value of a property."""


class Shares(TypedDict):
    """How many items were shown, clicked and converted."""

    lists: NotRequired[int]
    """Lists that were shown."""
    shown: NotRequired[int]
    """Items that were shown."""
    clicked: NotRequired[int]
    """Shown items with an event of a positive kind within `impressions.window_hours`."""
    converted: NotRequired[int]
    """Shown items with an event of a kind of `events.judge_by`, by default purchase."""
    click_through: float | None
    """Share of shown items with an event of a positive kind; null without any."""
    conversion: float | None
    """Share of shown items with a conversion; null without any."""


class Update(TypedDict):
    """A requested update and its outcome."""

    id: str
    """Id of the update."""
    state: Literal["queued", "running", "promoted", "rejected", "skipped", "failed", "interrupted"]
    """How far it is, or how it ended."""
    reason: str | None
    """Why it ended as it did, in a sentence."""
    requested: str
    """When it was requested."""
    requested_by: str
    """The key or schedule that requested it."""
    started: str | None
    """When it began; null before."""
    finished: str | None
    """When it ended; null before."""
    t: int | None
    """The period that it closed; null if it closed none."""
    model: str | None
    """The candidate that it made; null if it made none."""


class UpdatePage(TypedDict):
    """A page of a long list."""

    data: list[Update]
    """The entries of this page."""
    cursor: str | None
    """The `cursor` of the next page; null on the last one."""


class UserGroup(TypedDict):
    """Somebody's group."""

    user_id: str | int
    """Id of the person."""
    group: str | int
    """The value of the attribute; one of `groups`, if fairstream.toml names them."""


class UsersAnswer(TypedDict):
    """The groups are on disk."""

    accepted: int
    """All users of the request, the forgotten ones included."""
    stored: NotRequired[int | None]
    """Stored now. For admin keys alone."""
    forgotten: NotRequired[int | None]
    """Of people who were forgotten and have done nothing since: not stored. For admin keys alone."""


class Client(Transport):
    """A client of one service, with a method for each operation.

    >>> client = Client("http://localhost:8000", "fs_…")  # doctest: +SKIP
    >>> client.recommend("ann", k=5)["items"]  # doctest: +SKIP
    """

    def recommend(
        self,
        user_id: str,
        *,
        k: int | None = None,
        exclude: list[str] | None = None,
        only: list[str] | None = None,
        filter: str | None = None,
        explain: bool | None = None,
    ) -> Recommendations:
        """Recommend the best items to a user, without those the user has had; unknown users get popular items.

        With `exclude`, `only`, `filter` and `explain` lists show what the user has had, so they need the scope
        `history`.

        The key needs the scope read.

        Parameters
        ----------
        k
            Number of items; 20 by default.
        exclude
            Items that must not be in a list.
        only
            The only items that may be in a list.
        filter
            A condition on the properties of items.
        explain
            Whether to say why: `because` for each item.
        """
        answer: Recommendations = self.request(
            "GET",
            f"/v1/users/{self.quote(user_id)}/recommendations",
            query={"k": k, "exclude": exclude, "only": only, "filter": filter, "explain": explain},
        )
        return answer

    def recommend_many(self, body: Question) -> ManyRecommendations:
        """Recommend to several users or anonymous sessions at once.

        For users, `exclude`, `only`, `filter` and `explain` need the scope `history`.

        The key needs the scope read.
        """
        answer: ManyRecommendations = self.request("POST", "/v1/recommendations", body=body)
        return answer

    def list_popular_items(self, *, k: int | None = None, filter: str | None = None) -> Recommendations:
        """List the items with the most recent events.

        The key needs the scope read.

        Parameters
        ----------
        k
            Number of items; 20 by default.
        filter
            A condition on the properties of items.
        """
        answer: Recommendations = self.request("GET", "/v1/items/popular", query={"k": k, "filter": filter})
        return answer

    def list_similar_items(self, item_id: str, *, k: int | None = None, filter: str | None = None) -> Recommendations:
        """List the items most similar to one, by the model's vectors or else by the people who had both.

        Without vectors an item counts if at least five people had both; otherwise it would tell what they had.

        The key needs the scope read.

        Parameters
        ----------
        k
            Number of items; 20 by default.
        filter
            A condition on the properties of items.
        """
        answer: Recommendations = self.request(
            "GET", f"/v1/items/{self.quote(item_id)}/similar", query={"k": k, "filter": filter}
        )
        return answer

    def ingest_events(self, body: list[Event] | Event | EventBatch) -> EventsAnswer:
        """Store events, all of them or none; it answers when they are on disk.

        The key needs the scope ingest.
        """
        answer: EventsAnswer = self.request("POST", "/v1/events", body=body)
        return answer

    def put_users(self, body: list[UserGroup]) -> UsersAnswer:
        """Set the group of users.

        The key needs the scope attributes.
        """
        answer: UsersAnswer = self.request("PUT", "/v1/users", body=body)
        return answer

    def ingest_impressions(self, body: Impressions) -> ImpressionsAnswer:
        """Store lists that people saw; it answers when they are on disk.

        The key needs the scope ingest.
        """
        answer: ImpressionsAnswer = self.request("POST", "/v1/impressions", body=body)
        return answer

    def report_impressions(self, *, hours: int | None = None) -> Report:
        """Report what was shown in the last hours, and the events that followed.

        The key needs the scope read.

        Parameters
        ----------
        hours
            How far back.
        """
        answer: Report = self.request("GET", "/v1/impressions/report", query={"hours": hours})
        return answer

    def put_items(self, body: list[ItemChange]) -> ItemsReceipt:
        """Add, describe, withdraw and restore items, all of them or none.

        Missing fields stay as they are, and null removes a property. Lists of this process reflect the change
        when the request is answered, those of other processes within a second.

        The key needs the scope ingest.
        """
        answer: ItemsReceipt = self.request("PUT", "/v1/items", body=body)
        return answer

    def list_items(
        self, *, available: bool | None = None, cursor: str | None = None, limit: int | None = None
    ) -> ItemPage:
        """List the catalogue by item id; an item that it does not have is available and has no properties.

        The key needs the scope read.

        Parameters
        ----------
        available
            Only those that are, or are not, available.
        cursor
            `cursor` of the page before.
        limit
            The most entries on a page.
        """
        answer: ItemPage = self.request(
            "GET", "/v1/items", query={"available": available, "cursor": cursor, "limit": limit}
        )
        return answer

    def iterate_items(self, *, available: bool | None = None, limit: int | None = None) -> Iterator[Item]:
        """Yield the entries of all pages of `list_items`."""
        return self.iterate(lambda cursor: self.list_items(cursor=cursor, available=available, limit=limit))

    def get_item(self, item_id: str) -> Item:
        """Show an item with its properties.

        The key needs the scope read.
        """
        answer: Item = self.request("GET", f"/v1/items/{self.quote(item_id)}")
        return answer

    def get_rules(self) -> list[Rule]:
        """Show the rules that shape every list.

        The key needs the scope read.
        """
        answer: list[Rule] = self.request("GET", "/v1/rules")
        return answer

    def put_rules(self, body: list[Rule]) -> list[Rule]:
        """Replace all rules.

        They apply to every list after ranking: first boosts, then limits, then pins. No rule brings back an
        item that is withdrawn, filtered or excluded, or that the person has had.

        The key needs the scope admin.
        """
        answer: list[Rule] = self.request("PUT", "/v1/rules", body=body)
        return answer

    def request_update(self) -> Update:
        """Start an update, which closes the open period; `GET /v1/updates/ID` gives its state.

        The key needs the scope admin.
        """
        answer: Update = self.request("POST", "/v1/updates")
        return answer

    def list_updates(self, *, cursor: str | None = None, limit: int | None = None) -> UpdatePage:
        """List updates, the newest first.

        The key needs the scope read.

        Parameters
        ----------
        cursor
            `cursor` of the page before.
        limit
            The most entries on a page.
        """
        answer: UpdatePage = self.request("GET", "/v1/updates", query={"cursor": cursor, "limit": limit})
        return answer

    def iterate_updates(self, *, limit: int | None = None) -> Iterator[Update]:
        """Yield the entries of all pages of `list_updates`."""
        return self.iterate(lambda cursor: self.list_updates(cursor=cursor, limit=limit))

    def show_update(self, update_id: str) -> Update:
        """Show an update: queued, running, promoted, rejected, skipped or failed, and why.

        The key needs the scope read.
        """
        answer: Update = self.request("GET", f"/v1/updates/{self.quote(update_id)}")
        return answer

    def list_periods(self, *, cursor: str | None = None, limit: int | None = None) -> FullPeriodPage:
        """List closed periods, the oldest first, with the scores of the model in service on each.

        The key needs the scope read.

        Parameters
        ----------
        cursor
            `cursor` of the page before.
        limit
            The most entries on a page.
        """
        answer: FullPeriodPage = self.request("GET", "/v1/periods", query={"cursor": cursor, "limit": limit})
        return answer

    def iterate_periods(self, *, limit: int | None = None) -> Iterator[FullPeriod]:
        """Yield the entries of all pages of `list_periods`."""
        return self.iterate(lambda cursor: self.list_periods(cursor=cursor, limit=limit))

    def list_models(self, *, cursor: str | None = None, limit: int | None = None) -> ModelRowPage:
        """List models, the newest first.

        The key needs the scope read.

        Parameters
        ----------
        cursor
            `cursor` of the page before.
        limit
            The most entries on a page.
        """
        answer: ModelRowPage = self.request("GET", "/v1/models", query={"cursor": cursor, "limit": limit})
        return answer

    def iterate_models(self, *, limit: int | None = None) -> Iterator[ModelRow]:
        """Yield the entries of all pages of `list_models`."""
        return self.iterate(lambda cursor: self.list_models(cursor=cursor, limit=limit))

    def show_model(self, model_id: str) -> FullModel:
        """Show a model: the gate's checks, its configuration, versions and sizes.

        The key needs the scope read.
        """
        answer: FullModel = self.request("GET", f"/v1/models/{self.quote(model_id)}")
        return answer

    def promote_model(self, model_id: str) -> ModelInService:
        """Promote a model, whatever the gate decided.

        The key needs the scope admin.
        """
        answer: ModelInService = self.request("POST", f"/v1/models/{self.quote(model_id)}/promote")
        return answer

    def rollback(self) -> ModelInService:
        """Roll back to the parent of the model in service.

        The key needs the scope admin.
        """
        answer: ModelInService = self.request("POST", "/v1/rollback")
        return answer

    def show_experiment(self) -> Experiment:
        """Show the running experiment, else the last one: its arms, tests, and the decision.

        The key needs the scope read.
        """
        answer: Experiment = self.request("GET", "/v1/experiment")
        return answer

    def start_experiment(self, body: Options) -> Experiment:
        """Start an experiment: the model in service and another one side by side.

        The key needs the scope admin.
        """
        answer: Experiment = self.request("PUT", "/v1/experiment", body=body)
        return answer

    def stop_experiment(self) -> Experiment:
        """End the running experiment: everybody gets the model in service.

        The key needs the scope admin.
        """
        answer: Experiment = self.request("DELETE", "/v1/experiment")
        return answer

    def promote_experiment(self) -> ModelInService:
        """Put model B into service, which ends the experiment.

        The key needs the scope admin.
        """
        answer: ModelInService = self.request("POST", "/v1/experiment/promote")
        return answer

    def list_audit(self, *, cursor: str | None = None, limit: int | None = None) -> AuditEntryPage:
        """List the entries of the audit record, the oldest first.

        The key needs the scope admin.

        Parameters
        ----------
        cursor
            `cursor` of the page before.
        limit
            The most entries on a page.
        """
        answer: AuditEntryPage = self.request("GET", "/v1/audit", query={"cursor": cursor, "limit": limit})
        return answer

    def iterate_audit(self, *, limit: int | None = None) -> Iterator[AuditEntry]:
        """Yield the entries of all pages of `list_audit`."""
        return self.iterate(lambda cursor: self.list_audit(cursor=cursor, limit=limit))

    def forget_user(self, user_id: str) -> ForgetRequest:
        """Forget a person: events and lists at once, the attribute and the traces in models soon after.

        An id without events is accepted, too: the attributes and the models may know it.

        The key needs the scope admin.
        """
        answer: ForgetRequest = self.request("DELETE", f"/v1/users/{self.quote(user_id)}")
        return answer

    def show_privacy(self) -> PrivacyStatus:
        """Show a quarter's privacy budget for numbers of groups, and how much of it is spent.

        The key needs the scope read.
        """
        answer: PrivacyStatus = self.request("GET", "/v1/privacy")
        return answer

    def show_forgetting(self, id: str) -> Forgetting:
        """Show a request to forget a person, and when it was completed.

        The key needs the scope admin.
        """
        answer: Forgetting = self.request("GET", f"/v1/forgettings/{self.quote(id)}")
        return answer

    def export_user(self, user_id: str) -> dict[str, Any]:
        """Export the data of a person: events, attribute, and the models that know the id.

        The key needs the scope admin.
        """
        answer: dict[str, Any] = self.request("GET", f"/v1/users/{self.quote(user_id)}/data")
        return answer

    def healthz(self) -> Liveness:
        """The process is alive.

        Needs no key.
        """
        answer: Liveness = self.request("GET", "/healthz")
        return answer

    def readyz(self) -> Readiness:
        """Return 200 as long as the service can make lists; `problems` lists what else is wrong.

        Needs no key.
        """
        answer: Readiness = self.request("GET", "/readyz", answers=(503,))
        return answer

    def metrics(self) -> str:
        """Return metrics in Prometheus's format.

        The key needs the scope read.
        """
        answer: str = self.request("GET", "/metrics")
        return answer
