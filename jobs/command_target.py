"""A command as a team writes it down. Running it is runs/targets/command.py."""

import re

from jobs.input_checks import Json, expect_object, refuse_unknown, refused, shown, whole_number

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
# The dynamic loader and the C library obey these before a program's first line, shells before a script's.
OBEYED_UNSEEN = ("GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "NLSPATH", "BASH_ENV", "SHELLOPTS", "BASHOPTS")
LOADER = "LD_"
OWN_PREFIX = "BEATKEEPER_"
MOST_WORDS = 1000
# What a command may use up; the platform's own maxima are in the settings.
LIMITS = {
    "cpu_seconds": 30 * 86_400,
    "memory_mb": 1_048_576,
    "open_files": 1_048_576,
    "processes": 65_536,
    "file_size_mb": 1_048_576,
}


def read_command(given: Json) -> Json:
    refuse_unknown(given, ("kind", "argv", "env", "limits", "network"), "target")
    command: Json = {"argv": _read_argv(given.get("argv")), "env": _read_env(given.get("env", {}))}
    if given.get("limits"):
        command["limits"] = _read_limits(given["limits"])
    if given.get("network") is not None:
        command["network"] = _read_network(given["network"])
    return command


def why_not_in_environment(name: str) -> str:
    """Empty when a command may set it."""
    if name.upper() in OBEYED_UNSEEN or name.upper().startswith(LOADER):
        return f"{name} is the loader's or the shell's; a command may not set it"
    if name.upper().startswith(OWN_PREFIX):
        return f"{name} is set by the platform"
    return ""


def _read_argv(argv: object) -> list[str]:
    words = isinstance(argv, list) and all(isinstance(item, str) for item in argv)
    if not words or not argv or not argv[0]:  # type: ignore[index]
        hint = 'a list of strings such as ["ls", "-l"]; no shell reads it'
        raise refused("target.argv", f"{shown(argv)} is not a command", hint)
    if len(argv) > MOST_WORDS:  # type: ignore[arg-type]
        raise refused("target.argv", f"{len(argv)} words are too many", f"at most {MOST_WORDS}")  # type: ignore[arg-type]
    return list(argv)  # type: ignore[call-overload, no-any-return]


def _read_env(value: object) -> dict[str, str]:
    env = expect_object(value, "target.env")
    for name, text in env.items():
        where = f"target.env.{name[:60]}"
        if not ENV_NAME.fullmatch(name):
            raise refused(where, f"{shown(name)} is not the name of a variable", "such as MY_NAME")
        if why_not := why_not_in_environment(name):
            raise refused(where, why_not, "leave it out; a program of yours can set it for what it starts")
        if not isinstance(text, str):
            raise refused(where, f"{shown(text)} is not a string", "every value is a string")
    return env


def _read_limits(value: object) -> dict[str, int]:
    limits = expect_object(value, "target.limits")
    refuse_unknown(limits, LIMITS, "target.limits")
    return {
        name: whole_number(number, f"target.limits.{name}", 1, LIMITS[name])
        for name, number in limits.items()
    }


def _read_network(value: object) -> bool:
    if not isinstance(value, bool):
        raise refused("target.network", f"{shown(value)} is neither true nor false", "true or false")
    return value
