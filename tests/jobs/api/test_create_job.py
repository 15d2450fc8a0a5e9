"""Test POST /api/v1/jobs."""

import json
from datetime import timedelta
from typing import Any

import pytest

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.models import IdempotentRequest, Job, JobClock, JobVersion, Overlap, Pool
from jobs.spec.fields import FIELDS
from runs.models import JobGate
from tests.support.api_client import Caller, refusal
from tests.support.factories import TASK, job_spec, make_pool, make_tenant, make_worker, post_job

pytestmark = pytest.mark.django_db


def rows() -> tuple[int, ...]:
    """Everything a creation writes."""
    tables = (Job, JobVersion, JobClock, JobGate, IdempotentRequest)
    jobs = AuditEntry.objects.filter(object_type="job").count()
    return (*(table.objects.count() for table in tables), jobs)


@pytest.mark.parametrize("policy", Overlap.values)
def test_every_overlap_policy_is_taken_shown_and_gets_the_gate_it_needs(caller: Caller, policy: str) -> None:
    body = caller.post("jobs", job_spec(overlap=policy)).json()
    assert caller.get(f"jobs/{body['id']}").json()["overlap"] == body["overlap"] == policy
    assert JobGate.objects.filter(job_id=body["id"]).exists() == (policy not in ("skip", "allow_all"))


def test_an_unknown_overlap_policy_is_answered_with_the_known_ones(caller: Caller) -> None:
    error = refusal(caller.post("jobs", job_spec(overlap="buffer")), 400, "overlap")
    assert "buffer is not an overlap policy" in error["detail"].replace('"', "")
    assert all(policy in error["hint"] for policy in Overlap.values)


def test_a_one_time_job_is_given_in_local_time(caller: Caller) -> None:
    schedule = {"at": "2099-12-24T18:00", "timezone": "Europe/Berlin"}
    body = caller.post("jobs", job_spec(schedule=schedule)).json()
    assert body["schedule"] == {"at": "2099-12-24T18:00:00", "timezone": "Europe/Berlin"}
    assert body["next_run_at"] == "2099-12-24T17:00:00.000Z"
    assert body["schedule_description"] == "Once, at 2099-12-24 18:00:00, Europe/Berlin"
    again = caller.post("jobs", job_spec(schedule=body["schedule"])).json()
    assert again["next_run_at"] == body["next_run_at"]
    problem = refusal(caller.post("jobs", job_spec(schedule={"at": "2099-12-24T18:00"})), 400, "schedule.at")
    assert "timezone beside it" in problem["hint"]


@pytest.mark.parametrize(("known", "statements"), [(True, 13), (False, 15)])
def test_a_creation_takes_few_statements(
    caller: Caller, known: bool, statements: int, django_assert_num_queries: Any
) -> None:
    """Nothing is read back. All that workers know is read only if they do not know the target."""
    if known:
        make_worker(Pool.objects.get(), known_targets=[TASK])
    caller.post("jobs", job_spec())
    with django_assert_num_queries(statements):
        assert caller.post("jobs", job_spec(schedule={"every": 60})).status_code == 201


def test_a_creation_is_answered_with_what_is_stored(caller: Caller) -> None:
    kwargs = {
        "big": 1.5e15,
        "small": 1e-9,
        "whole": 10**30,
        "text": "é",
        "list": [1.0, None, {"b": 1, "a": 2}],
    }
    spec = job_spec(
        target={"kind": "celery", "task": TASK, "kwargs": kwargs}, retry={"base": 1.5}, tags={"b": "c"}
    )
    made = caller.post("jobs", spec).json()
    read = caller.get(made["links"]["self"]).json()
    assert {
        name: value for name, value in made.items() if name not in ("warnings", "estimated_start_at")
    } == {name: value for name, value in read.items() if name != "warnings"}


