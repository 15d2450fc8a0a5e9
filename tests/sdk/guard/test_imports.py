"""What a guard loads: there is one beside each worker, so it must stay small."""

import json
import subprocess
import sys

PROGRAM = "import json, sys, scheduler_project.sdk.guard.guard; print(json.dumps(sorted(sys.modules)))"
FOREIGN = ("celery", "kombu", "django", "scheduler_project.sdk.execution", "scheduler_project.sdk.worker")


def test_a_guard_loads_neither_celery_nor_what_executes_runs() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert "scheduler_project.sdk.guard.slot_watch" in loaded
    assert [name for name in loaded if name.startswith(FOREIGN)] == []
