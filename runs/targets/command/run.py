"""Execute a command target: an argument list in a process group of its own, with a clean environment."""

import signal
from collections.abc import Sequence
from typing import Any

from jobs.spec.targets.command import CommandKind, why_not_in_environment
from runs.targets.command.isolation import PATH, started
from runs.targets.command.output import stream_output
from scheduler_project.sdk.outcomes import PERMANENT, TRANSIENT, PermanentError
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.targets.registry import TargetCall, TargetFailed

# The command's own /tmp, where it runs apart.
HOME = "/tmp"  # noqa: S108
# What a signal from the kernel means.
SAID_BY_KERNEL = {
    signal.SIGXCPU: "it used up its CPU time",
    signal.SIGXFSZ: "a file grew over its limit",
    signal.SIGKILL: "it was stopped for good, or ran out of memory or CPU time",
}
# A shell's codes for "not executable" and "not found": trying again changes nothing.
SAID_BY_CODE = {126: ": it cannot be executed", 127: ": it was not found"}


def execute(attempt: TargetCall) -> dict[str, Any]:
    given = attempt.given(*CommandKind.input_properties)
    if not attempt.target["argv"]:
        raise PermanentError("The command is empty")
    argv = [str(part) for part in (*attempt.target["argv"], *given.get("argv", ()))]
    with started(argv, environment(attempt), attempt.target, str(given.get("stdin", ""))) as process:
        attempt.body_is(process.pid, processes.started(process.pid))
        stream_output(process, attempt)
        code = process.wait()
    if code:
        raise failure(argv, code)
    attempt.exit_code = 0
    return {"exit_code": 0}


def failure(argv: Sequence[str], code: int) -> TargetFailed:
    if code < 0:
        number = signal.Signals(-code)
        words = SAID_BY_KERNEL.get(number) or (signal.strsignal(number) or "").lower()
        line = f"{argv[0]} was ended by {number.name}" + (f": {words}" if words else "")
        return TargetFailed(TRANSIENT, number.name, line, exit_code=128 - code)
    error_class = PERMANENT if code in SAID_BY_CODE else TRANSIENT
    line = f"{argv[0]} ended with exit code {code}" + SAID_BY_CODE.get(code, "")
    return TargetFailed(error_class, f"exit {code}", line, exit_code=code)


def environment(attempt: TargetCall) -> dict[str, str]:
    claim = attempt.claim
    variables = {**(attempt.target.get("env") or {}), **(attempt.input.get("env") or {})}
    given = {str(name): str(value) for name, value in variables.items()}
    for name in given:
        if why_not := why_not_in_environment(name):
            raise PermanentError(why_not)
    return {
        "PATH": PATH,
        "HOME": HOME,
        "LANG": "C.UTF-8",
        **given,
        "BEATKEEPER_RUN": str(claim.run_id),
        "BEATKEEPER_ATTEMPT": str(claim.attempt),
        "BEATKEEPER_JOB": claim.job_name,
        "BEATKEEPER_PLANNED_AT": claim.planned_at.isoformat(),
    }
