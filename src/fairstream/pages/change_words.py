"""Why a metric moved, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from fairstream.evaluation import Change, Estimate, Explained
from fairstream.pages.format import number, signed

PARTS = {
    "new_people": "new people",
    "histories": "length of histories",
    "new_items": "new items",
    "drift": "drift and ageing",
    "learning": "the update",
    "lever": "fairness lever",
}
"""The parts by the names that readers see, in order."""
MEANINGS = {
    "new_people": "The share of newcomers, people without an event before the period, went up or down.",
    "histories": "People have done more or less before they are served, so that less or more is known of them.",
    "new_items": "More or less of what people did concerns items that nobody had had by then and that could not be "
    "recommended.",
    "drift": "The model left as it was does better or worse for the same kind of people and for items that could be "
    "recommended: tastes, seasons, the catalogue, and that it has not learned the people and items of the last period.",
    "learning": "What learning the last period brought, on the same users; where the fairness lever has a part of its "
    "own, without anything done for fairness.",
    "lever": "What changed because of what is done for fairness: the fairness loss, the weights of groups, the "
    "controller, the adversary or the reranking.",
}
TASKS = {"event": "at each event", "next": "with one list for the period"}
_MOST_NAMED = 3
_CHANCE = "\N{NO-BREAK SPACE}~"
_NOTHING = 5e-5
"""What is written as 0.0000."""


def summary(explained: Explained) -> list[str]:
    """What moved, in a few sentences: everyone, the groups, the gap, the lever."""
    shown = explained.shown
    metric = explained.metric.upper()
    sentences = [
        f"{metric} {TASKS[explained.task]} for everyone {moved(shown.everyone)}{_because(shown.everyone)}.",
        *_groups(explained),
    ]
    if shown.gaps:
        name = _gap_of_interest(explained)
        gap = shown.gaps[name]
        because = _because(gap, f"; {name} minus the rest: ")
        sentences.append(f"The gap between {name} and the rest {gap_moved(gap)}{because}.")
    sentences += _lever(explained)
    return sentences


def moved(change: Change) -> str:
    """How far a number went, from where to where, and whether chance could have done it.

    >>> moved(Change(0.1, 0.12, Estimate(0.02, (0.01, 0.03)), {}))
    'rose by 0.0200, from 0.1000 to 0.1200'
    >>> moved(Change(0.1, 0.1, Estimate(-0.00001, (-0.03, 0.03)), {}))
    'stayed at 0.1000'
    """
    if abs(change.change.value) < _NOTHING:
        return f"stayed at {number(change.after)}"
    verb = "rose" if change.change.value > 0 else "fell"
    doubt = ", which chance alone could do" if may_be_chance(change.change) else ""
    size = number(abs(change.change.value))
    return f"{verb} by {size}, from {number(change.before)} to {number(change.after)}{doubt}"


def gap_moved(gap: Change) -> str:
    """How a group's gap to the rest moved: by its size, and with who is behind.

    >>> gap_moved(Change(-0.023, -0.088, Estimate(-0.065, (-0.09, -0.04)), {}))
    'widened by 0.0650, from 0.0230 behind to 0.0880 behind'
    >>> gap_moved(Change(-0.02, 0.03, Estimate(0.05, (-0.01, 0.11)), {}))
    'turned round, from 0.0200 behind to 0.0300 ahead, which chance alone could do'
    """
    before, after = levels(gap)
    sides = f"{_side(gap.before, before)} to {_side(gap.after, after)}"
    growth = abs(gap.after) - abs(gap.before)
    doubt = ", which chance alone could do" if may_be_chance(gap.change) else ""
    if abs(gap.change.value) < _NOTHING:
        return f"stayed at {_side(gap.after, after)}"
    if gap.before * gap.after < 0:
        return f"turned round, from {sides}{doubt}"
    return f"{'widened' if growth > 0 else 'narrowed'} by {number(abs(growth))}, from {sides}{doubt}"


def levels(change: Change) -> tuple[str, str]:
    """The number before and after, with their margins where these are known.

    >>> levels(Change(-0.1, 0.2, Estimate(0.3), {}, margins=(0.05, 0.06)))
    ('−0.1000 ± 0.0500', '0.2000 ± 0.0600')
    """
    if change.margins is None:
        return number(change.before), number(change.after)
    (before, after), margins = (change.before, change.after), change.margins
    return f"{number(before)} ± {number(margins[0])}", f"{number(after)} ± {number(margins[1])}"


def _side(value: float, written: str) -> str:
    """How far the group is behind or ahead."""
    return written.removeprefix("−") + (" behind" if value < 0 else " ahead" if value > 0 else "")


def may_be_chance(estimate: Estimate) -> bool:
    """Whether the 95 % interval holds 0."""
    return estimate.interval is not None and estimate.interval[0] <= 0 <= estimate.interval[1]


def named_parts(change: Change) -> Iterator[tuple[str, Estimate]]:
    """The parts under the names that readers see."""
    for key, name in PARTS.items():
        if key in change.parts:
            yield name, change.parts[key]


def _because(change: Change, lead: str = ": ") -> str:
    """The largest parts."""
    parts = [(name, part) for name, part in named_parts(change) if abs(part.value) >= _NOTHING]
    largest = sorted(parts, key=lambda pair: -abs(pair[1].value))[:_MOST_NAMED]
    named = ", ".join(f"{name} {signed(part.value)}{_CHANCE if may_be_chance(part) else ''}" for name, part in largest)
    return f"{lead}{named}" if named else ""


def _groups(explained: Explained) -> list[str]:
    """Who gained and who lost."""
    moves = {name: change.change for name, change in explained.shown.groups.items()}
    sides: dict[str, list[str]] = {"gained": [], "lost": [], "stayed where they were, as far as can be told": []}
    for name, change in moves.items():
        if may_be_chance(change):
            sides["stayed where they were, as far as can be told"].append(f"{name} ({_with_margin(change)})")
        else:
            sides["gained" if change.value > 0 else "lost"].append(f"{name} ({_with_margin(change)})")
    words = [f"{', '.join(names)} {what}" for what, names in sides.items() if names]
    return [f"{'; '.join(words)}."] if words else ["No group has enough tested users to be reported."]


def _with_margin(change: Estimate) -> str:
    """A change with half of its interval."""
    if change.interval is None:
        return signed(change.value)
    return f"{signed(change.value)} ± {number((change.interval[1] - change.interval[0]) / 2)}"


def _gap_of_interest(explained: Explained) -> str:
    """Of two groups the advantaged one's, of more the one that moved most, beyond chance if there is one."""
    moves = {name: gap.change for name, gap in explained.shown.gaps.items()}
    if len(moves) <= 2:
        return next(iter(moves))
    return max(moves, key=lambda name: (not may_be_chance(moves[name]), abs(moves[name].value)))


def _lever(explained: Explained) -> list[str]:
    shown = explained.shown
    worths = {name: worth for name, change in shown.groups.items() if (worth := change.lever_worth) is not None}
    if not worths:
        return []
    named = ", ".join(
        f"{signed(worth.value)}{_CHANCE if may_be_chance(worth) else ''} to {name}" for name, worth in worths.items()
    )
    return [f"Compared with the same update without it, the fairness lever is worth {named}."]
