"""What pages and code say of each other is there: links, headings, files, pages that docstrings name, public names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tokenriver.golf
import tokenriver.llmc
import tokenriver.torch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [p for part in ("src", "examples", "benchmarks") for p in sorted((ROOT / part).rglob("*.py"))]


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("https://")]
    dead = []
    for link in links:
        path, _, part = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (part and part not in map(anchor, headings(there))):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(
        r"`((?:[\w-]+/)*[\w-]+\.py)`|\b((?:tests|benchmarks|examples)/[\w/-]+\.py)", page.read_text("utf-8")
    )
    names = {one or other for one, other in named}
    everything = [p.relative_to(ROOT).as_posix() for p in [*SOURCES, *(ROOT / "tests").rglob("*.py")]]
    assert [name for name in sorted(names) if not any(f"/{path}".endswith(f"/{name}") for path in everything)] == []


def test_every_page_and_heading_that_the_code_names_is_there() -> None:
    wrong = []
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        for name, heading in re.findall(r'\b([\w/-]+\.md)\b(?:, "([^"]+)")?', text):
            page = next((p for p in (ROOT / name, ROOT / "docs" / name) if p.exists()), None)
            if page is None or (heading and heading not in headings(page)):
                wrong.append(f"{source.name}: {name}, {heading}")
    assert wrong == []


def test_every_public_name_stands_in_a_page() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    modules = (tokenriver, tokenriver.torch, tokenriver.llmc, tokenriver.golf)
    assert [n for m in modules for n in m.__all__ if not re.search(rf"\b{n}\b", pages)] == []
