"""The documentation: every public name is in the reference, and every link to a file leads to one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fairstream

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    if not {"_build", "generated"}.intersection(page.parts)
]


def test_every_public_name_is_in_the_reference_once() -> None:
    reference = (ROOT / "docs" / "reference" / "api.md").read_text()
    blocks = re.findall(r"currentmodule:: fairstream\n(.*?)```", reference, flags=re.DOTALL)
    names = [name for block in blocks for name in re.findall(r"^   (\w+)$", block, flags=re.MULTILINE)]
    assert sorted(names) == sorted(set(fairstream.__all__) - {"__version__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    is_made = re.compile(r"\b(_build|generated)/")  # there only once the site was built
    assert not [target for target in targets if is_made.search(target) or not (page.parent / target).exists()]
