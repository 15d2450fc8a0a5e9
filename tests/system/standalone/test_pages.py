"""Follow the documentation as a newcomer does: the tutorial starts the product, then every page with a curl."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import Reader, blocks, has_curl, steps
from tests.support.ports import answers, free_port
from tests.support.processes import CHECKOUT, Processes
from tests.support.waiting import wait_until
from tests.system.standalone.test_standalone import LAST_LINE, NOTHING_SET, make_open_folder, manage

DOCS = CHECKOUT / "docs"
TUTORIAL = DOCS / "tutorials" / "first-job.md"
CALLBACK = DOCS / "how-to" / "api" / "callback.md"
PAGES = [page for page in [CHECKOUT / "README.md", *sorted(DOCS.rglob("*.md"))] if has_curl(page)]


@pytest.fixture(scope="module")
def checkout() -> Iterator[Path]:
    """Copy what git tracks: the tutorial writes into the folder that it is followed in."""
    folder = make_open_folder()
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, folder / name)
    (folder / ".venv").symlink_to(CHECKOUT / ".venv")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def up(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Take the first step of the tutorial, and return what it prints."""
    start = steps(TUTORIAL)[0].commands.text
    assert start == "make up | tee up.txt\n"
    state, processes = checkout / "state", Processes(tmp_path_factory.mktemp("up"))
    env = {**NOTHING_SET, "PORT": str(free_port()), "BEATKEEPER_STATE_DIR": str(state)}
    started = processes.start("bash", "-c", start, env=env, name="up", cwd=checkout)
    try:
        yield started.wait_for_output(LAST_LINE, 120)
    finally:
        manage(state, "standalone", "--stop")
        processes.stop_all()


def printed(up: str, word: str) -> str:
    found = re.search(rf"^{word}: (.+)$", up, re.MULTILINE)
    assert found, f"no line begins with {word}: in\n{up}"
    return found[1]


@pytest.fixture(scope="module")
def variables(up: str) -> dict[str, str]:
    """Set what the pages use: where the API is, and a key."""
    return {"API": printed(up, "api"), "KEY": printed(up, "key")}


@pytest.fixture
def receiver(checkout: Path, up: str, tmp_path: Path, processes: Processes) -> str:
    """Start the server of the page on callbacks, and allow calls to it as an operator would."""
    (source,) = [block.text for block in blocks(CALLBACK) if block.language == "python"]
    (tmp_path / "receiver.py").write_text(source)
    port = free_port()
    processes.start(sys.executable, "receiver.py", str(port), cwd=tmp_path)
    wait_until(lambda: answers(port), what="the receiver")
    change = f"Tenant.objects.filter(slug='demo').update(allowed_hosts=['127.0.0.1:{port}'])"
    manage(checkout / "state", "shell", "-c", f"from jobs.models import Tenant; {change}")
    return f"http://127.0.0.1:{port}"


def test_the_tutorial_ends_with_the_log_of_a_run_on_the_screen(checkout: Path, up: str) -> None:
    _, *others = steps(TUTORIAL)
    assert up and others
    Reader(checkout).follow(others)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in (TUTORIAL, CALLBACK)],
    ids=lambda page: str(page.relative_to(CHECKOUT)),
)
def test_the_requests_of_a_page_are_answered_as_it_shows(
    page: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    Reader(tmp_path, **variables).follow(steps(page))


def test_a_target_reports_later_as_its_page_shows(
    variables: dict[str, str], receiver: str, tmp_path: Path
) -> None:
    Reader(tmp_path, **variables, RECEIVER=receiver).follow(steps(CALLBACK))
