"""`${secret:NAME}`: what is replaced, and what is only text."""

from typing import Any

import pytest

from scheduler_project.sdk.secret_values.references import (
    SecretMissing,
    names_in,
    resolved,
    resolved_target,
    with_references,
)

SECRETS = {"A": "first", "B": "${secret:A}", "C": "a b&c/d"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("x ${secret:A} y", "x first y"),
        ("${secret:A}${secret:A}", "firstfirst"),
        ("${secret:B}", "${secret:A}"),
        ("$${secret:A}", "${secret:A}"),
        ("$$${secret:A}", "$${secret:A}"),
        ("${A} $A ${secret A} $5", "${A} $A ${secret A} $5"),
        ({"k": ["${secret:A}", 1, None, {"d": "${secret:A}"}]}, {"k": ["first", 1, None, {"d": "first"}]}),
        (None, None),
    ],
)
def test_references_become_secrets_and_nothing_else_changes(given: Any, wanted: Any) -> None:
    assert resolved(given, SECRETS) == wanted


def test_names_are_found_at_any_depth_once() -> None:
    assert names_in({"a": ["${secret:B}", {"b": "${secret:A}${secret:B}"}]}, None, "$${secret:Z}") == [
        "A",
        "B",
    ]


def test_in_a_url_a_secret_is_one_value() -> None:
    target = {"url": "https://host/p?key=${secret:C}", "headers": {"X": "${secret:C}"}}
    assert resolved_target(target, SECRETS) == {
        "url": "https://host/p?key=a%20b%26c%2Fd",
        "headers": {"X": "a b&c/d"},
    }


def test_what_is_missing_is_named_alone() -> None:
    with pytest.raises(SecretMissing) as missing:
        resolved("${secret:A} ${secret:GONE}", SECRETS)
    assert str(missing.value) == "There is no secret GONE"


@pytest.mark.parametrize(
    "text", ["x ${secret:A} y", "$${secret:A}", "${secret:C}${secret:D}", "plain $5 ${HOME}"]
)
def test_what_is_kept_of_it_has_its_references_again(text: str) -> None:
    given = {"args": [text], "n": 1}
    known = {"A": "first", "C": "a b&c/d", "D": "first and last"}
    assert with_references(resolved(given, known), known) == given
