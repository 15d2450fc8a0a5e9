"""The map in a package's docstring names each of its files, and none that is not there."""

import ast
import re

import pytest

from tests.processes import CHECKOUT

OF_DJANGO = {"admin", "apps", "management", "migrations", "models", "static", "templates"}
# "The files of the admin", by their names.
OF_THE_ADMIN = ("_admin", "_form", "_dialog", "_dialogs", "_desk")


def files_of(package: str) -> set[str]:
    found = {path for path in (CHECKOUT / package).iterdir() if not path.name.startswith("__")}
    names = {path.stem for path in found if path.suffix in (".py", ".sql") or path.is_dir()}
    return {name for name in names - OF_DJANGO if package.endswith("sdk") or not name.endswith(OF_THE_ADMIN)}


@pytest.mark.parametrize("package", ["jobs", "runs", "scheduler_project/sdk"])
def test_each_file_is_on_the_map(package: str) -> None:
    said = ast.get_docstring(ast.parse((CHECKOUT / package / "__init__.py").read_text())) or ""
    assert files_of(package) - set(re.findall(r"\w+", said)) == set()
    named = {
        name for name in re.findall(r"\w+_\w+", said) if not name.startswith(("_", "run_now", "scheduler_"))
    }
    assert named - files_of(package) == set()
