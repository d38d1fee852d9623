"""The sections that sum up: agreement with the paper, verdicts on its claims, and the first paragraph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from fairstream.pages.format import NOT_GIVEN, NOT_RUN, counted, number, share
from fairstream.pages.markup import Markup, element, joined
from fairstream.pages.series import in_order
from fairstream.pages.tables import body, group_heading, row, section, table
from fairstream.paper.findings import Claim, Findings, Point, Verdict
from fairstream.paper.report.wording import QUESTIONS, caption_of, claim_value, rank

_COUNTS = (
    ("In the paper", "n"),
    ("Compared", "n"),
    ("Agree", "n"),
    ("Share", "n"),
    ("Median |difference|", "n"),
    ("Not run", "n"),
)


def agreement_section(points: Sequence[Point]) -> Markup:
    """Two tables of counts."""
    given = [point for point in points if point.paper is not None]
    labels = sorted({point.place.figure for point in given}, key=lambda label: (rank(label), label))
    series = in_order({point.place.series for point in given})
    note = element(
        "p",
        "A number agrees when ours, the mean over seeds, is within max(0.015, 2 standard deviations between seeds) "
        "of the paper's. Most |PD|s are small beside 0.015: that they agree says less than that performances do.",
        class_="note",
    )
    return section(
        "Agreement",
        note,
        _counts("figure", labels, given, lambda point: point.place.figure, title=lambda label: caption_of(label).title),
        _counts("series", series, given, lambda point: point.place.series, title=str),
        _counts(
            "quantity",
            ("performance", "abs_pd"),
            given,
            lambda point: point.place.y_name,
            title=lambda name: "|PD|" if name == "abs_pd" else "performance",
        ),
        id_="agreement",
    )


def agreeing(points: Sequence[Point]) -> tuple[int, int]:
    """How many agree, and how many were compared."""
    told = [point.agrees for point in points if point.agrees is not None]
    return sum(told), len(told)


def _counts(
    what: str,
    names: Sequence[str],
    points: Sequence[Point],
    name_of: Callable[[Point], str],
    *,
    title: Callable[[str], str],
) -> Markup:
    columns = ((what.capitalize(), ""), *_COUNTS)
    rows = [row(columns, _cells(title(name), [p for p in points if name_of(p) == name])) for name in names]
    rows.append(row(columns, _cells("all", points), class_="total"))
    return table(caption=f"Agreement by {what}", columns=columns, bodies=[body(rows)], id_=f"agreement-{what}")


def _cells(name: str, points: Sequence[Point]) -> tuple[str, ...]:
    agree, compared = agreeing(points)
    sizes = [abs(point.difference) for point in points if point.difference is not None]
    missing = sum(point.ours is None for point in points)
    counts = (f"{len(points):,}", f"{compared:,}", f"{agree:,}", share(agree, compared))
    return (name, *counts, number(median(sizes)) if sizes else "–", f"{missing:,}")


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


def summary_of(findings: Findings) -> str:
    """A paragraph made from the numbers alone."""
    in_paper = sum(point.paper is not None for point in findings.points)
    agree, compared = agreeing(findings.points)
    claims = counts_of(findings.claims)
    sentences = [
        f"The source of the paper gives {counted(in_paper, 'number')} in its figures. {compared:,} of them were "
        f"compared with ours, and {agree:,} ({share(agree, compared)}) agree: they lie within 0.015, or within "
        f"twice the standard deviation between seeds where that is more ({_by_quantity(findings)}).",
        f"{claims[0].upper()}{claims[1:]}.",
        f"Protocol “{findings.protocol}”, {_seeds(findings.seeds)}, {counted(findings.n_runs, 'run')} planned.",
    ]
    if findings.quick:
        n_short = sum(point.shortened is not None and point.ours is not None for point in findings.points)
        were, are = ("was", "is") if n_short == 1 else ("were", "are")
        sentences.append(
            f"This was a quick reproduction, with fewer values tried: {counted(n_short, 'number')} of ours {were} made "
            f"with fewer epochs or periods and {are} not compared; each says what was shortened."
            if n_short
            else "This was a quick reproduction: fewer values were tried, each at the settings of a full one."
        )
    else:
        sentences.append("The settings were those of a full reproduction.")
    if findings.n_missing:
        sentences.append(
            f"{counted(findings.n_missing, 'planned run')} {'is' if findings.n_missing == 1 else 'are'} not in the "
            f"store; what depends on them is marked “not run”."
        )
    return " ".join(sentences)


def in_short(findings: Findings) -> str:
    """The same in one line: numbers that agree (where the protocol lets them), and verdicts."""
    agree, compared = agreeing(findings.points)
    claims = counts_of(findings.claims)
    if findings.protocol != "paper" or not compared:
        return f"{claims[0].upper()}{claims[1:]}."
    numbers = f"Of {counted(compared, 'number')} compared with the paper's, {agree:,} ({share(agree, compared)}) agree"
    return f"{numbers}; {claims}."


def _by_quantity(findings: Findings) -> str:
    """The same for performance and for |PD|, which is small, so that agreeing within 0.015 says less."""
    parts = []
    for quantity, name in (("performance", "performance"), ("abs_pd", "|PD|")):
        agree, compared = agreeing([point for point in findings.points if point.place.y_name == quantity])
        parts.append(f"{name} {share(agree, compared)}")
    return ", ".join(parts)


def _seeds(seeds: tuple[int, ...]) -> str:
    if not seeds:
        return "no seeds"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
