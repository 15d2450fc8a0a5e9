"""Requests are limited by key and tenant, wrong credentials by address; nobody else notices."""

import re
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.access import request_limits
from jobs.models import Allowance, Role, Tenant
from tests.support.api_client import Caller, refusal
from tests.support.factories import make_tenant
from tests.support.minute import Minute

pytestmark = pytest.mark.django_db
WRONG = "bk_000000000000_" + "x" * 43


def use_up(caller: Caller, times: int) -> list[int]:
    return [caller.get("me").status_code for _ in range(times)]


def stranger(key: str = WRONG, address: str = "203.0.113.9", **headers: str) -> Any:
    given = {"Authorization": f"Bearer {key}", **headers}
    return Client(headers=given, REMOTE_ADDR=address).get("/api/v1/jobs")


@pytest.fixture
def small(minute: Minute) -> Tenant:
    return make_tenant(requests_per_minute=10)


def test_answers_say_what_the_limits_are_and_what_is_left(minute: Minute) -> None:
    caller = Caller(make_tenant(requests_per_minute=1000))
    minute.pass_to(20)
    answer = caller.get("me")
    assert answer["RateLimit-Policy"] == '"tenant";q=1000;w=60, "key";q=500;w=60'
    assert answer["RateLimit"] == '"tenant";r=999;t=40, "key";r=499;t=40'
    assert caller.get("jobs/nothing")["RateLimit"] == '"tenant";r=998;t=40, "key";r=498;t=40'
    assert "Retry-After" not in answer


def test_a_key_may_send_half_of_what_its_tenant_may(small: Tenant) -> None:
    one, two, three = Caller(small), Caller(small), Caller(small)
    assert use_up(one, 7) == [200] * 5 + [429] * 2
    assert use_up(two, 4) == [200] * 4
    assert use_up(three, 2) == [200, 429], "the tenant's limit, before the key's"
    problem = refusal(three.get("me"), 429)
    assert "keys of the tenant" in problem["detail"] and "10 requests" in problem["detail"]


def test_a_refusal_says_why_and_how_long_to_wait(small: Tenant, minute: Minute) -> None:
    caller = Caller(small)
    minute.pass_to(29.5)
    use_up(caller, 5)
    answer = caller.post("jobs", {})
    problem = refusal(answer, 429)
    assert problem["code"] == "throttled" and problem["request_id"] == answer["X-Request-Id"]
    assert problem["detail"] == "the key has sent its 5 requests of this minute"
    assert problem["hint"] == "try again in 31 s"
    assert (answer["Retry-After"], answer["RateLimit"]) == ("31", '"key";r=0;t=31')
    assert answer["RateLimit-Policy"] == '"key";q=5;w=60'
    minute.pass_to(60)
    assert caller.get("me").status_code == 200


def test_other_tenants_neither_notice_nor_learn_of_it(small: Tenant) -> None:
    other = Caller(make_tenant(requests_per_minute=10))
    for _ in range(2):
        use_up(Caller(small), 9)
    answer = other.get("me")
    assert answer.status_code == 200
    assert [int(left) for left in re.findall(r"r=(\d+)", answer["RateLimit"])] == [9, 4]
    assert small.slug not in answer.content.decode() + str(answer.headers)


def test_without_a_number_of_its_own_a_tenant_has_that_of_the_settings(
    minute: Minute, settings: LazySettings
) -> None:
    settings.REQUESTS_PER_MINUTE = 4
    caller = Caller(make_tenant())
    assert use_up(caller, 3) == [200, 200, 429]
    settings.REQUESTS_PER_MINUTE = 0
    answer = Caller(make_tenant()).get("me")
    assert answer.json()["requests_per_minute"] is None and "RateLimit" not in answer


def test_the_default_of_a_key_is_250_requests_in_each_second() -> None:
    assert request_limits.of_key(Tenant()) == 15_000


def test_a_key_learns_its_limits(small: Tenant) -> None:
    assert Caller(small).get("me").json()["requests_per_minute"] == {"key": 5, "tenant": 10}


def test_a_worker_key_is_limited_beside_its_protocol(small: Tenant, own_pool: Any) -> None:
    own_pool.tenants.add(small)
    worker = Caller(small, Role.WORKER, own_pool)
    use_up(worker, 5)
    refusal(worker.get("worker/declarations"), 429)
    for path in ("heartbeat", "claim", "report", "register", "leave", "declare", "declaration-errors"):
        answer = worker.post(f"worker/{path}", {})
        assert answer.status_code == 400, (path, answer.content)
        assert "RateLimit" not in answer
    run = "0197d2a4-5b00-7c3e-9f3a-2b1c8e5d4f60"
    assert worker.put(f"worker/logs/{run}/1?incarnation={run}", {}).status_code != 429
    assert worker.post(f"worker/logs/{run}/1/lines?incarnation={run}&offset=0", {}).status_code != 429


def test_a_limit_costs_most_requests_no_statement(minute: Minute) -> None:
    caller = Caller(make_tenant())

    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            caller.get("jobs/nothing")
        return len(queries)

    caller.get("me")
    assert {statements() for _ in range(50)} == {1}, "of the key"
    minute.pass_to(60)
    assert statements() == 2, "the first of a minute"


