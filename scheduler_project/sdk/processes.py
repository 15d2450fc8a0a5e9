"""What the kernel says about processes. Pids are reused; a pid with its start time names one process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Collection

STOPPED_STATES = ("T", "t")
DEAD_STATES = ("Z", "X", "x")
PR_SET_PDEATHSIG = 1

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds that also pass while the machine sleeps: a lease goes on running in the database meanwhile."""
    return time.clock_gettime(_CLOCK)


def status(pid: int) -> tuple[str, int] | None:
    """State letter and start time in ticks, or None: there is no such process."""
    fields = _stat(pid)
    return (fields[0].decode(), int(fields[19])) if fields else None


def _stat(pid: int) -> list[bytes]:
    """The kernel's line about a process from its state letter on; empty: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            line = stat.read()
    except (FileNotFoundError, ProcessLookupError):
        # What else goes wrong, such as too many open files, says nothing of it: it may well live.
        return []
    # The command name stands in parentheses and may itself hold spaces and parentheses.
    return line[line.rindex(b")") + 2 :].split()


def started(pid: int) -> int:
    found = status(pid)
    return found[1] if found else 0


def alive(pid: int, start: int) -> bool:
    found = status(pid)
    return found is not None and found[1] == start and found[0] not in DEAD_STATES


def stopped(pid: int) -> bool:
    found = status(pid)
    return found is not None and found[0] in STOPPED_STATES


def send_signal(pid: int, start: int, number: signal.Signals) -> bool:
    """Signals exactly this process; False: it is gone."""
    if pid <= 1:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            handle = os.pidfd_open(pid)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            return _send_without_handle(pid, start, number)
        try:
            # Asked after the handle is open: from here on it cannot come to mean another process.
            if not alive(pid, start):
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        finally:
            os.close(handle)
    return False


def _send_without_handle(pid: int, start: int, number: signal.Signals) -> bool:
    """On kernels without such handles there is a moment between looking and signalling."""
    if not alive(pid, start):
        return False
    os.kill(pid, number)
    return True


def signal_group(group: int, leader_start: int, number: signal.Signals) -> bool:
    """A group's number is free for others only when its last member is gone: a foreign leader means that."""
    if group <= 1:
        return False
    leader = status(group)
    if leader is not None and leader[1] != leader_start:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def kill_tree(pid: int, start: int, spared: Collection[int] = ()) -> bool:
    """Kills a process with all it started, or what it started goes on beside the next attempt.

    Each is stopped before its children are looked for, so that none can start another unseen; `spared` ones, and
    theirs, are left alone. False: it is gone, and what it left behind has no parent any more to be found by.
    """
    if not send_signal(pid, start, signal.SIGSTOP):
        return False
    kill_descendants(pid, spared)
    return send_signal(pid, start, signal.SIGKILL)


def kill_descendants(pid: int, spared: Collection[int] = ()) -> None:
    stopped_ones: set[tuple[int, int]] = set()
    while found := descendants(pid, spared) - stopped_ones:
        for child in found:
            send_signal(*child, signal.SIGSTOP)
        stopped_ones |= found
    for child in stopped_ones:
        send_signal(*child, signal.SIGKILL)


def descendants(pid: int, spared: Collection[int] = ()) -> set[tuple[int, int]]:
    """(pid, start time) of what this process started, and what that started."""
    of_parents = _by_parents(spared)
    found: set[tuple[int, int]] = set()
    waiting = [pid]
    while waiting:
        mine = of_parents.get(waiting.pop(), [])
        found.update(mine)
        waiting.extend(child for child, _ in mine)
    return found


def children(pid: int) -> set[tuple[int, int]]:
    """(pid, start time) of what this process started itself."""
    return set(_by_parents().get(pid, []))


def _by_parents(spared: Collection[int] = ()) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) not in spared:
            parent, start = _parent_and_start(int(name))
            found.setdefault(parent, []).append((int(name), start))
    return found


def _parent_and_start(pid: int) -> tuple[int, int]:
    """The dead and the gone have no parent."""
    fields = _stat(pid)
    if not fields or fields[0].decode() in DEAD_STATES:
        return 0, 0
    return int(fields[1]), int(fields[19])


def die_with_parent() -> None:
    """The kernel kills this process when the thread that forked it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
