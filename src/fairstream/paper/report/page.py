"""The whole page: one file that needs nothing else, not even a network."""

from __future__ import annotations

from collections.abc import Sequence

from fairstream.pages.markup import Markup, element, joined, script_data
from fairstream.pages.series import CONFIG
from fairstream.pages.tables import section
from fairstream.pages.vega import own, vega
from fairstream.paper.findings import Findings
from fairstream.paper.report.about import about_section, glossary_section, recovery_section
from fairstream.paper.report.agreement import agreement_section
from fairstream.paper.report.captions import QUESTIONS, SHORT, TRADEOFFS
from fairstream.paper.report.choices import choice_section
from fairstream.paper.report.figures import Figure, figures_of
from fairstream.paper.report.numbers import numbers_section
from fairstream.paper.report.panels import Charts, figure_block
from fairstream.paper.report.summary import summary_of
from fairstream.paper.report.times import time_table
from fairstream.paper.report.verdicts import counts_of, verdict_section

_TITLE = "User-side fairness in dynamic recommender systems: the paper's results and ours"
_PARTS = (
    ("summary", "Summary"),
    ("verdicts", "Verdicts"),
    *((question, f"{question} · {about}") for question, about in SHORT.items()),
    ("agreement", "Agreement"),
    ("numbers", "All numbers"),
    ("choices", "The choice of λ and γ"),
    ("recovery", "What Adver leaves"),
    ("about", "Where this comes from"),
    ("words", "Words"),
)


def page_of(findings: Findings) -> str:
    """The page as text. The same findings give the same page, byte for byte."""
    figures, charts = figures_of(findings.points), Charts()
    questions = [_question(question, findings, figures, charts) for question in QUESTIONS]
    other = [figure_block(figure, charts) for figure in figures if not figure.caption.question]
    main = element(
        "main",
        verdict_section(findings.claims),
        *questions,
        section("Other figures", *other, id_="other") if other else None,
        agreement_section(findings.points),
        numbers_section(findings.points),
        choice_section(findings.choices),
        recovery_section(findings.recovery),
        about_section(findings),
        glossary_section(),
        id="main",
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", _TITLE),
        element("style", Markup(own("page.css"))),
    )
    skip = element("a", "Skip to the content", href="#main", class_="skip")
    body = element("body", skip, _header(findings), _contents(), main, _scripts(charts))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _header(findings: Findings) -> Markup:
    return element(
        "header",
        element("h1", _TITLE),
        element("p", summary_of(findings), class_="summary"),
        id="summary",
    )


def _contents() -> Markup:
    links = [element("li", element("a", title, href=f"#{id_}")) for id_, title in _PARTS]
    return element("nav", element("ol", *links), aria_label="Contents")


def _question(question: str, findings: Findings, figures: Sequence[Figure], charts: Charts) -> Markup:
    claims = counts_of([claim for claim in findings.claims if claim.question == question])
    mine = [figure for figure in figures if figure.caption.question == question]
    to_verdicts = element("a", "Verdicts", href=f"#verdicts-{question}")
    return section(
        f"{question} · {QUESTIONS[question]}",
        element("p", to_verdicts, f": {claims}.", class_="note"),
        _elsewhere(figures) if question in ("RQ2", "RQ3") else None,
        *(figure_block(figure, charts) for figure in mine),
        time_table(findings.seconds) if question == "RQ4" else None,
        element("p", "No points of this question's figures are in the store.", class_="note")
        if not mine and question not in ("RQ3", "RQ4")
        else None,
        id_=question,
    )


def _elsewhere(figures: Sequence[Figure]) -> Markup:
    """RQ1, RQ2 and RQ3 look at the same trade-offs, which are drawn once."""
    links: list[str] = []
    for figure in figures:
        if figure.caption.label in TRADEOFFS:
            links += [" and " if links else "", element("a", figure.caption.title, href=f"#{figure.anchor}")]
    if not links:
        return element("p", "No trade-offs between performance and disparity are in the store.", class_="note")
    return element("p", "See also under RQ1: ", *links, ".", class_="note")


def _scripts(charts: Charts) -> Markup:
    data = script_data({"config": CONFIG, "specs": charts.specs, "drawn": charts.drawn})
    return joined(
        element("script", data, id="charts", type="application/json"),
        element("script", Markup(vega())),
        element("script", Markup(own("charts.js") + own("page.js", "fairstream.paper.report"))),
    )
