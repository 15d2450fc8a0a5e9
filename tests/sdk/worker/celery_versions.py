"""The Celery releases the SDK works with, each with the kombu and billiard of its time, in folders beside .venv's own.

A folder is installed once and kept: `pip install --target`, under a lock, so that several test runs may want it. What
they need besides (click, dateutil, …) is the environment's own.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.processes import CHECKOUT

RELEASES = {
    "5.3": ("celery==5.3.0", "kombu==5.3.0", "billiard==4.1.0", "amqp==5.1.1", "vine==5.0.0"),
    "5.4": ("celery==5.4.0", "kombu==5.3.7", "billiard==4.2.0", "amqp==5.2.0", "vine==5.1.0"),
    "5.5": ("celery==5.5.3", "kombu==5.5.4", "billiard==4.2.1", "amqp==5.3.1", "vine==5.1.0"),
    "5.6": ("celery==5.6.3", "kombu==5.6.2", "billiard==4.2.4", "amqp==5.3.1", "vine==5.1.0"),
    "5.7": ("celery==5.7.0", "kombu==5.7.0", "billiard==4.3.2", "vine==5.1.0"),
}
FOLDER = (
    Path(sys.prefix) / "celery-releases"
    if sys.prefix != sys.base_prefix
    else CHECKOUT / ".venv" / "celery-releases"
)


def installed(release: str) -> Path:
    """Return what to put before everything else on PYTHONPATH."""
    packages = RELEASES[release]
    FOLDER.mkdir(parents=True, exist_ok=True)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    target = FOLDER / f"{release}-python{python}"
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = target / "installed.txt"
        if not stamp.exists() or stamp.read_text() != "\n".join(packages):
            shutil.rmtree(target, ignore_errors=True)
            _install(packages, target)
            stamp.write_text("\n".join(packages))
    return target


def _install(packages: tuple[str, ...], target: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), *packages],
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{packages} cannot be installed:\n{done.stdout}{done.stderr}"
