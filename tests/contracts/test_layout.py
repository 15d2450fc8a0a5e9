"""Keep the house in order: small folders, one name for one thing, no module without a subject."""

import ast
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.packages import PACKAGES
from tests.support.processes import CHECKOUT

GLOSSARY = CHECKOUT / "docs" / "reference" / "glossary.md"
MAX_NAMES = 21
MAX_MEDIAN = 8
# Names that Django, Celery and the import system give to files of every package.
GIVEN_BY_FRAMEWORKS = {"__init__", "__main__", "admin", "apps", "models", "urls", "errors"}
# Django looks commands up under this name, in a module of the command's.
GIVEN_CLASSES = {"Command", "Migration"}


def product_modules() -> Iterator[Path]:
    for package in PACKAGES:
        for file in (CHECKOUT / package).rglob("*.py"):
            if "migrations" not in file.parts and "commands" not in file.parts:
                yield file


def names_in(folder: Path) -> list[str]:
    ignored = ("__pycache__", "__init__", ".", "py.typed")
    return [path.name for path in folder.iterdir() if not path.name.startswith(ignored)]


def folders() -> list[Path]:
    return sorted({file.parent for file in product_modules()})


def subjects() -> set[str]:
    """Read the names that modules of several packages may have: the subjects and roles of the glossary."""
    listed = GLOSSARY.read_text().partition("## Subjects")[2].partition("\n## ")[0]
    return set(re.findall(r"`(\w+)`", listed))


def test_a_folder_shows_few_names() -> None:
    sizes = {str(folder.relative_to(CHECKOUT)): len(names_in(folder)) for folder in folders()}
    assert {folder: size for folder, size in sizes.items() if size > MAX_NAMES} == {}
    assert statistics.median(sizes.values()) <= MAX_MEDIAN


def test_no_two_classes_share_a_name() -> None:
    found = defaultdict(list)
    for file in product_modules():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name not in GIVEN_CLASSES:
                found[node.name].append(str(file.relative_to(CHECKOUT)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_modules_share_a_name_only_when_it_is_a_subject() -> None:
    found = defaultdict(list)
    for file in product_modules():
        found[file.stem].append(str(file.relative_to(CHECKOUT)))
    shared = {name: files for name, files in found.items() if len(files) > 1}
    allowed = GIVEN_BY_FRAMEWORKS | subjects()
    assert {name: files for name, files in shared.items() if name not in allowed} == {}


def test_no_module_is_called_for_having_no_subject() -> None:
    names = {"utils", "helpers", "common", "managers", "misc"}
    assert [file for file in product_modules() if file.stem in names] == []
