"""Keep the documentation readable and whole: short lines, links that lead somewhere, every page listed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.packages import PACKAGES
from tests.support.pages import CURL, EXECUTED, blocks, steps
from tests.support.processes import CHECKOUT

MAX_LINE = 100
# Of code and tables.
MAX_UNWRAPPED = 120
PAGES = sorted([*(CHECKOUT / "docs").rglob("*.md"), *CHECKOUT.glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
API_PAGES = [page for page in PAGES if page.parent.name == "api"]
UNWRAPPED = re.compile(r" *\||.*://")
# Paths of the checkout that prose and code name in backticks or plain words.
NAMED_PAGE = re.compile(r"docs/[\w/-]+\.md")


def prose(page: Path) -> str:
    """Leave out code blocks, where brackets mean something else."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Name the headings as GitHub does."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-")
        for heading in headings
    }


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            yield target
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_no_line_is_too_long(page: Path) -> None:
    wrapped = [line for line in prose(page).splitlines() if not UNWRAPPED.match(line)]
    assert [line for line in wrapped if len(line) > MAX_LINE] == []
    assert [line for line in page.read_text().splitlines() if len(line) > MAX_UNWRAPPED] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_curl_stands_where_it_is_executed(page: Path) -> None:
    """`tests/system/standalone/test_pages.py` executes the blocks of that language."""
    elsewhere = [block for block in blocks(page) if CURL.search(block.text) and block.language != EXECUTED]
    assert list(map(str, elsewhere)) == []


@pytest.mark.parametrize("page", API_PAGES, ids=lambda page: page.name)
def test_a_page_of_the_api_has_requests_and_shows_the_answer_to_each(page: Path) -> None:
    """And says where address and key come from."""
    found = steps(page)
    assert any(CURL.search(step.commands.text) for step in found)
    assert [str(step.commands) for step in found if step.answer is None] == []
    assert page.name == "requests.md" or "(requests.md)" in page.read_text()


def test_the_index_leads_to_every_page() -> None:
    indexes = [CHECKOUT / "docs" / "index.md", CHECKOUT / "docs" / "decisions" / "index.md"]
    linked = {
        (index.parent / target.partition("#")[0]).resolve()
        for index in indexes
        for target in LINK.findall(index.read_text())
    }
    assert {page for page in PAGES if page.is_relative_to(CHECKOUT / "docs")} - linked - {indexes[0]} == set()


def test_pages_that_code_names_exist() -> None:
    """Look into error texts, help and comments, which name pages by their path."""
    files = [file for folder in (*PACKAGES, "tests") for file in (CHECKOUT / folder).rglob("*.py")]
    files += [CHECKOUT / name for name in ("Makefile", ".env.example", "docker-compose.yml", "Dockerfile")]
    named = {(page, file) for file in files for page in NAMED_PAGE.findall(file.read_text())}
    assert {(page, str(file)) for page, file in named if not (CHECKOUT / page).exists()} == set()
