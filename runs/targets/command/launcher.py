"""Start one command and end as it ends; a program of its own: `python -I -S launcher.py FD WHERE OPTION=VALUE …`.

It runs with an empty environment and gets what is the tenant's, the arguments and the environment, through an
open file that is read only after the user was changed: nothing privileged ever acts on it.

WHERE `namespace`, for root: three processes, of which the first stays in the worker's PID namespace.

    first   leader of the process group that the guard signals; ends as the command ended
    init    PID 1 of the namespace, which has a /proc, a /tmp and System V objects of its own; when it ends the kernel
            kills all that is inside, also what left the group
    command the tenant's program, as nobody; PID 1 itself would not be ended by a SIGTERM

WHERE `sandbox`, for all other users: bubblewrap makes the namespaces and is a fourth process, between first and init.
Init is this program again, WHERE `inside`: it distinguishes a signal from the exit code that looks like it.

WHERE `here`: the first process becomes the command, as nobody when it was root.

The options are the platform's: the names of LIMITS, each as the kernel counts it; `tmp`, the bytes of its own /tmp;
`hide`, a folder that is empty for it; `network=0`, it has none; `calls`, a program by which the kernel refuses some, in
hexadecimal; for a sandbox `arguments`, an open file with those of bubblewrap (`bwrap`), `launcher`, where it finds this
program, and `status`, where init writes the status.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import warnings  # noqa: F401 - execvpe wants it when nobody may no longer read it
from collections.abc import Callable

NOBODY = 65534
NOT_STARTED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
# A soft stop waits until the command is there to get it. SIGKILL cannot be held.
HELD = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER, SIZE_OF_STEP = 2, 8
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x8000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 0x40000
LIMITS = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory_mb": resource.RLIMIT_AS,
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "file_size_mb": resource.RLIMIT_FSIZE,
}
KNOWN_OPTIONS = (*LIMITS, "tmp", "hide", "network", "calls", "arguments", "bwrap", "launcher", "status")
# Everybody may write there, so everybody could leave something there for somebody else.
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")  # noqa: S108

libc = ctypes.CDLL(None, use_errno=True)


Options = list[tuple[str, str]]


class Program(ctypes.Structure):
    """A filter program as the kernel reads one, its `sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def main() -> None:
    order, where = int(sys.argv[1]), sys.argv[2]
    options = [(name, value) for name, _, value in (word.partition("=") for word in sys.argv[3:])]
    if any(name not in KNOWN_OPTIONS for name, _ in options):
        # This file was replaced under a worker that runs: what it calls otherwise would be no limit at all.
        complain("the worker is of another version than its launcher: restart it")
        os._exit(NOT_STARTED)
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    die_with_parent()
    if where == "here":
        become_command(order, options)
    elif where == "inside":
        be_init_of_sandbox(order, options)
    else:
        run = run_in_sandbox if where == "sandbox" else run_in_namespace
        end_as(run(order, options))


def run_in_namespace(order: int, options: Options) -> int:
    """Run the command in a namespace and return its wait status, or its init's if that was killed."""
    without = CLONE_NEWNET if ("network", "0") in options else 0
    checked(libc.unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | without), "unshare")
    status, of_command = run_and_read_status(order, lambda status_to: be_init(order, options, status_to))
    return status if of_command is None else of_command


def run_in_sandbox(order: int, options: Options) -> int:
    status, of_command = run_and_read_status(order, lambda pipe: become_sandbox(order, options, pipe))
    if of_command is not None:
        return of_command
    if os.WIFSIGNALED(status):
        return status
    # Bubblewrap says 128 + n when a signal ended init; any other code without a word is a sandbox that was not made.
    code = os.WEXITSTATUS(status)
    return code - 128 if code > 128 else NOT_STARTED << 8


def run_and_read_status(order: int, body: Callable[[int], None]) -> tuple[int, int | None]:
    """Run a process with this body, and return its wait status and what it wrote."""
    status_from, status_to = os.pipe()

    def write_status() -> None:
        os.close(status_from)
        body(status_to)

    init = forked(write_status)
    os.close(order)
    os.close(status_to)
    # Comes back only when the kernel has ended everything inside.
    _, status = os.waitpid(init, 0)
    text = os.read(status_from, 32)
    return status, int(text) if text else None


def become_sandbox(order: int, options: Options, status_to: int) -> None:
    die_with_parent()
    given = dict(options)
    os.set_inheritable(status_to, True)
    limits = [f"{name}={value}" for name, value in options if name in LIMITS]
    again = [sys.executable, "-I", "-S", given["launcher"], str(order), "inside", f"status={status_to}"]
    os.execv(given["bwrap"], ["bwrap", "--args", given["arguments"], "--", *again, *limits])  # noqa: S606


def be_init_of_sandbox(order: int, options: Options) -> None:
    """Act as init of the sandbox; only the kernel's rules keep the command, of the same user, out of its memory."""
    status_to = int(dict(options)["status"])
    os.set_inheritable(order, False)
    os.set_inheritable(status_to, False)
    checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
    look_after_command(order, options, status_to)


def be_init(order: int, options: Options, status_to: int) -> None:
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount")
    checked(libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None), "mount /proc")
    make_folders_private(options)
    look_after_command(order, options, status_to)


def look_after_command(order: int, options: Options, status_to: int) -> None:
    command = forked(lambda: become_command(order, options))
    os.close(order)
    drop_user()
    die_with_parent()
    if nobody_reads(status_to):
        return
    while True:
        # What the command's children leave behind becomes ours.
        pid, status = os.wait()
        if pid == command:
            os.write(status_to, str(status).encode())
            return


def nobody_reads(pipe: int) -> bool:
    """Return whether the first process is gone: it may be killed before the signal of its death is set up."""
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def make_folders_private(options: Options) -> None:
    """Replace folders by private ones, and leave the working folder, which still leads to an old one."""
    given = dict(options)
    for folder in SHARED_FOLDERS:
        if os.path.isdir(folder) and not os.path.islink(folder):
            mount_empty(folder, MS_NOSUID | MS_NODEV, f"mode=1777,size={given.get('tmp', '0')}")
    for name, folder in options:
        if name == "hide" and os.path.isdir(folder):
            mount_empty(folder, MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, "mode=0,size=4k")
    os.chdir(SHARED_FOLDERS[0])


def mount_empty(folder: str, flags: int, data: str) -> None:
    checked(libc.mount(b"none", os.fsencode(folder), b"tmpfs", flags, data.encode()), f"mount {folder}")


def become_command(order: int, options: Options) -> None:
    drop_user()
    # After the change of user, which clears it.
    die_with_parent()
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if calls := dict(options).get("calls"):
        refuse_calls(bytes.fromhex(calls))
    argv, env = read_order(order)
    limit(options)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell is the point
    except OSError as error:
        complain(f"{os.fsdecode(argv[0])}: {error.strerror}")
        os._exit(NOT_FOUND if isinstance(error, (FileNotFoundError, NotADirectoryError)) else NOT_EXECUTABLE)


def refuse_calls(steps: bytes) -> None:
    program = Program(len(steps) // SIZE_OF_STEP, steps)
    answer = libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    checked(answer, "the kernel takes no filter of system calls (seccomp)")


def limit(options: Options) -> None:
    """Set hard limits, which the command cannot raise. A core of one byte is none, also through a pipe."""
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    for name, value in options:
        if name in LIMITS:
            most = resource.getrlimit(LIMITS[name])[1]
            number = int(value) if most == resource.RLIM_INFINITY else min(int(value), most)
            # It gets a second to log what it was doing when its time was over.
            beyond = number + 1 if name == "cpu_seconds" and most == resource.RLIM_INFINITY else number
            resource.setrlimit(LIMITS[name], (number, beyond))


def read_order(order: int) -> tuple[list[bytes], dict[bytes, bytes]]:
    with open(order, "rb") as file:
        count, *words = file.read().split(b"\0")
    pairs = (word.partition(b"=") for word in words[int(count) :])
    return words[: int(count)], {name: value for name, _, value in pairs}


def drop_user() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def die_with_parent() -> None:
    checked(libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "pdeathsig")


def forked(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        guarded(body)
    return pid


def guarded(body: Callable[[], None]) -> None:
    try:
        body()
    except BaseException as error:
        complain(f"The command cannot be started: {error}")
        os._exit(NOT_STARTED)
    os._exit(0)


def checked(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def complain(text: str) -> None:
    os.write(2, text.encode("utf-8", "backslashreplace") + b"\n")


def end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # The core, if there is to be one, was the command's.
        checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else NOT_STARTED)


if __name__ == "__main__":
    guarded(main)