def test_a_database_in_trouble_fails_no_request_by_its_limit(
    minute: Minute, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(make_tenant())
    monkeypatch.setattr("jobs.access.limiter.TAKE", "SELECT FROM missing WHERE %s = %s")
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT before")
        monkeypatch.setattr(
            "jobs.access.limiter.logger.warning",
            lambda *_, **__: cursor.execute("ROLLBACK TO SAVEPOINT before"),
        )
        answer = caller.get("me")
    assert answer.status_code == 200 and "RateLimit" not in answer


def test_a_database_that_is_away_is_a_503_as_ever(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OperationalError("host db.internal is down")

    monkeypatch.setattr("jobs.access.api_keys.VALID_KEY.first", fail)
    refusal(caller.get("me"), 503)
    assert not Allowance.objects.exists()


def test_wrong_credentials_are_throttled_by_address(minute: Minute, settings: LazySettings) -> None:
    settings.WRONG_KEYS_PER_MINUTE = 5
    minute.pass_to(50)
    statuses = [stranger(key).status_code for key in (WRONG, "nonsense", "", WRONG, "bk_1", WRONG, "other")]
    assert statuses == [401] * 5 + [429] * 2
    answer = stranger()
    problem = refusal(answer, 429)
    assert problem["detail"] == "5 requests with wrong credentials came from this address in this minute"
    assert problem["hint"] == "try again in 10 s" and answer["Retry-After"] == "10"
    assert answer["RateLimit"] == '"address";r=0;t=10'
    assert stranger(address="203.0.113.10").status_code == 401
    minute.pass_to(60)
    assert stranger().status_code == 401


def test_a_valid_key_is_never_refused_for_the_wrong_ones_of_its_address(
    minute: Minute, settings: LazySettings
) -> None:
    settings.WRONG_KEYS_PER_MINUTE = 2
    assert [stranger().status_code for _ in range(4)] == [401, 401, 429, 429]
    assert stranger(Caller(make_tenant()).text).status_code == 200


def test_requests_without_credentials_are_not_counted(minute: Minute, settings: LazySettings) -> None:
    settings.WRONG_KEYS_PER_MINUTE = 1
    assert {Client().get("/api/v1/jobs").status_code for _ in range(5)} == {401}


def test_wrong_tokens_of_callbacks_count_as_wrong_keys(minute: Minute, settings: LazySettings) -> None:
    settings.WRONG_KEYS_PER_MINUTE = 2
    path = "/api/v1/runs/0197d2a4-5b00-7c3e-9f3a-2b1c8e5d4f60/complete"
    body = {"outcome": "succeeded"}

    def complete() -> int:
        headers = {"Authorization": "Bearer bkc_guessed"}
        return Client(headers=headers).post(path, body, content_type="application/json").status_code

    assert [complete() for _ in range(4)] == [401, 401, 429, 429]


def test_wrong_keys_on_addresses_of_workers_count_too(minute: Minute, settings: LazySettings) -> None:
    settings.WRONG_KEYS_PER_MINUTE = 1
    client = Client(headers={"Authorization": f"Bearer {WRONG}"})
    statuses = [client.post("/api/v1/worker/heartbeat").status_code for _ in range(3)]
    assert statuses == [401, 429, 429]


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("203.0.113.9", "203.0.113.10", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:203.0.113.9", "::ffff:203.0.113.10", False),
        ("::ffff:203.0.113.9", "203.0.113.9", True),
        ("", "unix:", True),
    ],
)
def test_ipv6_is_counted_by_network(
    minute: Minute, settings: LazySettings, one: str, other: str, together: bool
) -> None:
    settings.WRONG_KEYS_PER_MINUTE = 1
    assert stranger(address=one).status_code == 401
    assert stranger(address=other).status_code == (429 if together else 401)


@pytest.mark.parametrize(("proxies", "status"), [(0, 429), (1, 401)])
def test_a_forwarded_address_counts_if_a_proxy_of_ours_added_it(
    minute: Minute, settings: LazySettings, proxies: int, status: int
) -> None:
    settings.WRONG_KEYS_PER_MINUTE = 1
    settings.TRUSTED_PROXIES = proxies
    for client in ("198.51.100.1", "198.51.100.2"):
        answer = stranger(**{"X-Forwarded-For": f"made-up, {client}"})
    assert answer.status_code == status


def test_a_flood_of_addresses_does_not_displace_the_keys(minute: Minute, monkeypatch: Any) -> None:
    monkeypatch.setattr(request_limits.by_address, "_max_held", 10)
    caller = Caller(make_tenant())
    caller.get("me")
    for number in range(50):
        stranger(address=f"203.0.113.{number}")
    assert len(request_limits.by_address._held) == 10
    with CaptureQueriesContext(connection) as queries:
        caller.get("jobs/nothing")
    assert len(queries) == 1


def test_wrong_keys_may_be_any_number(minute: Minute, settings: LazySettings) -> None:
    settings.WRONG_KEYS_PER_MINUTE = 0
    assert {stranger().status_code for _ in range(5)} == {401}
    assert not Allowance.objects.exists()
