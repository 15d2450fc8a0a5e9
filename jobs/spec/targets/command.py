"""Read and check a command. runs/targets/command/run.py executes it."""

import re

from jobs.spec.targets.kind import TargetKind
from jobs.validation.checks import (
    MAX_PAYLOAD_BYTES,
    Json,
    abbreviate,
    expect_object,
    invalid,
    whole_number,
)
from jobs.validation.schema import number, obj, optional, text
from scheduler_project.sdk.secret_values.references import names_in

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
# The dynamic loader and the C library obey these before a program's first line, shells before a script's.
LOADER_VARIABLES = ("GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "NLSPATH", "BASH_ENV", "SHELLOPTS", "BASHOPTS")
LOADER_PREFIX = "LD_"
PLATFORM_PREFIX = "BEATKEEPER_"
MAX_WORDS = 1000
# Upper bounds of what a job may ask for; the platform's own maxima are in the settings.
LIMITS = {
    "cpu_seconds": 30 * 86_400,
    "memory_mb": 1_048_576,
    "open_files": 1_048_576,
    "processes": 65_536,
    "file_size_mb": 1_048_576,
}


ENV = {
    "type": "object",
    "propertyNames": {"pattern": f"^{ENV_NAME.pattern}$"},
    "additionalProperties": text(),
}


class CommandKind(TargetKind):
    name = "command"
    properties = {
        "argv": {
            "type": "array",
            "items": text(),
            "minItems": 1,
            "maxItems": MAX_WORDS,
            "example": ["backup", "--all"],
        },
        "env": ENV,
        "limits": optional(
            obj(
                {name: number(minimum=1, maximum=most) for name, most in LIMITS.items()},
                may_lack=tuple(LIMITS),
                title="CommandLimits",
                description="What it may use up; the platform's own maxima hold besides.",
            )
        ),
        "network": optional({"type": "boolean", "description": "False: it reaches no network at all."}),
    }
    input_properties = {
        "argv": {"type": "array", "items": text(), "description": "Appended to the job's."},
        "env": {**ENV, "description": "Added to the job's, instead of variables of the same name."},
        "stdin": text("What the command reads from its standard input.", maxLength=MAX_PAYLOAD_BYTES),
    }
    required = ("argv",)
    may_lack = ("limits", "network")
    example = '{"kind": "command", "argv": ["…"], "env": {}}'
    executor = "runs.targets.command.run.execute"

    def read(self, given: Json) -> Json:
        env = _read_env(given.get("env", {}), "target.env")
        command: Json = {"argv": _read_argv(given.get("argv")), "env": env}
        if given.get("limits") is not None:
            limits = expect_object(given["limits"], "target.limits", LIMITS)
            command["limits"] = {
                name: whole_number(limit, f"target.limits.{name}", 1, LIMITS[name])
                for name, limit in limits.items()
            }
        if (network := given.get("network")) is not None:
            if not isinstance(network, bool):
                detail = f"{abbreviate(network)} is neither true nor false"
                raise invalid("target.network", detail, "true or false")
            command["network"] = network
        return command

    def check_secret_places(self, target: Json) -> None:
        _refuse_secrets_in_argv(target["argv"], "target")

    def check_input(self, given: Json, target: Json) -> None:
        words = given.get("argv", [])
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            hint = 'such as ["--day", "2026-11-19"], appended to those of the job'
            raise invalid("input.argv", f"{abbreviate(words)} is not a list of strings", hint)
        _refuse_many_words(len(target.get("argv", ())) + len(words), "input.argv")
        _refuse_secrets_in_argv(words, "input")
        _read_env(given.get("env", {}), "input.env")
        if not isinstance(stdin := given.get("stdin", ""), str):
            raise invalid("input.stdin", f"{abbreviate(stdin)} is not a string", "the text that it reads")

    def recipient(self, target: Json) -> object:
        return target.get("argv")


def why_not_in_environment(name: str) -> str:
    """Explain why a command may not set this variable; return an empty text if it may."""
    if name.upper() in LOADER_VARIABLES or name.upper().startswith(LOADER_PREFIX):
        return f"{name} is the loader's or the shell's; a command may not set it"
    if name.upper().startswith(PLATFORM_PREFIX):
        return f"{name} is set by the platform"
    return ""


def _read_argv(argv: object) -> list[str]:
    words = isinstance(argv, list) and all(isinstance(item, str) for item in argv)
    if not words or not argv or not argv[0]:  # type: ignore[index]
        hint = 'a list of strings such as ["ls", "-l"]; no shell reads it'
        code = "no_program" if words and argv else "invalid"
        raise invalid("target.argv", f"{abbreviate(argv)} is not a command", hint, code)
    _refuse_many_words(len(argv), "target.argv")  # type: ignore[arg-type]
    return list(argv)  # type: ignore[call-overload, no-any-return]


def _refuse_many_words(count: int, field: str) -> None:
    if count > MAX_WORDS:
        raise invalid(field, f"{count} words are too many", f"at most {MAX_WORDS}")


def _refuse_secrets_in_argv(argv: list[str], field: str) -> None:
    if names_in(argv):
        detail = "a secret in the arguments of a command can be read by everybody on the worker's machine"
        hint = f"put it into {field}.env, where the command alone reads it"
        raise invalid(f"{field}.argv", detail, hint, "secret_reference")


def _read_env(value: object, field: str) -> dict[str, str]:
    env = expect_object(value, field)
    for name, given in env.items():
        where = f"{field}.{name[:60]}"
        if not ENV_NAME.fullmatch(name):
            raise invalid(where, f"{abbreviate(name)} is not the name of a variable", "such as MY_NAME")
        if why_not := why_not_in_environment(name):
            hint = "leave it out; a program of yours can set it for what it starts"
            raise invalid(where, why_not, hint, "reserved_name")
        if not isinstance(given, str):
            raise invalid(where, f"{abbreviate(given)} is not a string", "every value is a string")
    return env
