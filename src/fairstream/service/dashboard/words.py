"""The pages' sentences."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.pages.format import number, plain, signed
from fairstream.pages.markup import Markup, element, joined
from fairstream.service.dashboard.facts import Candidate, Period
from fairstream.service.dashboard.overview import Overview
from fairstream.service.dashboard.scores import largest_gap, largest_gap_group

TOO_FEW = "too few to report"
BY_CHANCE = "cannot be told from chance"
UNLIKELY = "unlikely by chance"
NOT_JUDGED = "not judged"

STATES = {"promoted": "promoted", "rejected": "held back", "failed": "failed"}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def metric_name(metric: str) -> str:
    """The metric as papers write it.

    >>> metric_name("ndcg@20")
    'NDCG@20'
    """
    return metric.upper()


def plain_time(microseconds: int) -> str:
    """Day and minute, in UTC.

    >>> plain_time(1_763_000_000_000_000)
    '13 Nov 2025, 02:13 UTC'
    """
    at = _utc(microseconds)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}, {at:%H:%M} UTC"


def iso_time(microseconds: int) -> str:
    """As ISO 8601 has it, to the microsecond.

    >>> iso_time(1_763_000_000_000_001)
    '2025-11-13T02:13:20.000001Z'
    """
    return f"{_utc(microseconds):%Y-%m-%dT%H:%M:%S.%f}Z"


def day(microseconds: int) -> str:
    """The day alone, for a table's cell."""
    at = _utc(microseconds)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def when(microseconds: int, *, short: bool = False) -> Markup:
    """A time for people and for programs."""
    shown = day(microseconds) if short else plain_time(microseconds)
    return element("time", shown, datetime=iso_time(microseconds))


def percent(share: float | None) -> str:
    """A share, with one decimal.

    >>> percent(0.1234), percent(None)
    ('12.3 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


def count_words(count: float | None) -> str:
    """How many, or a dash where nobody counted.

    >>> count_words(1234), count_words(None)
    ('1,234', '–')
    """
    return "–" if count is None else f"{count:,.0f}"


def times_words(weight: float) -> str:
    """How many times something counts.

    >>> times_words(1.0), times_words(2.345)
    ('once', '2.35 times')
    """
    return "once" if weight == 1 else f"{weight:.2f} times"


def number_or_dash(value: float | None) -> str:
    """Four decimals, or a dash where there is nothing."""
    return "–" if value is None else number(value)


def span(interval: tuple[float, float] | None) -> str:
    """An interval, from its low end to its high end."""
    return "–" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def of_group(value: float | None) -> str:
    """A group's number; a group that is too small is not reported."""
    return TOO_FEW if value is None else number(value)


def chance_words(estimate: Estimate) -> str:
    """Whether chance could have done it."""
    if estimate.p_value is None:
        return "not tested"
    return f"{BY_CHANCE if estimate.may_be_chance else UNLIKELY} ({p_words(estimate.p_value)})"


def p_words(p_value: float) -> str:
    """A p-value that stays on one line.

    >>> p_words(0.0499).split(), p_words(0.0002).split()
    (['p', '=', '0.049'], ['p', '<', '0.001'])
    """
    # Rounded down: 0.0499 is not written as the 0.05 that it is not.
    shown = f"p = {int(p_value * 1000) / 1000:.3f}" if p_value >= 0.001 else "p < 0.001"
    return shown.replace(" ", "\xa0")


def gap_sentence(scores: GroupScores | None, metric: str) -> str:
    """How far apart the groups are.

    >>> gap_sentence(None, "ndcg@20")
    'No gap can be reported: too few users of more than one group were tested.'
    """
    gap, name = largest_gap(scores), largest_gap_group(scores)
    if scores is None or gap is None or name is None:
        return "No gap can be reported: too few users of more than one group were tested."
    signed_gap = scores.gaps.get(name)
    side = "ahead of" if signed_gap is not None and signed_gap.value > 0 else "behind"
    interval = f" (95 % interval {span(gap.interval)})" if gap.interval else ""
    far = f"{number(gap.value)} {side} the other users in {metric_name(metric)}"
    words = f"The group “{name}” is {far}{interval}"
    if gap.p_value is None:
        return f"{words}."
    chance = f"; equal groups would show {number(gap.null_mean)} on average" if gap.null_mean is not None else ""
    told = f"which {BY_CHANCE}" if gap.may_be_chance else f"which is {UNLIKELY} ({p_words(gap.p_value)})"
    return f"{words}, {told}{chance}."


def disparity_sentence(overview: Overview) -> str:
    """The latest gap, and what the gate holds it to."""
    if not overview.judged:
        return "No period has judged a model yet; the second period will be the first to do so."
    last = overview.judged[-1]
    limit = ""
    if last.limit is not None and last.largest_gap is not None:
        side = "above" if last.largest_gap.value > last.limit else "not above"
        allowed = f"the gap of the period before and the rise of {plain(overview.gate.max_rise)} that the gate allows"
        limit = f" It is {side} {number(last.limit)}: {allowed}."
    return f"Period {last.t}: {gap_sentence(last.scores, overview.metric)}{limit}"


def state_sentence(overview: Overview) -> Markup:
    """Which model answers since when, and what the last update decided and why."""
    return joined(_answering(overview), " ", _decided(overview))


def model_link(id_: str) -> Markup:
    """A model's name, leading to its page."""
    return element("a", element("code", id_), href=f"/models/{quote(id_, safe='')}")


def reason_words(reason: str) -> str:
    """A reason as the end of a sentence.

    >>> reason_words("its disparity rose"), reason_words("Nothing was wrong.")
    ('its disparity rose.', 'Nothing was wrong.')
    """
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."


def as_sentence(reason: str) -> str:
    """A reason as a sentence of its own.

    >>> as_sentence("all checks passed")
    'All checks passed.'
    """
    return reason_words(f"{reason[:1].upper()}{reason[1:]}")


def signed_percent(share: float) -> str:
    """A change as a share.

    >>> signed_percent(-0.034)
    '−3.4 %'
    """
    return f"{100 * share:+.1f} %".replace("-", "−")


def pd_words(disparity: Estimate | None) -> str:
    """PD with its sign."""
    return "–" if disparity is None else signed(disparity.value)


def tested_words(period: Period) -> str:
    """How many users judged."""
    return NOT_JUDGED if period.n_tested is None else f"{period.n_tested:,}"


def _answering(overview: Overview) -> Markup:
    if overview.service is None:
        return Markup("No model answers yet.")
    return joined("Model ", model_link(overview.service.model), " answers since ", when(overview.service.since), ".")


def _decided(overview: Overview) -> Markup:
    newest = overview.newest
    if newest is None:
        return Markup("No update has run yet: <code>fairstream update DIR</code> runs one.")
    words = joined(
        "The last update, of period ", str(newest.t), ", ", _outcome(newest), " ", reason_words(newest.reason)
    )
    if newest.state == "promoted" and not newest.in_service:
        words = joined(words, " It has been taken out of service since.")
    return words


def _outcome(newest: Candidate) -> Markup:
    link = model_link(newest.id)
    if newest.is_by_hand:
        return joined("held ", "it" if newest.in_service else link, " back, and it was promoted by hand:")
    if newest.state == "promoted":
        return joined("put ", "it" if newest.in_service else link, " into service:")
    if newest.state == "rejected":
        return joined("held its candidate ", link, " back:")
    return joined("failed (", link, "):")


def _utc(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)
