"""Processes as the kernel knows them. Pids are reused; a pid with its start time names one process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Collection

STOPPED_STATES = ("T", "t")
DEAD_STATES = ("Z", "X", "x")
PR_SET_PDEATHSIG = 1

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Loaded here and not after a fork, where another thread may hold the loader's lock.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def boottime() -> float:
    """Return seconds that also pass while the machine sleeps: a lease goes on running in the database meanwhile."""
    return time.clock_gettime(_CLOCK)


def status(pid: int) -> tuple[str, int] | None:
    """Return state letter and start time in ticks, or None if there is no such process."""
    fields = _stat(pid)
    return (fields[0].decode(), int(fields[19])) if fields else None


def _stat(pid: int) -> list[bytes]:
    """Read the kernel's line about a process from its state letter on; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            line = stat.read()
    except (FileNotFoundError, ProcessLookupError):
        # Any other error, such as too many open files, says nothing about the process: it may well live.
        return []
    # The command name stands in parentheses and may itself hold spaces and parentheses.
    return line[line.rindex(b")") + 2 :].split()


def started(pid: int) -> int:
    found = status(pid)
    return found[1] if found else 0


def identity(pid: int) -> tuple[int, int]:
    """Return the pid with its start time."""
    return pid, started(pid)


def alive(pid: int, start: int) -> bool:
    found = status(pid)
    return found is not None and found[1] == start and found[0] not in DEAD_STATES


def stopped(pid: int) -> bool:
    found = status(pid)
    return found is not None and found[0] in STOPPED_STATES


def send_signal(pid: int, start: int, number: signal.Signals) -> bool:
    """Signal exactly this process; return False if it is gone."""
    if pid <= 1:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            handle = os.pidfd_open(pid)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            # On a kernel without such handles the process may be replaced between the check and the signal.
            if not alive(pid, start):
                return False
            os.kill(pid, number)
            return True
        try:
            # Checked after the handle is open, which names one process for good. The other way round the process could
            # end in between, and the handle would name the next one with its number.
            if not alive(pid, start):
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        finally:
            os.close(handle)
    return False


def signal_group(group: int, leader_start: int, number: signal.Signals) -> bool:
    """Signal a process group, unless its number has another leader by now."""
    if group <= 1:
        return False
    # The number is free for others only when the last member is gone, so a foreign leader means that all are.
    leader = status(group)
    if leader is not None and leader[1] != leader_start:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def kill_tree(pid: int, start: int, spared: Collection[int] = ()) -> bool:
    """Kill a process with all it started, but not the `spared` ones and what those started.

    Returns False if it is gone: then what it started has no parent any more to be found by.
    """
    # Stopped before its children are looked for, or it could start another one unseen, which would go on beside the
    # next attempt.
    if not send_signal(pid, start, signal.SIGSTOP):
        return False
    kill_descendants(pid, spared)
    return send_signal(pid, start, signal.SIGKILL)


def kill_descendants(pid: int, spared: Collection[int] = ()) -> None:
    stopped_ones: set[tuple[int, int]] = set()
    # Until a look finds none that is new: those that were not stopped yet could start others.
    while found := descendants(pid, spared) - stopped_ones:
        for child in found:
            send_signal(*child, signal.SIGSTOP)
        stopped_ones |= found
    for child in stopped_ones:
        send_signal(*child, signal.SIGKILL)


def descendants(pid: int, spared: Collection[int] = ()) -> set[tuple[int, int]]:
    """Return (pid, start time) of the processes that this one started, and of those that they started."""
    of_parents = _by_parents(spared)
    found: set[tuple[int, int]] = set()
    waiting = [pid]
    while waiting:
        mine = of_parents.get(waiting.pop(), [])
        found.update(mine)
        waiting.extend(child for child, _ in mine)
    return found


def children(pid: int) -> set[tuple[int, int]]:
    """Return (pid, start time) of the processes that this one started itself."""
    return set(_by_parents().get(pid, []))


def _by_parents(spared: Collection[int] = ()) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) not in spared:
            fields = _stat(int(name))
            if fields and fields[0].decode() not in DEAD_STATES:
                found.setdefault(int(fields[1]), []).append((int(name), int(fields[19])))
    return found


def die_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends (Linux only).

    Call it in the child, with the parent's pid if it is known.
    """
    if _LIBC is None:
        return
    _LIBC.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    # The parent may have died between the fork and this call: then no signal comes any more.
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
