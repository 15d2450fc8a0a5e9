"""The Pythons of this machine, and Celery for each, installed once beside those of celery_versions."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from tests.sdk.worker.celery_versions import FOLDER

CELERY = "celery==5.7.0"


def found(version: str) -> Path | None:
    """One that says it is this version: a shim of pyenv may stand for nothing."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [
        *([Path(on_path)] if on_path else []),
        *sorted(of_pyenv.glob(f"{version}.*/bin/python{version}")),
    ]
    return next((python for python in candidates if _says(python, version)), None)


def _says(python: Path, version: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    process = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    return process.stdout.strip() == version


def with_celery(python: Path, version: str) -> Path:
    """Return the folder for its PYTHONPATH."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    target = FOLDER / f"whole-python{version}"
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = target / "installed.txt"
        if not stamp.exists() or stamp.read_text() != CELERY:
            shutil.rmtree(target, ignore_errors=True)
            _install(python, target)
            stamp.write_text(CELERY)
    return target


def _install(python: Path, target: Path) -> None:
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--target", str(target), CELERY],
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{CELERY} cannot be installed for {python}:\n{done.stdout}{done.stderr}"
