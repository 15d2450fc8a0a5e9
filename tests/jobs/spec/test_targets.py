"""Targets as they are written down: what is kept of them, and what is refused with which words."""

from typing import Any

import pytest

from jobs.errors import InvalidInput
from jobs.spec.targets import read_target

HTTP = {"kind": "http", "url": "https://team.example/hook"}
COMMAND = {"kind": "command", "argv": ["true"]}


def refusal(target: dict[str, Any]) -> str:
    with pytest.raises(InvalidInput) as refused:
        read_target(target)
    error = refused.value.errors[0]
    assert error.detail and (error.hint or error.code != "invalid")
    return error.field


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"type": "command", "argv": ["true"]}, '"kind": "command" instead of "type"'),
        ({"argv": ["true"]}, "one of celery, http, command"),
    ],
)
def test_a_target_without_a_kind_is_told_its_field(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_target(given)
    error = refused.value.errors[0]
    assert (error.field, error.detail, error.hint) == ("target.kind", "kind is required", hint)


def test_what_was_not_given_is_not_kept() -> None:
    """A version of an earlier release stays what it was."""
    assert set(read_target(HTTP)) == {"kind", "method", "url", "headers", "body", "expect"}
    assert set(read_target(COMMAND)) == {"kind", "argv", "env"}


def test_what_is_shown_can_be_sent_again() -> None:
    given = {
        **HTTP,
        "timeout": 90,
        "redirects": 3,
        "sign": {"secret": "HOOK_KEY"},
        "callback": {"timeout": "PT60M"},
    }
    kept = read_target(given)
    assert (kept["timeout"], kept["redirects"]) == ("PT1M30S", 3)
    assert kept["sign"] == {"secret": "${secret:HOOK_KEY}"} and kept["callback"] == {"timeout": "PT1H"}
    assert read_target(kept) == kept
    command = read_target({**COMMAND, "limits": {"cpu_seconds": 10, "memory_mb": 64}, "network": False})
    assert read_target(command) == command


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"timeout": "soon"}, "target.timeout"),
        ({"timeout": 0}, "target.timeout"),
        ({"redirects": 11}, "target.redirects"),
        ({"redirects": True}, "target.redirects"),
        ({"sign": "HOOK_KEY"}, "target.sign"),
        ({"sign": {}}, "target.sign.secret"),
        ({"sign": {"secret": "s3cr3t key"}}, "target.sign.secret"),
        ({"sign": {"key": "x"}}, "target.sign.key"),
        ({"callback": {}}, "target.callback.timeout"),
        ({"callback": {"timeout": "P31D"}}, "target.callback.timeout"),
        ({"callback": {"timeout": 1, "url": "x"}}, "target.callback.url"),
        ({"url": "https://team.example\\@inside/"}, "target.url"),
        ({"url": "https://u:p@team.example/"}, "target.url"),
        ({"headers": {"Host": "inside"}}, "target.headers.Host"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "target.headers.Transfer-Encoding"),
        ({"headers": {"Proxy-Authorization": "x"}}, "target.headers.Proxy-Authorization"),
        ({"headers": {"Idempotency-Key": "x"}}, "target.headers.Idempotency-Key"),
        ({"headers": {"Beatkeeper-Signature": "x"}}, "target.headers.Beatkeeper-Signature"),
        ({"headers": {"X": "a\r\nY: b"}}, "target.headers.X"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused(given: dict[str, Any], field: str) -> None:
    assert refusal({**HTTP, **given}) == field


def test_what_may_be_a_key_is_not_repeated() -> None:
    with pytest.raises(InvalidInput) as refused:
        read_target({**HTTP, "sign": {"secret": "wJalrXUtnFEMI/K7MDENG"}})
    assert "wJalr" not in str(refused.value.errors)


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "ld_preload", "LD_AUDIT", "GLIBC_TUNABLES", "GCONV_PATH", "BASH_ENV", "BEATKEEPER_RUN"],
)
def test_what_acts_before_a_command_does_is_refused(name: str) -> None:
    assert refusal({**COMMAND, "env": {name: "x"}}) == f"target.env.{name}"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"argv": []}, "target.argv"),
        ({"argv": "rm -rf /"}, "target.argv"),
        ({"argv": ["x"] * 1001}, "target.argv"),
        ({"limits": {"cpu_seconds": 0}}, "target.limits.cpu_seconds"),
        ({"limits": {"memory": 1}}, "target.limits.memory"),
        ({"limits": [1]}, "target.limits"),
        ({"network": "no"}, "target.network"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused(given: dict[str, Any], field: str) -> None:
    assert refusal({**COMMAND, **given}) == field
