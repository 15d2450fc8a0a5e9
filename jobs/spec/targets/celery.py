"""Read and check a Celery target: a task of a team's own code. The SDK executes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jobs.spec.targets.kind import TargetKind
from jobs.validation.checks import Json, abbreviate, expect_object, invalid, listed, near
from jobs.validation.schema import text

if TYPE_CHECKING:
    from jobs.models import Pool

# Tenants never call these, whatever a pool exports: they act on the platform itself.
RESERVED_TASKS = ("celery.", "beatkeeper.")
MAX_TASK_LENGTH = 200


class CeleryKind(TargetKind):
    name = "celery"
    properties = {
        "task": text(
            "One of those the pool exports.",
            minLength=1,
            maxLength=MAX_TASK_LENGTH,
            example="payments.tasks.settle",
        ),
        "args": {"type": "array", "items": {}},
        "kwargs": {"type": "object"},
    }
    input_properties = {
        "args": {"type": "array", "items": {}, "description": "Instead of the job's."},
        "kwargs": {"type": "object", "description": "Added to the job's, instead of those of the same name."},
    }
    required = ("task",)
    example = '{"kind": "celery", "task": "payments.tasks.settle", "args": [], "kwargs": {}}'
    exported_field = "target.task"

    def read(self, given: Json) -> Json:
        task = given.get("task")
        if not isinstance(task, str) or not 1 <= len(task) <= MAX_TASK_LENGTH:
            detail = f"{abbreviate(task)} is not the name of a task"
            raise invalid("target.task", detail, "such as payments.tasks.settle")
        return {"task": task, **_read_arguments(given, "target")}

    def check_input(self, given: Json, target: Json) -> None:
        _read_arguments(given, "input")

    def key(self, target: Json) -> str:
        return str(target["task"])

    def describe(self, target: Json) -> str:
        return f"the task {target['task'][:200]}"

    def suggest(self, target: Json, tasks: Iterable[str], pool: Pool) -> str:
        # Only what the pool exports may be named to its tenants.
        exported = [task for task in tasks if task in pool.exported_tasks and not is_reserved(task)]
        return near(target["task"], exported) or listed(exported, "they know")

    def check_exported(self, target: Json, pool: Pool) -> None:
        task = target["task"]
        if task in pool.exported_tasks and not is_reserved(task):
            return
        exported = [name for name in pool.exported_tasks if not is_reserved(name)]
        hint = near(task, exported) or listed(exported, "it exports") or "it exports no tasks yet"
        detail = f"the pool {pool.slug} does not export the task {task[:200]}"
        raise invalid(self.exported_field, detail, hint, "not_exported")

    def recipient(self, target: Json) -> object:
        return target.get("task")


def _read_arguments(given: Json, field: str) -> Json:
    args = given.get("args", [])
    if not isinstance(args, list):
        hint = "a list of positional arguments"
        raise invalid(f"{field}.args", f"{abbreviate(args)} is not a list", hint)
    return {"args": args, "kwargs": expect_object(given.get("kwargs", {}), f"{field}.kwargs")}


def is_reserved(task: str) -> bool:
    return task.startswith(RESERVED_TASKS)
