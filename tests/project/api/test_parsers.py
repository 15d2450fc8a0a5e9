"""A body is JSON in UTF-8, and an object in it names each field once."""

from typing import Any

import pytest

from tests.support.api_client import Caller, address, refusal
from tests.support.factories import make_tenant

pytestmark = pytest.mark.django_db
BODY = b'{"schedule": {"every": 60}}'


@pytest.fixture
def caller() -> Caller:
    return Caller(make_tenant())


def preview(caller: Caller, body: bytes = BODY, **headers: Any) -> Any:
    given = {"content_type": "application/json", **headers}
    return caller.client.generic("POST", address("schedules/preview"), body, **given)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"schedule": null, "schedule": {"every": 60}}', "schedule"),
        (b'{"schedule": {"every": 60, "jitter": 1, "every": 60}}', "every"),
        (b'{"schedule": {"every": 60}, "\\u0000\\ud800": 1, "\\u0000\\ud800": 1}', "\\0\\ud800"),
    ],
)
def test_a_name_given_twice_is_refused(caller: Caller, body: bytes, field: str) -> None:
    problem = refusal(preview(caller, body), 400, field)
    assert (problem["code"], problem["hint"]) == ("given_twice", "give each name once")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"schedule": {"every": %s}}' % (b"9" * 5000),
        b'{"schedule": {"every": NaN}}',
        b'{"schedule"',
        BODY.decode().encode("utf-16"),
        b'{"schedule": "\xff"}',
    ],
)
def test_what_is_not_json_is_refused_in_our_own_words(caller: Caller, body: bytes) -> None:
    detail = refusal(preview(caller, body), 400)["detail"]
    assert detail.startswith(("the body is not JSON", "the body is not UTF-8"))
    for word in ("recursion", "sys.", "codec", "int string"):
        assert word not in detail


@pytest.mark.parametrize("coding", ["gzip", "br", "x"])
def test_a_coding_that_is_not_read_is_refused(caller: Caller, coding: str) -> None:
    problem = refusal(preview(caller, headers={"Content-Encoding": coding}), 415, "Content-Encoding")
    assert coding in problem["detail"] and "as it is" in problem["hint"]


@pytest.mark.parametrize("charset", ["latin-1", "nope", "utf-16"])
def test_another_charset_is_refused(caller: Caller, charset: str) -> None:
    problem = refusal(preview(caller, content_type=f"application/json; charset={charset}"), 415)
    assert problem["field"] == "Content-Type" and charset in problem["detail"]


def test_utf_8_by_its_name_is_read(caller: Caller) -> None:
    assert preview(caller, content_type='application/json; charset="UTF-8"').status_code == 200
    assert preview(caller, headers={"Content-Encoding": "identity"}).status_code == 200


@pytest.mark.parametrize(
    ("given", "detail"),
    [("", "the request has a body and no Content-Type"), ("text/plain", '"text/plain" is not read here')],
)
def test_another_type_is_refused_with_the_one_that_is_read(caller: Caller, given: str, detail: str) -> None:
    problem = refusal(preview(caller, content_type=given), 415, "Content-Type")
    assert detail in problem["detail"] and problem["hint"] == "send Content-Type: application/json"
