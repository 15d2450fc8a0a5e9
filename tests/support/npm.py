"""Programs from the npm registry that tests run; their lock file is beside the tests that do."""

import shutil
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
LISTED = CHECKOUT / "tests" / "system" / "clients" / "npm"
FOLDER = CHECKOUT / ".venv" / "npm"
LOCK = "package-lock.json"
# A copy of the lock file that is installed.
STAMP = FOLDER / "installed.json"


def install() -> str:
    """Install what the lock file lists, unless it is there; return why it is not."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is missing"
    if installed():
        return ""
    FOLDER.mkdir(exist_ok=True)
    for name in ("package.json", LOCK):
        shutil.copy(LISTED / name, FOLDER)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    answer = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    if answer.returncode != 0:
        return answer.stderr.strip()[-300:]
    shutil.copy(LISTED / LOCK, STAMP)
    return ""


def installed() -> bool:
    return STAMP.exists() and STAMP.read_bytes() == (LISTED / LOCK).read_bytes()
