"""`make bench NAME=trigger`: measures on real servers, says in words what it found, and ends with one JSON object."""

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import django
import pytest

from tests.benchmarks.sizes import BadSize
from tests.benchmarks.stage import NotDurable, on_stage, say

HERE = Path(__file__).parent
NAMES = [
    name
    for name in (
        "trigger",
        "lateness",
        "spike",
        "edit",
        "failover",
        "throughput",
        "tenants",
        "claim",
        "fleet",
        "recovery",
        "degraded",
        "api",
        "slow_clients",
    )
    if (HERE / f"{name}.py").exists()
]
ALL = "all"


def main(names: list[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = list(NAMES) if names == [ALL] else names
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        say(f"There is no benchmark {', '.join(unknown)}.")
    if unknown or not wanted:
        show_choice()
        return 2 if unknown else 0
    try:
        # A call of several measures them on the same stored jobs.
        with on_stage() as stage:
            for name in wanted:
                say(f"\n{name}: {first_line(benchmark(name))}")
                figures = benchmark(name).measure(stage)
                say(json.dumps({"name": name, **figures}))
    except (BadSize, NotDurable, AssertionError, pytest.fail.Exception) as reason:
        say(f"not measured: {reason}")
        return 1
    return 0


def benchmark(name: str) -> ModuleType:
    return import_module(f"tests.benchmarks.{name}")


def first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").partition("\n")[0]


def show_choice() -> None:
    say("make bench NAME=…, one of these, several in quotes, or all:")
    for name in NAMES:
        say(f"  {name:12} {first_line(benchmark(name))}")
    say("How large each is, is said by environment variables: docs/contributing/benchmarks.md")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