def test_a_job_is_created_with_its_defaults(caller: Caller) -> None:
    spec = job_spec(name="settle", schedule={"cron": "*/5 * * * *", "timezone": "America/New_York"})
    response = caller.post("jobs", spec)
    assert response.status_code == 201
    body = response.json()
    assert response["Location"] == body["links"]["self"] == f"/api/v1/jobs/{body['id']}"
    assert body["status"] == "active" and body["version"] == 1
    assert body["target"] == {"kind": "celery", "task": TASK, "args": [], "kwargs": {}}
    assert body["schedule"] == {"cron": "*/5 * * * *", "timezone": "America/New_York"}
    assert body["schedule_description"] == "Every 5 minutes, America/New_York"
    assert body["next_run_at"].endswith(":00.000Z") and body["estimated_start_at"] == body["next_run_at"]
    assert (body["priority"], body["pool"], body["timeout"], body["overlap"]) == (
        500,
        "default",
        "PT1H",
        "skip",
    )
    named: dict[str, list[str]] = {"permanent": [], "user": [], "transient": []}
    delays = {"backoff": "exponential", "base": "PT10S", "cap": "PT1H", "jitter": "full"}
    assert body["retry"] == {"max_attempts": 4, "max_losses": 3, **delays, **named}
    assert body["breaker"] is None
    assert body["catch_up"] == {"policy": "last", "window": "P1D"}
    assert body["max_concurrency"] is None and body["tags"] == {}


def test_every_field_comes_back_as_it_was_given(caller: Caller) -> None:
    spec = {
        "name": "nightly report",
        "description": "for the board",
        "target": {"kind": "command", "argv": ["report", "--all"], "env": {"LANG": "C"}},
        "schedule": {"every": "PT30S", "ends_at": "2100-01-01T00:00:00.000Z"},
        "priority": 0,
        "pool": "default",
        "timeout": "PT1M30S",
        "overlap": "allow_all",
        "catch_up": {"policy": "skip", "window": "PT1H"},
        "retry": {
            "max_attempts": 1,
            "backoff": "fixed",
            "base": "PT0.5S",
            "cap": "PT1S",
            "jitter": "none",
            "max_losses": 2,
            "permanent": ["HTTP 410", "payments.errors.CardDeclined"],
            "transient": ["HTTP 404"],
            "user": ["exit 2"],
        },
        "breaker": {"failures": 5, "cooldown": "PT1M"},
        "max_concurrency": 3,
        "tags": {"team": "finance"},
    }
    body = caller.post("jobs", spec).json()
    assert {name: body[name] for name in spec} == spec
    assert caller.get(f"jobs/{body['id']}").json()["schedule"] == spec["schedule"]


def test_what_is_shown_can_be_posted_again(caller: Caller) -> None:
    body = caller.post("jobs", job_spec(schedule={"every": 90})).json()
    read_only = (
        "id",
        "status",
        "status_reason",
        "status_at",
        "paused_until",
        "missed_so_far",
        "warnings",
        "version",
        "next_run_at",
        "estimated_start_at",
        "schedule_description",
        "created_at",
        "updated_at",
        "links",
    )
    copy = {name: value for name, value in body.items() if name not in read_only}
    assert caller.post("jobs", {**copy, "name": "copy"}).status_code == 201


def test_durations_are_read_as_seconds_too(caller: Caller) -> None:
    body = caller.post("jobs", job_spec(timeout=90, schedule={"every": 5})).json()
    assert body["timeout"] == "PT1M30S" and body["schedule"] == {"every": "PT5S"}


def test_a_job_without_a_schedule_waits_to_be_asked(caller: Caller) -> None:
    body = caller.post("jobs", job_spec()).json()
    assert body["next_run_at"] is None and body["schedule_description"] == "On demand"


def test_an_http_target_gets_its_defaults(caller: Caller) -> None:
    body = caller.post("jobs", job_spec(target={"kind": "http", "url": "https://example.com/x"})).json()
    assert body["target"]["method"] == "GET" and 200 in body["target"]["expect"]
    posted = {"kind": "http", "url": "https://example.com/x", "body": {"a": 1}}
    assert caller.post("jobs", job_spec(target=posted)).json()["target"]["method"] == "POST"


def test_a_limit_makes_the_gate(caller: Caller) -> None:
    body = caller.post("jobs", job_spec(max_concurrency=2)).json()
    assert JobGate.objects.get(job_id=body["id"]).max_running == 2


