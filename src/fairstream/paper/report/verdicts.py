"""The table of verdicts: each claim of the paper, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fairstream.pages.format import NOT_GIVEN, NOT_RUN, counted
from fairstream.pages.markup import Markup, element, joined
from fairstream.pages.tables import body, group_heading, row, section, table
from fairstream.paper.findings import Claim, Verdict
from fairstream.paper.report.captions import QUESTIONS
from fairstream.paper.report.wording import claim_value

ICONS: dict[Verdict, str] = {
    "holds": "✓",
    "holds in part": "◐",
    "cannot be told": "?",
    "does not hold": "✗",
    "not tested": "○",
}
_PLURAL: dict[Verdict, str] = {
    "holds": "hold",
    "holds in part": "hold in part",
    "cannot be told": "cannot be told",
    "does not hold": "do not hold",
    "not tested": "not tested",
}
_COLUMNS = (("Claim", ""), ("Paper", "n"), ("Ours (95 % interval)", "n"), ("Verdict", ""), ("Why", ""))


def verdict_section(claims: Sequence[Claim]) -> Markup:
    """All claims by research question; what was not tested stands there too."""
    questions = [*QUESTIONS, *sorted({claim.question for claim in claims} - set(QUESTIONS))]
    bodies = []
    for question in questions:
        asked = [claim for claim in claims if claim.question == question]
        title = " · ".join(part for part in (question, QUESTIONS.get(question, "")) if part)
        rows = [_row(claim) for claim in asked] or [_no_claim()]
        bodies.append(body(rows, heading=group_heading(title, n_columns=5, id_=f"verdicts-{question}")))
    of_all = table(
        caption="The paper's claims, and what our runs say of them",
        columns=_COLUMNS,
        bodies=bodies,
        id_="verdict-table",
        class_="stacks",
    )
    return section("Verdicts", of_all, id_="verdicts")


def counts_of(claims: Sequence[Claim]) -> str:
    """How many claims got which verdict.

    >>> counts_of([Claim("RQ1", "…", 1.0, 1.0, None, "%", "holds", "…")])
    'of 1 claim, 1 holds'
    """
    counts = Counter(claim.verdict for claim in claims)
    if not counts:
        return "no claims were judged"
    words = [f"{counts[kind]} {kind if counts[kind] == 1 else _PLURAL[kind]}" for kind in ICONS if counts[kind]]
    return f"of {counted(len(claims), 'claim')}, {', '.join(words)}"


def _row(claim: Claim) -> Markup:
    paper = NOT_GIVEN if claim.paper is None else claim_value(claim, claim.paper)
    kind = claim.verdict.replace(" ", "-")
    icon = element("span", ICONS[claim.verdict], aria_hidden="true", class_="icon")
    verdict = element("span", icon, claim.verdict, class_=f"verdict {kind}")
    return row(_COLUMNS, (claim.text, paper, _ours(claim), verdict, claim.reason))


def _ours(claim: Claim) -> Markup | str:
    if claim.ours is None:
        return NOT_RUN
    if claim.interval is None:
        return claim_value(claim, claim.ours)
    low, high = (claim_value(claim, end) for end in claim.interval)
    return joined(claim_value(claim, claim.ours), element("span", f"{low} … {high}", class_="interval"))


def _no_claim() -> Markup:
    return element("tr", element("td", "No claim of this question was judged.", colspan="5", role="cell"), role="row")
