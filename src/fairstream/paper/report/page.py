"""The whole page: one file that needs nothing else, not even a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairstream.pages.document import Charts, whole_page
from fairstream.pages.format import anything, counted, plain, share
from fairstream.pages.markup import Markup, element
from fairstream.pages.series import Styles, legend, styles_of
from fairstream.pages.tables import body, row, section, table
from fairstream.pages.vega import own
from fairstream.paper.findings import Findings
from fairstream.paper.report.figures import Figure, Mark, Panel, described, figures_of, rows_of, spec_of
from fairstream.paper.report.summary import agreeing, agreement_section, counts_of, summary_of, verdict_section
from fairstream.paper.report.tables import choice_section, numbers_section, time_table
from fairstream.paper.report.wording import QUESTIONS, SHORT, TRADEOFFS, dataset_name

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
    return whole_page(
        _TITLE,
        header=_header(findings),
        contents=_PARTS,
        main=main,
        charts=charts,
        script=own("page.js", "fairstream.paper.report"),
    )


def _header(findings: Findings) -> Markup:
    return element(
        "header",
        element("h1", _TITLE),
        element("p", summary_of(findings), class_="summary"),
        id="summary",
    )


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


def figure_block(figure: Figure, charts: Charts) -> Markup:
    """The figure, with its charts added to `charts`."""
    styles = styles_of(figure.series)
    panels = [
        _panel(figure, panel, charts, styles, id_=f"{figure.anchor}-{position}")
        for position, panel in enumerate(figure.panels)
    ]
    caption = element(
        "figcaption",
        element("h3", figure.caption.title),
        element("p", figure.caption.reading, " ", _standing(figure), " ", _to_the_numbers(figure)),
    )
    return element(
        "figure",
        caption,
        legend(styles),
        element("div", *panels, class_="panels" if figure.has_paper else "panels alone"),
        id=figure.anchor,
    )


def _standing(figure: Figure) -> str:
    points = figure.points
    agree, compared = agreeing(points)
    missing = sum(point.ours is None for point in points)
    words = (
        f"{agree:,} of {counted(compared, 'number')} agree ({share(agree, compared)})."
        if figure.has_paper
        else "The source of the paper gives no numbers for this figure: ours alone."
    )
    return words + (f" {missing:,} of ours {'is' if missing == 1 else 'are'} not run." if missing else "")


def _to_the_numbers(figure: Figure) -> Markup:
    return element("a", "Its numbers", href="#numbers", data_figure=figure.caption.label)


def _panel(figure: Figure, panel: Panel, charts: Charts, styles: Styles, *, id_: str) -> Markup:
    has_any = panel.paper or panel.ours
    spec = charts.add(spec_of(panel, styles)) if has_any else None
    sides = [_side("Ours", panel, panel.ours, charts, spec, id_=f"{id_}-ours")]
    if figure.has_paper:
        sides.insert(0, _side("Paper", panel, panel.paper, charts, spec, id_=f"{id_}-paper"))
    return element("div", element("h4", panel.title), element("div", *sides, class_="pair"), class_="panel")


def _side(whose: str, panel: Panel, marks: Sequence[Mark], charts: Charts, spec: int | None, *, id_: str) -> Markup:
    name = element("p", whose, class_="whose")
    if not marks or spec is None:
        what = (
            "The source gives no numbers for this panel."
            if whose == "Paper"
            else "Not run: the store has no runs for this panel."
        )
        return element("div", name, element("p", what, class_="absent"), class_="side")
    charts.drawn[id_] = {"spec": spec, "rows": rows_of(marks)}
    chart = element("div", id=id_, class_="chart", role="img", aria_label=described(panel, marks, whose=whose))
    gaps = panel.n_missing if whose == "Ours" else 0
    return element("div", name, chart, element("p", f"{gaps} not run", class_="gap") if gaps else None, class_="side")


_GLOSSARY = (
    ("Task-R", "After a period, the model is tested on everything that remains: all later interactions."),
    ("Task-N", "After a period, the model is tested on the next period alone."),
    (
        "NDCG@20",
        "How near the top of a list of 20 the items are that the user went on to choose; 1 is best. Under the "
        "protocol “paper” it is taken over the best order of what was found, so that one hit at the first rank "
        "scores 1; under “strict” over the best possible list.",
    ),
    ("F1@20", "The harmonic mean of precision (hits among 20) and recall (hits among all that there were to find)."),
    (
        "PD, |PD|",
        "Performance disparity: the advantaged group's mean score less the disadvantaged group's. |PD| is its size.",
    ),
    (
        "λ, τ, μ",
        "The weight of FADE's fairness loss, the temperature of Differentiable Hit, how many negatives the loss has.",
    ),
    ("seed sd", "The standard deviation between runs that differ in nothing but the random seed."),
)


def recovery_section(recovery: Sequence[Mapping[str, Any]]) -> Markup:
    """How well a classifier that never saw the training recovers the group from the users' embeddings."""
    note = element(
        "p",
        "Adver tries to remove the group from what a model knows of a user. A fresh classifier is trained to find it "
        "there again: a balanced accuracy of 0.5 is guessing between two groups.",
        class_="note",
    )
    shown = _records(recovery, caption="Recovering the group", id_="recovery-table")
    return section("What Adver leaves of the group", note, shown, id_="recovery")


def about_section(findings: Findings) -> Markup:
    """Where everything comes from."""
    data = [{**about, "name": dataset_name(str(about.get("name", "")))} for about in findings.data]
    versions = [{"what": name, "version": version} for name, version in sorted(findings.versions.items())]
    notes = element("ul", *(element("li", note) for note in findings.notes)) if findings.notes else None
    return section(
        "Where this comes from",
        element("p", "To run it again:"),
        element("pre", element("code", findings.command), tabindex="0"),
        _records(data, caption="Data sets", id_="data-table"),
        _records(versions, caption="Versions", id_="version-table"),
        element("h3", "Notes") if notes else None,
        notes,
        id_="about",
    )


def glossary_section() -> Markup:
    """The few words that one must know."""
    entries = [part for word, meaning in _GLOSSARY for part in (element("dt", word), element("dd", meaning))]
    return section("Words", element("dl", *entries), id_="words")


def _records(records: Sequence[Mapping[str, Any]], *, caption: str, id_: str) -> Markup:
    """Open records as a table: one column for each key that any of them has."""
    if not records:
        return element("p", f"{caption}: none in the store.", class_="note")
    keys = list(dict.fromkeys(key for record in records for key in record))
    columns = [(key.replace("_", " ").removeprefix("n "), _kind(records, key)) for key in keys]
    rows = [row(columns, [_cell(key, record.get(key)) for key in keys]) for record in records]
    return table(caption=caption, columns=columns, bodies=[body(rows)], id_=id_)


def _cell(key: str, value: Any) -> Markup | str:
    if key == "sha256":
        return element("code", str(value), class_="fingerprint")
    if key == "weight" and isinstance(value, int | float):
        return plain(value)
    return dataset_name(str(value)) if key == "dataset" else anything(value)


def _kind(records: Sequence[Mapping[str, Any]], key: str) -> str:
    return "n" if all(isinstance(record.get(key), int | float) for record in records) else ""
