"""Installing needs python3 and make, and what is installed is what was tested."""

import re
import subprocess

import pytest

from tests.support.packages import PACKAGES, PYPROJECT
from tests.support.processes import CHECKOUT

LOCKS = ("requirements.lock", "requirements-dev.lock")


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_host_so_that_any_mirror_will_do(name: str) -> None:
    assert "://" not in (CHECKOUT / name).read_text()


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_is_pinned_by_hash(name: str) -> None:
    entries = re.split(r"\n(?=\S)", (CHECKOUT / name).read_text().strip())
    assert len(entries) > 40
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []


def test_both_locks_agree() -> None:
    pins = [set(re.findall(r"^\S+==\S+", (CHECKOUT / name).read_text(), re.MULTILINE)) for name in LOCKS]
    assert pins[0] < pins[1]


def test_each_list_of_our_packages_has_all_of_them() -> None:
    linted = PYPROJECT["tool"]["importlinter"]["contracts"]
    [apart] = [one for one in linted if one["name"] == "Apps know of the project only the SDK"]
    image, sent = (CHECKOUT / "Dockerfile").read_text(), (CHECKOUT / ".dockerignore").read_text()
    present = {
        "mypy": PYPROJECT["tool"]["mypy"]["packages"],
        "the contract of import-linter": [*apart["source_modules"], "scheduler_project"],
        "COPY of the Dockerfile": re.findall(r"^COPY (\w+) \1$", image, re.MULTILINE),
        "compileall of the Dockerfile": image.partition("compileall -q ")[2].partition("\n")[0].split(),
        ".dockerignore": re.findall(r"^!(\w+)$", sent, re.MULTILINE),
    }
    assert {name: missing for name, found in present.items() if (missing := set(PACKAGES) - set(found))} == {}


def test_make_alone_lists_what_there_is() -> None:
    answer = subprocess.run(["make"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for target in ("up", "down", "test", "unit", "lint", "bench", "chaos", "help"):
        assert re.search(rf"^  make {target}\s+\w", answer.stdout, re.MULTILINE), target
