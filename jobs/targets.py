"""What a job may execute, checked when it is written down. Executing it is runs/targets and the SDK."""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from jobs.input_checks import Json, expect_object, listed, near, refuse_large, refuse_unknown, refused, shown
from jobs.models import Pool

# Never to be called by a tenant, whatever a pool exports: they act on the platform itself.
RESERVED_TASKS = ("celery.", "beatkeeper.")
KINDS = ("celery", "http", "command")
LATER_KINDS = ("container",)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
ANY_SUCCESS = [200, 201, 202, 204]
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
OWN_HEADERS = {"host", "content-length", "transfer-encoding", "connection"}
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")


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
    if not isinstance(task, str) or not 1 <= len(task) <= 200:
        raise refused(
            "target.task", f"{shown(task)} is not the name of a task", "such as payments.tasks.settle"
        )
    args = given.get("args", [])
    if not isinstance(args, list):
        raise refused("target.args", f"{shown(args)} is not a list", "a list of positional arguments")
    return {"task": task, "args": args, "kwargs": expect_object(given.get("kwargs", {}), "target.kwargs")}


def _read_http(given: Json) -> Json:
    refuse_unknown(given, ("kind", "method", "url", "headers", "body", "expect"), "target")
    method = given.get("method", "POST" if given.get("body") is not None else "GET")
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise refused("target.method", f"{shown(method)} is not a method", f"one of {', '.join(METHODS)}")
    return {
        "method": method.upper(),
        "url": _read_url(given.get("url")),
        "headers": _read_headers(given.get("headers", {})),
        "body": given.get("body"),
        "expect": _read_expect(given.get("expect", ANY_SUCCESS)),
    }


def _read_url(value: object) -> str:
    hint = "an absolute http or https URL"
    if not isinstance(value, str) or not 1 <= len(value) <= 2000:
        raise refused("target.url", f"{shown(value)} is not a URL", hint)
    try:
        parts = urlsplit(value)
        host, _port, login = parts.hostname, parts.port, parts.username or parts.password
    except ValueError as error:
        raise refused("target.url", f"{value[:60]} is not a URL: {error}", hint) from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise refused("target.url", f"{value[:60]} is not an http or https URL", hint)
    if login:
        raise refused("target.url", "the URL holds a login", "use an Authorization header instead")
    if any(character.isspace() or not character.isprintable() for character in value):
        raise refused("target.url", "the URL holds white space", "write %20 for a space")
    return value


def _read_headers(value: object) -> dict[str, str]:
    headers = expect_object(value, "target.headers")
    for name, text in headers.items():
        where = f"target.headers.{name[:60]}"
        if not HEADER_NAME.fullmatch(name):
            raise refused(where, f"{shown(name)} is not the name of a header", "letters, digits and hyphens")
        if name.lower() in OWN_HEADERS:
            raise refused(where, f"{name} is set by the call itself", "leave it out")
        if not isinstance(text, str) or not text.isascii() or not (text.isprintable() or text == ""):
            raise refused(where, f"{shown(text)} is not the value of a header", "one line of ASCII text")
    return headers


def _read_expect(value: object) -> list[int]:
    listed_codes = isinstance(value, list) and 1 <= len(value) <= 100
    if not listed_codes or not all(_is_status(code) for code in value):  # type: ignore[attr-defined]
        raise refused("target.expect", f"{shown(value)} is not a list of HTTP statuses", "such as [200, 204]")
    return list(value)  # type: ignore[call-overload, no-any-return]


def _is_status(code: object) -> bool:
    return isinstance(code, int) and not isinstance(code, bool) and 200 <= code <= 599


def _read_command(given: Json) -> Json:
    refuse_unknown(given, ("kind", "argv", "env"), "target")
    argv = given.get("argv")
    if (
        not isinstance(argv, list)
        or not argv
        or not all(isinstance(item, str) for item in argv)
        or not argv[0]
    ):
        raise refused(
            "target.argv",
            f"{shown(argv)} is not a command",
            'a list of strings such as ["ls", "-l"]; no shell reads it',
        )
    env = expect_object(given.get("env", {}), "target.env")
    for name, text in env.items():
        if not ENV_NAME.fullmatch(name):
            raise refused(
                f"target.env.{name[:60]}", f"{shown(name)} is not the name of a variable", "such as MY_NAME"
            )
        if not isinstance(text, str):
            raise refused(f"target.env.{name}", f"{shown(text)} is not a string", "every value is a string")
    return {"argv": argv, "env": env}


READERS: dict[str, Callable[[Json], Json]] = {
    "celery": _read_celery,
    "http": _read_http,
    "command": _read_command,
}
