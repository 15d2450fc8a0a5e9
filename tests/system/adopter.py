"""A code base that installs the wheel, as a team would: tests/sample_codebase in a virtual environment of its own."""

import subprocess
from pathlib import Path

from tests.processes import CHECKOUT

SAMPLE = CHECKOUT / "tests" / "sample_codebase"


def run_to_end(command: list[str], cwd: Path = CHECKOUT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout
