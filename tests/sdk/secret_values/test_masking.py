"""A secret in a text, however a program has written it there."""

import base64
import html
import json
import os
import subprocess
import sys
from urllib.parse import quote, quote_plus, urlencode

import pytest

from scheduler_project.sdk.secret_values.masking import MASK, Masker, in_use, masked_event
from tests.support.processes import CHECKOUT

SECRET = "s3cr3t/+ &?ÿ\"'<ü>=(~!*)$:@\\end"
masked = Masker([SECRET])


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr(SECRET),
        repr(SECRET.encode()),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        urlencode({"key": SECRET}),
        quote(SECRET).lower(),
        html.escape(SECRET),
        repr({"kwargs": [SECRET]}),
        f"Bearer {SECRET}, and {SECRET}",
    ],
)
def test_no_way_to_write_it_comes_through(written: str) -> None:
    assert "s3cr3t" not in masked(f"before {written} after")
    assert masked(f"before {written} after").startswith("before ")


def numbered(written: str, characters: str, number: str) -> str:
    return written.translate({ord(character): number.format(ord(character)) for character in characters})


LOWER, CAPITAL = "\\u{:04x}", "\\u{:04X}"
AS_IT_IS = json.dumps(SECRET, ensure_ascii=False)


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(json.dumps(SECRET).replace("/", "\\/"), id="PHP"),
        pytest.param(AS_IT_IS.replace("/", "\\/"), id="PHP, JSON_UNESCAPED_UNICODE"),
        pytest.param(
            numbered(AS_IT_IS.replace('\\"', "\\u0022").replace("/", "\\/"), "&'<>", CAPITAL),
            id="Symfony and Laravel",
        ),
        pytest.param(
            numbered(AS_IT_IS.replace('\\"', "\\u0022"), "&'+<>`ÿü", CAPITAL),
            id=".NET",
        ),
        pytest.param(numbered(AS_IT_IS, "&'<=>", LOWER), id="Gson"),
        pytest.param(numbered(AS_IT_IS, "&<>", LOWER), id="Go and Rails"),
        pytest.param(numbered(json.dumps(SECRET), "&<>", CAPITAL), id="Django's json_script"),
        pytest.param(numbered(json.dumps(SECRET), "&'<>", LOWER), id="Jinja's tojson"),
        pytest.param(numbered(AS_IT_IS, "&'+/<=>", LOWER), id="all by number"),
        pytest.param(numbered(AS_IT_IS, "&'+/<=>", CAPITAL), id="all by number, in capitals"),
        pytest.param(quote(SECRET, safe="!'()*"), id="encodeURIComponent"),
        pytest.param(quote(SECRET, safe="!'()*;,/?:@&=+$#"), id="encodeURI"),
        pytest.param(quote_plus(SECRET, safe="*").replace("~", "%7E"), id="URLSearchParams and Java"),
        pytest.param(quote(SECRET, safe="$&+=:@"), id="Go's PathEscape"),
        pytest.param(quote_plus(SECRET, safe="!()*").replace("~", "%7E"), id="WebUtility.UrlEncode"),
    ],
)
def test_nor_do_other_languages_ways(written: str) -> None:
    assert masked(f"before {written} after").replace('"', "") == f"before {MASK} after"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", ["", "u", "us", "user", "user:"])
@pytest.mark.parametrize("after", ["", "x", "xyz", "\n"])
def test_base64_of_it_with_whatever_stands_around_it(encode: object, before: str, after: str) -> None:
    text = encode(f"{before}{SECRET}{after}".encode()).decode()  # type: ignore[operator]
    shown = masked(f"Authorization: Basic {text}")
    assert MASK in shown
    # All that is left is what stood around it, and the part of a character that it shares with that.
    left = shown.removeprefix("Authorization: Basic ").replace(MASK, "")
    assert len(left) <= 4 * (len(before) + len(after) + 4) // 3 + 3


def test_a_longer_form_goes_first_so_that_no_piece_is_left() -> None:
    assert Masker(["abcd", "abcdefgh"])("x abcdefgh y") == f"x {MASK} y"


def test_each_line_of_a_longer_one_is_masked_alone() -> None:
    key = "-----BEGIN-----\nMIIEvQIBADANBgkqhkiG\nab\n-----END-----"
    assert Masker([key])("MIIEvQIBADANBgkqhkiG") == MASK


def test_without_secrets_nothing_changes() -> None:
    none = Masker([])
    assert (
        not none and none("text") == "text" and none.value({"a": [1]}) == {"a": [1]} and none.cut("text") == 4
    )
    assert not Masker(["abc", ""])


def test_what_json_holds_is_masked_at_any_depth() -> None:
    numbers = Masker(["123456"])
    found = numbers.value({"a": ["x123456", 123456, 1234, True, None], "123456": 1.5, "b": ("123456",)})
    assert found == {"a": [f"x{MASK}", MASK, 1234, True, None], MASK: 1.5, "b": [MASK]}


def test_a_text_is_never_cut_through_a_secret() -> None:
    secret = Masker(["0123456789abcdef"])
    assert secret.shortened("x" * 90 + "0123456789abcdef", 100) == "x" * 90 + MASK
    assert secret.without_beginning("cut off at 01234567") == f"cut off at {MASK}"
    assert secret.without_beginning("ends with 0123") == "ends with 0123"
    text = "y" * 50 + "0123456789abcdef" + "z" * 5
    at = secret.cut(text)
    assert secret(text[:at]) + secret(text[at:]) == "y" * 50 + MASK + "z" * 5
    growing = "y" * 50 + "0123456789"
    assert "0" not in growing[: secret.cut(growing)]


def test_what_goes_to_sentry_is_masked_while_a_body_has_the_secret() -> None:
    event = {"exception": {"values": [{"value": f"no {SECRET}"}]}, "level": "error"}
    with in_use(masked):
        assert masked_event(event) == {"exception": {"values": [{"value": f"no {MASK}"}]}, "level": "error"}
    assert masked_event(event) == event


LATER = """
import httpx, sentry_sdk
import scheduler_project.settings
from scheduler_project.sdk.secret_values.masking import Masker, in_use

sentry_sdk.get_client().transport.capture_envelope = lambda envelope: print(envelope.serialize().decode())
with in_use(Masker(["hunter2-and-more"])):
    answering = httpx.MockTransport(lambda request: httpx.Response(200))
    httpx.Client(transport=answering).get("http://called.example/?key=hunter2-and-more")
sentry_sdk.capture_message("another tenant's trouble")
"""


def test_later_events_of_the_platforms_sentry_hold_no_secret_of_an_ended_body() -> None:
    """What led to an event goes along with it: the calls that were made before."""
    given = {"SECRET_KEY": "x", "DATABASE_URL": "postgresql://nobody@127.0.0.1/none"}
    done = subprocess.run(
        [sys.executable, "-c", LATER],
        env=os.environ | given | {"SENTRY_DSN": "http://key@127.0.0.1:1/1"},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert "another tenant's trouble" in done.stdout and "called.example" in done.stdout, done.stderr
    assert "hunter2" not in done.stdout


def test_a_masker_shows_nothing_of_itself() -> None:
    assert "s3cr3t" not in repr(masked)
