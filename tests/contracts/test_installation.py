"""Installing needs python3 and make, and what is installed is what was tested."""

import re
import subprocess

import pytest

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


def test_make_alone_lists_what_there_is() -> None:
    answer = subprocess.run(["make"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for target in ("up", "down", "test", "unit", "lint", "bench", "chaos", "help"):
        assert re.search(rf"^  make {target}\s+\w", answer.stdout, re.MULTILINE), target
