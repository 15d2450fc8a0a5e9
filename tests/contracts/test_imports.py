"""Imports go one way: scheduler_project -> runs -> jobs -> auditlog; the SDK imports none of them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = {
    "auditlog": ("jobs", "runs", "scheduler_project"),
    "jobs": ("runs",),
    "scheduler_project/sdk": ("jobs", "runs", "auditlog", "django", "rest_framework", "scheduler_project"),
}


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_go_one_way(folder: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in (ROOT / folder).rglob("*.py")
        for name in imports(file)
        if name.split(".")[0] in FORBIDDEN[folder]
    ]
    assert not wrong


@pytest.mark.parametrize("folder", ["jobs", "runs"])
def test_apps_know_of_the_project_only_what_the_sdk_gives(folder: str) -> None:
    """But for the commands of runs: they are thin entry points to what the project does as a whole."""
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in (ROOT / folder).rglob("*.py")
        if file.parent != ROOT / "runs/management/commands"
        for name in imports(file)
        if name.split(".")[0] == "scheduler_project" and name.split(".")[1:2] != ["sdk"]
    ]
    assert not wrong


def test_no_module_is_called_for_having_no_subject() -> None:
    names = {"utils.py", "helpers.py", "common.py", "managers.py", "misc.py"}
    found = [
        f for app in ("auditlog", "jobs", "runs", "scheduler_project") for f in (ROOT / app).rglob("*.py")
    ]
    assert not [file for file in found if file.name in names]
