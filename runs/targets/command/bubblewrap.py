"""Isolate commands of a worker that is not root: bubblewrap makes the namespaces in a user namespace.

The command stays the worker's user, whatever it calls itself: what the worker may read, it may read, if it sees it.
So it sees next to nothing: of the system /usr and the parts of /etc that everybody may read, the folders that the
settings name, and the interpreter that starts it. All of it is read-only; /tmp, /proc and /dev are its own.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from runs.targets.command import seccomp as call_filter

PROGRAM = "bwrap"
SYSTEM, CONFIGURATION = "/usr", "/etc"
# Links into /usr, or folders as /usr is one.
BESIDE_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
OWN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
LAUNCHER = "/run/launch.py"
NOBODY = "65534"
APART = (
    "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try --disable-userns"
    f" --uid {NOBODY} --gid {NOBODY} --cap-drop ALL --die-with-parent --as-pid-1"
).split()
# What switches user namespaces off, and what to do about it.
SWITCHES = {
    "/proc/sys/user/max_user_namespaces": ("0", "set user.max_user_namespaces above 0"),
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "set kernel.unprivileged_userns_clone to 1"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "give bwrap an AppArmor profile that allows userns",
    ),
}
INSTALL = "install bubblewrap 0.8 or newer"


def why_not() -> str:
    """Return what forbids bubblewrap before it is tried; empty if nothing does."""
    if shutil.which(PROGRAM) is None:
        return f"bubblewrap is not installed. Right would be: {INSTALL}"
    return call_filter.why_not()


def remedy_of(error: str) -> str:
    """Return what to do about an error that it printed."""
    if "unknown option" in error.casefold():
        return INSTALL
    if "find source path" in error:
        return "make that folder, or take it out of BEATKEEPER_COMMAND_FOLDERS"
    for switch, (off, remedy) in SWITCHES.items():
        if os.path.exists(switch) and Path(switch).read_text().strip() == off:
            return remedy
    return "allow it to make user namespaces and to mount a /proc, which most containers forbid"


def arguments(
    launcher: str, shown: Iterable[str], hidden: Iterable[str], tmp: int, network: bool
) -> list[str]:
    mounts = visible_mounts(shown)
    mounts |= {path: covered(path) for path in hidden_inside(hidden, mounts)}
    mounts |= {path: covered(path) for path in not_for_everybody(CONFIGURATION)}
    mounts |= {"/proc": ["--proc", "/proc"], "/dev": ["--dev", "/dev"]}
    size = ["--size", str(tmp)] if tmp else []
    mounts |= {folder: ["--perms", "1777", *size, "--tmpfs", folder] for folder in OWN_FOLDERS}
    mounts[LAUNCHER] = ["--ro-bind", launcher, LAUNCHER]
    words = [*APART, *([] if network else ["--unshare-net"])]
    # In this order a folder comes before what is in it.
    for path in sorted(mounts):
        words += mounts[path]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", OWN_FOLDERS[0]]


def visible_mounts(shown: Iterable[str]) -> dict[str, list[str]]:
    mounts = {}
    for path in BESIDE_SYSTEM:
        if os.path.islink(path):
            mounts[path] = ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            mounts[path] = read_only(path)
    for path in (SYSTEM, CONFIGURATION, *shown):
        mounts[path] = read_only(path)
    # A service may keep resolv.conf elsewhere, or there may be none.
    for path in (*interpreter(), os.path.realpath("/etc/resolv.conf")):
        if os.path.exists(path) and not is_inside(path, mounts):
            mounts[path] = read_only(path)
    return mounts


def read_only(path: str) -> list[str]:
    return ["--ro-bind", path, path]


def executable() -> str:
    """Return the base interpreter, not a virtual environment's: it finds its library by itself."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def interpreter() -> list[str]:
    """Return where the interpreter's files may be, not all below its prefix, which may be a home directory."""
    prefixes = {os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    return [executable(), *(os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64"))]


def is_inside(path: str, folders: Iterable[str]) -> bool:
    """Return whether the path lies inside a folder; the folder itself is not: hiding it would undo showing it."""
    return any(Path(folder) in Path(path).parents for folder in folders)


def hidden_inside(hidden: Iterable[str], mounts: Mapping[str, list[str]]) -> list[str]:
    """Return hidden folders that lie inside a shown one, by their paths in the sandbox.

    The project may lie in /usr, or the spool behind a named link that leads elsewhere than it did at the start.
    """
    # What is not there cannot be covered where nothing can be made.
    there = [folder for folder in hidden if os.path.isdir(folder)]
    real_paths = {path: os.path.realpath(path) for path, words in mounts.items() if words == read_only(path)}
    return [
        os.path.join(path, os.path.relpath(folder, real))
        for path, real in real_paths.items()
        for folder in there
        if is_inside(folder, [real])
    ]


def covered(path: str) -> list[str]:
    if os.path.isdir(path):
        return ["--perms", "0000", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
    # A device that cannot be opened there.
    return ["--ro-bind", "/dev/null", path]


def not_for_everybody(folder: str) -> list[str]:
    """Return what the worker's user or groups may read there and others may not, such as passwords."""
    found, folders = [], [folder]
    while folders:
        for entry in entries(folders.pop()):
            is_dir = entry.is_dir(follow_symlinks=False)
            # The same bits are those of all others in a file's mode.
            needed = os.X_OK if is_dir else os.R_OK
            if mode(entry) & needed:
                folders += [entry.path] if is_dir else []
            elif os.access(entry.path, needed):
                found.append(entry.path)
    return found


def mode(entry: os.DirEntry[str]) -> int:
    """Return the mode of a path; 0 if it is gone."""
    with suppress(FileNotFoundError):
        return entry.stat(follow_symlinks=False).st_mode
    return 0


def entries(folder: str) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as found:
        return [entry for entry in found if not entry.is_symlink()]
    return []
