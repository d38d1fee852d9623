"""The page of one model."""

from __future__ import annotations

from urllib.parse import quote

from fairstream.pages.markup import element
from fairstream.service.dashboard import model_parts as parts
from fairstream.service.dashboard.one_model import ModelStory
from fairstream.service.dashboard.parts import document, state_mark
from fairstream.service.dashboard.target import model_target
from fairstream.service.dashboard.words import model_link

_PARTS = (
    ("/", "Overview"),
    ("#decision", "Decision"),
    ("#target", "Accepted gap"),
    ("#evaluation", "Evaluation"),
    ("#lineage", "Lineage"),
    ("#data", "Data"),
    ("#configuration", "Configuration"),
    ("#commands", "Commands"),
    ("#record", "Record"),
)


def model_page(story: ModelStory) -> str:
    """The whole page as text."""
    address = f"/models/{quote(story.model.id, safe='')}"
    downloads = [
        element("span", element("a", f"Audit report ({kind})", href=f"{address}/audit.{suffix}", download=True))
        for kind, suffix in (("HTML", "html"), ("JSON", "json"))
    ]
    badge = (
        element("b", "in service", class_="badge")
        if story.model.in_service
        else state_mark(story.model.state, by_hand=story.model.is_by_hand)
    )
    header = (
        element("p", element("a", "fairstream", href="/"), class_="brand"),
        element("h1", "Model ", element("code", story.model.id)),
        element("p", badge, class_="state"),
        element("p", parts.what_it_is(story), class_="summary"),
        element("p", *downloads, class_="pages"),
    )
    main = (
        parts.decision_section(story),
        model_target(story.model),
        parts.evaluation_section(story),
        parts.lineage_section(story, model_link),
        parts.data_section(story),
        parts.configuration_section(story),
        parts.command_section(story),
        parts.record_section(story),
    )
    contents = [part for part in _PARTS if part[0] != "#target" or main[1] is not None]
    return document(f"Model {story.model.id} · fairstream", header=header, main=main, contents=contents)
