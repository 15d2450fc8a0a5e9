"""Run the suite in three sessions at once, or its unit tests in two: most of it waits for processes, not for CPUs.

Each session has a name, a database, queues and private servers of its own, as three people's would. What the others
print follows the first one's.
"""

import os
import secrets
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.support import leftovers

CHECKOUT = Path(__file__).resolve().parents[2]
# Real processes, killed and waited for: two thirds of the time.
SYSTEM, WORKERS = ("tests/system",), ("tests/sdk", "tests/benchmarks")
SUITE = (SYSTEM, WORKERS, ("tests", *(f"--ignore={folder}" for folder in SYSTEM + WORKERS)))
UNIT = (("--no-servers", "tests/runs"), ("--no-servers", "tests", "--ignore=tests/runs"))
DEFAULT_DATABASE = "postgresql://root@127.0.0.1:5432/postgres"
DEFAULT_BROKER = "amqp://guest:guest@127.0.0.1:5672//"


def main(sessions: tuple[tuple[str, ...], ...]) -> int:
    names = [secrets.token_hex(4) for _ in sessions]
    with ExitStack() as files:
        later = [files.enter_context(tempfile.TemporaryFile()) for _ in sessions[1:]]
        running = [
            subprocess.Popen(command(options), cwd=CHECKOUT, env=environment(name), stdout=output)
            for name, options, output in zip(names, sessions, (None, *later), strict=True)
        ]
        try:
            codes = [session.wait() for session in running]
        finally:
            for name, session in zip(names, running, strict=True):
                session.terminate()
                session.wait()
                clean_up(name)
        for printed in later:
            printed.seek(0)
            sys.stdout.write(printed.read().decode(errors="replace"))
    return max(codes)


def command(options: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", "not chaos", "--durations=12", *options]


def environment(name: str) -> dict[str, str]:
    return {**os.environ, "BEATKEEPER_TEST_ID": name}


def clean_up(name: str) -> None:
    database = os.environ.get("DATABASE_URL", DEFAULT_DATABASE)
    leftovers.remove(name, database, os.environ.get("BEATKEEPER_TEST_BROKER_URL", DEFAULT_BROKER))


if __name__ == "__main__":
    sys.exit(main(UNIT if "--unit" in sys.argv else SUITE))
