"""What a job may execute, checked when it is written down. Executing it is runs/targets and the SDK."""

from collections.abc import Callable

from jobs.command_target import read_command
from jobs.http_target import read_http
from jobs.input_checks import Json, expect_object, listed, near, refuse_large, refuse_unknown, refused, shown
from jobs.models import Pool

# Never to be called by a tenant, whatever a pool exports: they act on the platform itself.
RESERVED_TASKS = ("celery.", "beatkeeper.")
LONGEST_TASK = 200
KINDS = ("celery", "http", "command")
LATER_KINDS = ("container",)


def read_target(value: object) -> Json:
    given = expect_object(value, "target")
    kind = given.get("kind")
    if kind in LATER_KINDS:
        raise refused("target.kind", f"{kind} is not available yet", f"available are {', '.join(KINDS)}")
    if not isinstance(kind, str) or kind not in READERS:
        raise refused("target.kind", f"{shown(kind)} is not a kind of target", f"one of {', '.join(KINDS)}")
    target = {"kind": kind, **READERS[kind](given)}
    refuse_large(target, "target")
    return target


def target_key(target: Json) -> str:
    """What a worker must know to be given this: the task's own name, or the kind."""
    return str(target["task"]) if target["kind"] == "celery" else f"kind:{target['kind']}"


def check_exported(target: Json, pool: Pool) -> None:
    """The pool decides what may be run on its workers."""
    if target["kind"] == "celery":
        _check_task_exported(target["task"], pool)
    elif target["kind"] not in pool.exported_kinds:
        runs = ", ".join([*pool.exported_kinds, *(["celery"] if pool.exported_tasks else [])])
        raise refused(
            "target.kind",
            f"the pool {pool.slug} does not run {target['kind']} targets",
            f"it runs {runs}" if runs else "it exports nothing yet",
            "not_exported",
        )


def is_reserved(task: str) -> bool:
    return task.startswith(RESERVED_TASKS)


def _check_task_exported(task: str, pool: Pool) -> None:
    if task in pool.exported_tasks and not is_reserved(task):
        return
    open_tasks = [name for name in pool.exported_tasks if not is_reserved(name)]
    raise refused(
        "target.task",
        f"the pool {pool.slug} does not export the task {task[:200]}",
        near(task, open_tasks) or listed(open_tasks, "it exports") or "it exports no tasks yet",
        "not_exported",
    )


def _read_celery(given: Json) -> Json:
    refuse_unknown(given, ("kind", "task", "args", "kwargs"), "target")
    task = given.get("task")
    if not isinstance(task, str) or not 1 <= len(task) <= LONGEST_TASK:
        raise refused(
            "target.task", f"{shown(task)} is not the name of a task", "such as payments.tasks.settle"
        )
    args = given.get("args", [])
    if not isinstance(args, list):
        raise refused("target.args", f"{shown(args)} is not a list", "a list of positional arguments")
    return {"task": task, "args": args, "kwargs": expect_object(given.get("kwargs", {}), "target.kwargs")}


READERS: dict[str, Callable[[Json], Json]] = {
    "celery": _read_celery,
    "http": read_http,
    "command": read_command,
}
