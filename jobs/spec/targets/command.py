"""Read and check a command. runs/targets/command/run.py executes it."""

import re

from jobs.spec.targets.kind import TargetKind
from jobs.validation.checks import Json, abbreviate, expect_object, invalid, whole_number
from jobs.validation.schema import STRINGS, number, obj, text
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


class CommandKind(TargetKind):
    name = "command"
    properties = {
        "argv": {"type": "array", "items": text(), "minItems": 1},
        "env": STRINGS,
        "limits": obj(
            {name: number(minimum=1, maximum=most) for name, most in LIMITS.items()},
            description="What it may use up; the platform's own maxima hold besides.",
        ),
        "network": {"type": "boolean", "description": "False: it reaches no network at all."},
    }
    required = ("argv",)
    example = '{"kind": "command", "argv": ["…"], "env": {}}'
    executor = "runs.targets.command.run.execute"

    def read(self, given: Json) -> Json:
        command: Json = {"argv": _read_argv(given.get("argv")), "env": _read_env(given.get("env", {}))}
        if given.get("limits"):
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
        if names_in(target["argv"]):
            detail = "a secret in the arguments of a command can be read by everybody on the worker's machine"
            hint = "put it into target.env, where the command alone reads it"
            raise invalid("target.argv", detail, hint, "secret_reference")

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
        raise invalid("target.argv", f"{abbreviate(argv)} is not a command", hint)
    if len(argv) > MAX_WORDS:  # type: ignore[arg-type]
        raise invalid("target.argv", f"{len(argv)} words are too many", f"at most {MAX_WORDS}")  # type: ignore[arg-type]
    return list(argv)  # type: ignore[call-overload, no-any-return]


def _read_env(value: object) -> dict[str, str]:
    env = expect_object(value, "target.env")
    for name, given in env.items():
        where = f"target.env.{name[:60]}"
        if not ENV_NAME.fullmatch(name):
            raise invalid(where, f"{abbreviate(name)} is not the name of a variable", "such as MY_NAME")
        if why_not := why_not_in_environment(name):
            raise invalid(where, why_not, "leave it out; a program of yours can set it for what it starts")
        if not isinstance(given, str):
            raise invalid(where, f"{abbreviate(given)} is not a string", "every value is a string")
    return env
