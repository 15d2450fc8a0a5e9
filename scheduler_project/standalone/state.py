"""Prepare the folder in which `make up` keeps its database, secrets and logs."""

import fcntl
import hashlib
import json
import os
import pwd
import secrets
import subprocess
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from scheduler_project.sdk.shared.folder import write_privately

SYSTEM_FOLDER = Path("/var/lib/beatkeeper")
SETTINGS = "settings.json"
# Settings whose names do not begin with BEATKEEPER_, and which `make up` leaves as they are.
SETTINGS_OF_OTHERS = ("CELERY_BROKER_URL", "SENTRY_DSN")
# A user to run programs as; PostgreSQL refuses to run as root.
Account = pwd.struct_passwd


class CannotStart(Exception):
    """Starting is impossible, for a reason that the user can remove."""


class AlreadyRunning(CannotStart):
    """Another process holds the lock file."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(f"{path.parent} is in use by another copy (process {pid or 'unknown'})")
        self.pid = pid


def can_enter(account: Account, folder: Path) -> bool:
    """Try to enter a folder: permissions, access lists and mounts all count."""
    probe = ["/bin/sh", "-c", 'cd "$0"', str(folder)]
    answer = subprocess.run(probe, capture_output=True, cwd="/", **as_account(account))
    return answer.returncode == 0


def as_account(account: Account | None) -> dict[str, Any]:
    """Return the arguments of subprocess that change the user."""
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}


def unprivileged_account() -> Account | None:
    """Return the account that runs PostgreSQL; None unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise CannotStart(
        "PostgreSQL refuses to run as root and this machine has neither the user postgres nor nobody: "
        "start as another user, or set DATABASE_URL"
    )


def choose(checkout: Path, wanted: str, account: Account | None) -> Path:
    """Choose the wanted folder, else var/ in the checkout, else (root in a closed home) one of the system's.

    No permission of an existing folder is changed to make one of them fit.
    """
    if wanted:
        folder = Path(wanted).expanduser().absolute()
        if account and not _prepare(folder, account):
            who = f"the user {account.pw_name}, who runs PostgreSQL there"
            raise CannotStart(f"{folder} cannot be entered by {who}")
    else:
        folder, of_system = default_folders(checkout)
        if account and not _prepare(folder, account):
            folder = of_system
    _prepare(folder, account)
    return folder


def default_folders(checkout: Path) -> tuple[Path, Path]:
    digest = hashlib.sha256(bytes(checkout)).hexdigest()[:8]
    return checkout / "var", SYSTEM_FOLDER / f"{checkout.name}-{digest}"


def _prepare(folder: Path, account: Account | None) -> bool:
    """Make sure that we can write there; return whether the account can enter it."""
    try:
        make_folder(folder, 0o755 if account else 0o700)
        probe = folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CannotStart(
            f"cannot write to {folder} ({error.strerror}): "
            "name another folder with --state-dir or BEATKEEPER_STATE_DIR"
        ) from None
    return account is None or can_enter(account, folder)


def make_folder(folder: Path, mode: int) -> None:
    """Create a folder and the missing ones above it; existing ones keep their permissions."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(mode)


class LockFile:
    """A lock of one living process. The system releases it however that process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> None:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except PermissionError:
            raise CannotStart(
                f"{self.path} belongs to another user: "
                "start as that user, or name another folder with --state-dir"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            text = self.path.read_text().strip()
            raise AlreadyRunning(self.path, int(text) if text.isdigit() else None) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock and keep the file: removing it would let two processes lock two files of one name."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def holder(self) -> int | None:
        """Return the process that holds the lock."""
        try:
            with LockFile(self.path):
                return None
        except AlreadyRunning as running:
            return running.pid
        except FileNotFoundError:
            return None


def secret_key(folder: Path) -> str:
    """Return the secret key, created once: sessions and signatures survive a restart."""
    return _kept(folder / "secret_key", lambda: secrets.token_urlsafe(48))


def encryption_keys(folder: Path) -> str:
    """Return the encryption keys; one is created.

    Operators write further keys before it, separated by commas. Without this file, no secret of the database beside it
    can be decrypted.
    """
    return _kept(folder / "encryption_keys", lambda: b64encode(secrets.token_bytes(32), b"-_").decode())


def keep_settings(folder: Path, started_with: Mapping[str, str] | None) -> None:
    """Keep what the processes are started with, and what else of our settings is set; None: keep nothing."""
    if started_with is None:
        (folder / SETTINGS).unlink(missing_ok=True)
        return
    ours = {name: value for name, value in os.environ.items() if name.startswith("BEATKEEPER_")}
    others = {name: os.environ[name] for name in SETTINGS_OF_OTHERS if name in os.environ}
    write_privately(folder / SETTINGS, json.dumps({**ours, **others, **started_with}, indent=2))


def kept_settings(checkout: Path) -> dict[str, str]:
    """Return what `make up` of this checkout has kept; nothing if it was not started, or on another database."""
    wanted = os.environ.get("BEATKEEPER_STATE_DIR", "")
    folders = [Path(wanted).expanduser().absolute()] if wanted else default_folders(checkout)
    for folder in folders:
        with suppress(FileNotFoundError, NotADirectoryError):
            found: dict[str, str] = json.loads((folder / SETTINGS).read_text())
            return found
    return {}


def _kept(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        write_privately(path, make())
    return path.read_text().strip()