def test_the_creation_is_audited_with_its_key(caller: Caller) -> None:
    body = caller.post("jobs", job_spec(), X_Request_Id="from-the-caller").json()
    entry = AuditEntry.objects.get(object_id=body["id"])
    assert (entry.action, entry.actor_kind, entry.actor) == ("job.created", "key", str(caller.key))
    assert entry.tenant_id == caller.tenant.pk and entry.request_id == "from-the-caller"
    assert entry.address == "127.0.0.1" and entry.before is None
    assert entry.after is not None and entry.after["name"] == body["name"]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("unknown zone", {"schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berln"}}, "schedule.timezone"),
    ("bad cron", {"schedule": {"cron": "61 * * * *"}}, "schedule.cron"),
    ("cron of four fields", {"schedule": {"cron": "* * * *"}}, "schedule.cron"),
    ("interval under a second", {"schedule": {"every": 0.5}}, "schedule.every"),
    ("interval of nonsense", {"schedule": {"every": "often"}}, "schedule.every"),
    ("one time in the past", {"schedule": {"at": "2001-01-01T00:00:00Z"}}, "schedule.at"),
    ("one time without an offset", {"schedule": {"at": "2099-01-01T00:00:00"}}, "schedule.at"),
    (
        "schedule that is over",
        {"schedule": {"every": 60, "ends_at": "2001-01-01T00:00:00Z"}},
        "schedule.ends_at",
    ),
    ("two kinds of schedule", {"schedule": {"every": 60, "cron": "* * * * *"}}, "schedule"),
    ("schedule of a wrong type", {"schedule": "hourly"}, "schedule"),
    ("unknown field of the schedule", {"schedule": {"cron": "* * * * *", "zone": "UTC"}}, "schedule.zone"),
    ("unknown pool", {"pool": "defualt"}, "pool"),
    ("pool of a wrong type", {"pool": 7}, "pool"),
    ("no kind of target", {"target": {"task": TASK}}, "target.kind"),
    ("unknown kind of target", {"target": {"kind": "lambda"}}, "target.kind"),
    ("container", {"target": {"kind": "container", "image": "alpine"}}, "target.kind"),
    ("target of a wrong type", {"target": TASK}, "target"),
    ("task the pool does not export", {"target": {"kind": "celery", "task": "tests.suceeds"}}, "target.task"),
    ("task of the platform", {"target": {"kind": "celery", "task": "celery.backend_cleanup"}}, "target.task"),
    ("args of a wrong type", {"target": {"kind": "celery", "task": TASK, "args": {}}}, "target.args"),
    ("kwargs of a wrong type", {"target": {"kind": "celery", "task": TASK, "kwargs": []}}, "target.kwargs"),
    ("unknown field of the target", {"target": {"kind": "celery", "task": TASK, "arg": []}}, "target.arg"),
    ("no URL", {"target": {"kind": "http"}}, "target.url"),
    ("URL without a host", {"target": {"kind": "http", "url": "https:///x"}}, "target.url"),
    ("URL that is not ASCII", {"target": {"kind": "http", "url": "http://ex\u0430mple.com/"}}, "target.url"),
    ("limits of another type", {"target": {"kind": "command", "argv": ["a"], "limits": 0}}, "target.limits"),
    ("errors of another type", {"retry": {"permanent": False}}, "retry.permanent"),
    ("URL of another scheme", {"target": {"kind": "http", "url": "file:///etc/passwd"}}, "target.url"),
    ("URL with a bad port", {"target": {"kind": "http", "url": "http://a:99999/"}}, "target.url"),
    ("URL with a login", {"target": {"kind": "http", "url": "http://u:p@a.example/"}}, "target.url"),
    (
        "unknown method",
        {"target": {"kind": "http", "url": "http://a.example", "method": "BREW"}},
        "target.method",
    ),
    (
        "header with a line break",
        {"target": {"kind": "http", "url": "http://a.example", "headers": {"X-A": "b\r\nc: d"}}},
        "target.headers.X-A",
    ),
    (
        "header of the call itself",
        {"target": {"kind": "http", "url": "http://a.example", "headers": {"Host": "b"}}},
        "target.headers.Host",
    ),
    (
        "expect of a wrong type",
        {"target": {"kind": "http", "url": "http://a.example", "expect": 200}},
        "target.expect",
    ),
    ("no command", {"target": {"kind": "command", "argv": []}}, "target.argv"),
    ("command as one string", {"target": {"kind": "command", "argv": "rm -rf"}}, "target.argv"),
    ("bad variable", {"target": {"kind": "command", "argv": ["a"], "env": {"A-B": "c"}}}, "target.env.A-B"),
    ("variable of a number", {"target": {"kind": "command", "argv": ["a"], "env": {"A": 1}}}, "target.env.A"),
    ("payload over 64 KiB", {"target": {"kind": "celery", "task": TASK, "args": ["x" * 65536]}}, "target"),
    ("priority too high", {"priority": 1001}, "priority"),
    ("priority below zero", {"priority": -1}, "priority"),
    ("priority of a string", {"priority": "500"}, "priority"),
    ("priority of a boolean", {"priority": True}, "priority"),
    ("priority of a fraction", {"priority": 1.5}, "priority"),
    ("name missing", {"name": None}, "name"),
    ("name empty", {"name": ""}, "name"),
    ("name too long", {"name": "x" * 121}, "name"),
    ("name with a line break", {"name": "a\nb"}, "name"),
    ("description of a wrong type", {"description": 1}, "description"),
    ("timeout too short", {"timeout": "PT0.1S"}, "timeout"),
    ("timeout too long", {"timeout": "P31D"}, "timeout"),
    ("timeout of nonsense", {"timeout": "soon"}, "timeout"),
    ("unknown overlap", {"overlap": "maybe"}, "overlap"),
    ("unknown catch-up", {"catch_up": {"policy": "every"}}, "catch_up.policy"),
    ("catch-up of too many", {"catch_up": {"policy": "all", "max": 10_001}}, "catch_up.max"),
    ("catch-up without pace", {"catch_up": {"policy": "all", "per_minute": 0}}, "catch_up.per_minute"),
    ("catch-up at random", {"catch_up": {"policy": "all", "order": "random"}}, "catch_up.order"),
    ("a pace for the last alone", {"catch_up": {"policy": "last", "per_minute": 5}}, "catch_up.per_minute"),
    (
        "a calendar nobody knows",
        {"schedule": {"every": 60, "calendar": {"name": "us"}}},
        "schedule.calendar.name",
    ),
    ("a window beyond a day", {"schedule": {"every": 60, "jitter": "P2D"}}, "schedule.jitter"),
    ("catch-up beyond the partitions", {"catch_up": {"policy": "last", "window": "P60D"}}, "catch_up.window"),
    ("retry without an attempt", {"retry": {"max_attempts": 0}}, "retry.max_attempts"),
    ("unknown back-off", {"retry": {"backoff": "never"}}, "retry.backoff"),
    ("unknown jitter", {"retry": {"jitter": "half"}}, "retry.jitter"),
    ("no lost worker at all", {"retry": {"max_losses": 0}}, "retry.max_losses"),
    ("a status nobody answers", {"retry": {"permanent": ["HTTP 600"]}}, "retry.permanent"),
    ("an error by a sentence", {"retry": {"user": ["no such card"]}}, "retry.user"),
    ("an error of two kinds", {"retry": {"user": ["E"], "transient": ["E"]}}, "retry.transient"),
    ("an error by number", {"retry": {"transient": [404]}}, "retry.transient"),
    ("errors in no list", {"retry": {"transient": "HTTP 404"}}, "retry.transient"),
    ("a breaker without a number", {"breaker": {"cooldown": "PT1M"}}, "breaker.failures"),
    ("a breaker that never opens", {"breaker": {"failures": 0}}, "breaker.failures"),
    ("a breaker that never cools", {"breaker": {"failures": 1, "cooldown": "P8D"}}, "breaker.cooldown"),
    ("a breaker of another kind", {"breaker": {"failures": 1, "threshold": 2}}, "breaker.threshold"),
    ("a breaker that is a number", {"breaker": 5}, "breaker"),
    ("cap below base", {"retry": {"base": "PT1M", "cap": "PT1S"}}, "retry.cap"),
    ("unknown field of retry", {"retry": {"attempts": 3}}, "retry.attempts"),
    ("no room at all", {"max_concurrency": 0}, "max_concurrency"),
    ("tags of a wrong type", {"tags": ["a"]}, "tags"),
    ("tag of a number", {"tags": {"team": 1}}, "tags.team"),
    ("tag with an equals sign", {"tags": {"team=a": "b"}}, "tags"),
    ("tag of two lines", {"tags": {"team": "a\nb"}}, "tags.team"),
    ("resources", {"resources": {"cpu": 1}}, "resources"),
    ("dependencies", {"depends_on": [{"job": "x", "on": "success"}]}, "depends_on"),
    ("unknown field", {"prioritty": 5}, "prioritty"),
    ("read-only field", {"status": "paused"}, "status"),
    ("NUL", {"description": "a\x00b"}, "description"),
    ("half a surrogate pair", {"tags": {"a": "\ud800"}}, "tags.a"),
]


