"""Execute the steps of the tutorial as they stand in the document."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import CHECKOUT, Processes
from tests.support.waiting import wait_until
from tests.system.standalone.test_standalone import LAST_LINE, NOTHING_SET, make_open_folder

TUTORIAL = CHECKOUT / "docs" / "tutorials" / "first-job.md"
STEP = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
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


def test_the_tutorial_ends_with_the_log_of_a_run_on_the_screen(checkout: Path, processes: Processes) -> None:
    start, *steps = STEP.findall(TUTORIAL.read_text())
    assert start == "make up | tee up.txt\n" and len(steps) == 6
    env = {**NOTHING_SET, "PORT": str(free_port()), "BEATKEEPER_STATE_DIR": str(checkout / "state")}
    processes.start("bash", "-c", start, env=env, name="up", cwd=checkout)
    up = checkout / "up.txt"
    wait_until(lambda: up.exists() and LAST_LINE in up.read_text(), 120, "the last line of `make up`")
    try:
        done = subprocess.run(
            ["bash", "-euc", "\n".join(steps)],
            cwd=checkout,
            env={name: value for name, value in os.environ.items() if name != "http_proxy"},
            capture_output=True,
            text=True,
            timeout=90,
        )
    finally:
        subprocess.run(["make", "down"], cwd=checkout, env={**os.environ, **_set(env)}, check=True)
    assert done.returncode == 0, done.stderr
    assert "Hello from Beatkeeper" in done.stdout
    assert '"schedule.cron"' in done.stdout


def _set(env: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in env.items() if value is not None}
