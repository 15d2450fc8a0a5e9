"""Nothing is decided by the clock of the machine it is decided on: whoever needs the time asks the database."""

import ast
from pathlib import Path

from tests.support.packages import PACKAGES
from tests.support.processes import CHECKOUT

CLOCKS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("timezone", "now"),
    ("timezone", "localdate"),
}
ALLOWED = {
    "jobs/admin/formatting.py": "how long ago, in words, for a reader",
    "jobs/admin/access.py": "a label on a key; whether a key is valid is asked elsewhere",
    "jobs/access/api_keys.py": "whether the use of a key is noted; the database decides whether it is time",
    "runs/history.py": "where a page of runs is looked for first; the rest is read too",
    "runs/admin/list_filters.py": "which days a list of the admin shows",
    "runs/admin/run_detail.py": "how long a run has taken so far, for a reader",
    "scheduler_project/standalone/demo_tasks.py": "what a demo prints",
    "runs/api/worker_protocol.py": "this host's clock, corrected by how far the database's is from it",
    "runs/targets/http/answer.py": "an HTTP date of another machine is compared with ours",
    "runs/targets/http/call.py": "a signature names the instant at which it was made",
    "scheduler_project/admin/dashboard.py": "how long ago, in words, for a reader",
}
# A worker knows no other clock than its machine's; what it decides it decides by CLOCK_BOOTTIME.
ELSEWHERE = ("scheduler_project/sdk/", "/migrations/")


def looks_at_the_wall(path: Path) -> list[int]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (owner, name) in CLOCKS:
                found.append(node.lineno)
            case ast.Call(func=ast.Name(id="now_utc")):
                found.append(node.lineno)
    return found


def test_only_what_is_said_to_readers_goes_by_the_machines_clock() -> None:
    looking = {
        f"{name}:{line}"
        for package in PACKAGES
        for path in (CHECKOUT / package).rglob("*.py")
        if (name := path.relative_to(CHECKOUT).as_posix()) not in ALLOWED
        and not any(part in name for part in ELSEWHERE)
        for line in looks_at_the_wall(path)
    }
    assert looking == set()


def test_what_is_allowed_is_still_there() -> None:
    assert [name for name in ALLOWED if not looks_at_the_wall(CHECKOUT / name)] == []
