"""The first paragraph: what was compared, and what came of it."""

from __future__ import annotations

from fairstream.pages.format import counted, share
from fairstream.paper.findings import Findings
from fairstream.paper.report.agreement import agreeing
from fairstream.paper.report.verdicts import counts_of


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
        sentences.append(
            "This was a quick reproduction, made to see that everything works: its numbers are not to be compared."
        )
    else:
        sentences.append("The settings were those of a full reproduction.")
    if findings.n_missing:
        sentences.append(
            f"{counted(findings.n_missing, 'planned run')} {'is' if findings.n_missing == 1 else 'are'} not in the "
            f"store; what depends on them is marked “not run”."
        )
    return " ".join(sentences)


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