@pytest.mark.parametrize(("changes", "field"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_refused_by_the_name_of_its_field(
    caller: Caller, changes: dict[str, Any], field: str
) -> None:
    before = rows()
    problem = refusal(caller.post("jobs", {**job_spec(), **changes}, Idempotency_Key="k"), 400, field)
    assert problem["hint"] is not None or field in ("name", "description", "tags.a")
    assert rows() == before


def test_a_hint_names_what_was_meant(caller: Caller) -> None:
    def hint(**changes: Any) -> str:
        return str(caller.post("jobs", job_spec(**changes)).json()["hint"])

    assert "default" in hint(pool="defualt")
    assert TASK in hint(target={"kind": "celery", "task": "tests.suceeds"})
    assert "Europe/Berlin" in hint(schedule={"cron": "0 2 * * *", "timezone": "Europe/Berln"})
    assert "priority" in hint(prioritty=5)
    assert "pause" in hint(status="paused")


def test_a_hint_names_every_field_of_a_job(caller: Caller) -> None:
    hint = refusal(caller.post("jobs", job_spec(interval=5)), 400, "interval")["hint"]
    assert all(name in hint for name in FIELDS)


def test_all_mistakes_are_named_at_once(caller: Caller) -> None:
    response = caller.post("jobs", {"priority": 2000, "overlap": "x", "colour": "red"})
    errors = refusal(response, 400)["errors"]
    assert {error["field"] for error in errors} == {"priority", "overlap", "colour", "name", "target"}


def test_platform_tasks_are_refused_even_when_exported(caller: Caller) -> None:
    make_pool(slug="careless", exported_tasks=["beatkeeper.run", "celery.chord_unlock"])
    for task in ("beatkeeper.run", "celery.chord_unlock"):
        target = {"kind": "celery", "task": task}
        problem = refusal(caller.post("jobs", job_spec(pool="careless", target=target)), 400, "target.task")
        assert task not in (problem["hint"] or "")


def test_a_pool_that_is_not_open_looks_like_none(caller: Caller) -> None:
    closed = make_pool(slug="secret-pool", shared=False)
    refused = refusal(caller.post("jobs", job_spec(pool="secret-pool")), 400, "pool")
    missing = refusal(caller.post("jobs", job_spec(pool="secret-pond")), 400, "pool")
    assert refused["detail"].replace("pool", "") == missing["detail"].replace("pond", "").replace("pool", "")
    assert refused["code"] == missing["code"] and "secret" not in missing["hint"]
    closed.tenants.add(caller.tenant)
    assert caller.post("jobs", job_spec(pool="secret-pool")).status_code == 201


def test_a_kind_the_pool_does_not_run_is_refused(caller: Caller) -> None:
    make_pool(slug="tasks-only", exported_kinds=[])
    spec = job_spec(pool="tasks-only", target={"kind": "command", "argv": ["ls"]})
    problem = refusal(caller.post("jobs", spec), 400, "target.kind")
    assert "celery" in problem["hint"]


def test_a_name_is_given_once_in_a_tenant(caller: Caller) -> None:
    settle = post_job(caller.tenant, name="settle")
    post_job(make_tenant(), name="taken elsewhere")
    before = rows()
    problem = refusal(caller.post("jobs", job_spec(name="settle")), 409, "name")
    assert problem["code"] == "duplicate_name" and rows() == before
    assert problem["link"] == f"/api/v1/jobs/{settle.pk}"
    assert caller.post("jobs", job_spec(name="taken elsewhere")).status_code == 201


def test_the_name_of_a_deleted_job_is_free_again(caller: Caller) -> None:
    first = caller.post("jobs", job_spec(name="settle")).json()
    caller.delete(f"jobs/{first['id']}")
    assert caller.post("jobs", job_spec(name="settle")).status_code == 201


@pytest.mark.parametrize(
    "body", ["", "{", "[1, 2", '{"a": NaN}', "\xff\xfe", "{'a': 1}", '"' + "[" * 100_000]
)
def test_broken_json_is_refused(caller: Caller, body: str) -> None:
    before = rows()
    problem = refusal(caller.post("jobs", body.encode("latin-1")), 400)
    assert problem["code"] in ("malformed", "required") and rows() == before


def test_a_very_deep_body_is_refused(caller: Caller) -> None:
    refusal(caller.post("jobs", "[" * 100_000), 400)


@pytest.mark.parametrize(
    "body",
    [
        {f"prioritz{number}": 1 for number in range(4000)},
        {"tags": ["\x00"] * 4000},
        {"name": "settle", "target": {"kind": "http", **{f"urk{number}": 1 for number in range(4000)}}},
    ],
)
def test_an_answer_does_not_grow_with_the_mistakes(caller: Caller, body: Any) -> None:
    answer = caller.post("jobs", body)
    assert len(refusal(answer, 400)["errors"]) == 20
    assert len(answer.content) < 10_000


def test_a_body_nested_too_deeply_is_refused_by_its_field(caller: Caller) -> None:
    deep = "[" * 150 + "]" * 150
    problem = refusal(caller.post("jobs", '{"tags": ' + deep + "}"), 400)
    assert problem["code"] == "too_deep" and problem["field"].startswith("tags[0]")


@pytest.mark.parametrize("body", [[], "settle", 5, None, True])
def test_a_body_that_is_no_object_is_refused(caller: Caller, body: Any) -> None:
    problem = refusal(caller.post("jobs", json.dumps(body)), 400)
    assert "object" in problem["detail"] or problem["code"] == "required"


def test_a_number_beyond_all_bounds_is_refused(caller: Caller) -> None:
    text = '{"name": "a", "target": {"kind": "celery", "task": "tests.succeeds", "args": [1e999]}}'
    refusal(caller.post("jobs", text), 400, "target.args[0]")


def test_an_overlong_body_is_refused(caller: Caller) -> None:
    body = '{"name": "' + "x" * (1024 * 1024) + '"}'
    assert refusal(caller.post("jobs", body), 413)["code"] == "body_too_large"


def test_another_content_type_is_refused(caller: Caller) -> None:
    response = caller.client.post("/api/v1/jobs", {"name": "settle"})
    assert refusal(response, 415)["code"] == "unsupported_media_type"


def test_a_one_time_job_is_due_at_its_instant(caller: Caller) -> None:
    at = (database_now() + timedelta(seconds=2)).isoformat().replace("+00:00", "Z")
    body = caller.post("jobs", job_spec(schedule={"at": at})).json()
    assert body["next_run_at"] == body["schedule"]["at"]


def test_an_idempotency_key_creates_once(caller: Caller) -> None:
    spec = job_spec()
    first = caller.post("jobs", spec, Idempotency_Key="one")
    again = caller.post("jobs", spec, Idempotency_Key="one")
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json() and first["Location"] == again["Location"]
    assert "Idempotency-Replayed" not in first and again["Idempotency-Replayed"] == "true"
    assert Job.objects.count() == 1 and AuditEntry.objects.filter(action="job.created").count() == 1


def test_an_idempotency_key_is_not_taken_for_another_request(caller: Caller) -> None:
    caller.post("jobs", job_spec(), Idempotency_Key="one")
    problem = refusal(caller.post("jobs", job_spec(), Idempotency_Key="one"), 422, "Idempotency-Key")
    assert problem["code"] == "idempotency_key_reused" and Job.objects.count() == 1


def test_a_refused_request_leaves_its_key_free(caller: Caller) -> None:
    spec = job_spec()
    refusal(caller.post("jobs", {**spec, "priority": 2000}, Idempotency_Key="one"), 400)
    assert caller.post("jobs", spec, Idempotency_Key="one").status_code == 201


def test_keys_of_two_tenants_do_not_meet(caller: Caller) -> None:
    other = Caller(make_tenant())
    assert caller.post("jobs", job_spec(), Idempotency_Key="one").status_code == 201
    assert other.post("jobs", job_spec(), Idempotency_Key="one").status_code == 201


def test_an_unusable_idempotency_key_is_refused(caller: Caller) -> None:
    refusal(caller.post("jobs", job_spec(), Idempotency_Key="x" * 201), 400, "Idempotency-Key")


def test_secrets_of_a_target_are_masked_in_the_audit(caller: Caller) -> None:
    headers = {"Authorization": "Bearer hush-hush", "X-Plain": "seen"}
    target = {"kind": "http", "url": "https://a.example/?token=hush-hush", "headers": headers}
    body = caller.post("jobs", job_spec(target=target)).json()
    after = AuditEntry.objects.get(object_id=body["id"]).after
    assert after is not None and "hush-hush" not in str(after)
    assert after["target"]["headers"]["X-Plain"] == "seen"
