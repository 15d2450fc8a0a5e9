"""A program: prints what a code base that keeps everything of its tasks has of runs with a secret, by how they ended.

Its backend stays in this process' memory, and of a run that is over nothing is taken away there.
"""

import json
import sys
from pathlib import Path

import celery

from tests.sdk.execution.test_secrets import Table, app

ENDINGS = ("", "raises", "retries")


def main(folder: Path) -> None:
    app.conf.update(
        result_backend="cache+memory://",
        result_extended=True,
        task_track_started=True,
        task_store_errors_even_if_ignored=True,
    )
    table = Table(folder)
    kept = {ending: kept_of(table, ending) for ending in ENDINGS}
    print(json.dumps({"celery": celery.__version__, "kept": kept}))  # noqa: T201


def kept_of(table: Table, ending: str) -> str:
    claim = table.claim(ending)
    table.carry_out(claim)
    return str(app.backend.get_task_meta(str(claim.run_id))["status"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
