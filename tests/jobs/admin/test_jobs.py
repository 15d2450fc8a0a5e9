"""Jobs in the admin: the form asks the service, buttons go by POST, everything is audited."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from auditlog.models import AuditEntry
from auditlog.redaction import MASK
from jobs.access import pools
from jobs.access.api_keys import KEY_TEXT
from jobs.calendars.service import create_calendar
from jobs.models import ApiKey, Job, JobStatus, Membership, Pool, Role, Tenant
from jobs.services.definition import create_job, edit_job
from jobs.services.locking import edition
from jobs.services.status import pause_job
from runs.models import Run
from tests.support.factories import make_pool, make_tenant

pytestmark = pytest.mark.django_db

HTTP = {
    "kind": "http",
    "method": "GET",
    "url": "https://example.com/a",
    "headers": {"Authorization": "Bearer xyzzy-4711"},
}


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant(slug="payments")


@pytest.fixture
def pool() -> Pool:
    return make_pool(slug="default")


@pytest.fixture
def job(tenant: Tenant, pool: Pool) -> Job:
    spec = {"name": "settle", "target": HTTP, "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}}
    return create_job(tenant, spec)


def page(name: str, *arguments: Any) -> str:
    return reverse(f"admin:beatkeeper_jobs_{name}", args=arguments)


def filled(pool: Pool, **changes: Any) -> dict[str, Any]:
    """Return what a browser sends for the form as it is first shown, with some fields filled in."""
    fields = {
        "name": "settle",
        "description": "",
        "pool": pool.pk,
        "priority": "500",
        "tags": "{}",
        "target": json.dumps(HTTP),
        "schedule_kind": "cron",
        "cron": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "every": "",
        "at": "",
        "begins_at": "",
        "ends_at": "",
        "calendar": "",
        "on_closed": "exclude",
        "jitter": "",
        "timeout": "PT1H",
        "overlap": "skip",
        "max_concurrency": "",
        "retry_max_attempts": "4",
        "retry_backoff": "exponential",
        "retry_base": "PT10S",
        "retry_cap": "PT1H",
        "retry_jitter": "full",
        "retry_max_losses": "3",
        "retry_permanent": "",
        "retry_transient": "",
        "retry_user": "",
        "breaker_failures": "",
        "breaker_cooldown": "PT5M",
        "catch_up_policy": "last",
        "catch_up_window": "P1D",
        "catch_up_max": "1000",
        "catch_up_per_minute": "60",
        "catch_up_order": "oldest",
    }
    return {**fields, **changes}


def shown(job: Job, pool: Pool, **changes: Any) -> dict[str, Any]:
    """Fill the form of an existing job, in which the secret is masked."""
    masked = {**job.spec.target, "headers": {"Authorization": MASK}}
    return filled(pool, **{"seen": edition(job), "target": json.dumps(masked), **changes})


def messages_of(response: Any) -> str:
    return " ".join(str(message) for message in response.context["messages"])


def press(staff: Client, job: Job, button: str, reason: str = "") -> Any:
    url = f"{page('job_change', job.pk).removesuffix('change/')}{button}/"
    return staff.post(url, {"_form_submitted": "True", "reason": reason}, follow=True)


def test_a_job_is_created_through_the_service(staff: Client, tenant: Tenant, pool: Pool) -> None:
    answer = staff.post(page("job_add"), {**filled(pool), "tenant": tenant.pk})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    job = Job.objects.get(tenant=tenant)
    assert job.spec.schedule == {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}
    assert job.spec.target["headers"] == {"Authorization": "Bearer xyzzy-4711"}
    assert job.clock.next_run_at is not None
    entry = AuditEntry.objects.get(action="job.created")
    assert (entry.actor_kind, entry.actor, entry.object_id) == ("user", "olga", str(job.pk))


def test_a_one_time_job_is_made_in_local_time(staff: Client, tenant: Tenant, pool: Pool) -> None:
    given = filled(pool, schedule_kind="at", at="2099-12-24 18:00")
    answer = staff.post(page("job_add"), {**given, "tenant": tenant.pk})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    job = Job.objects.get(tenant=tenant)
    assert job.spec.schedule == {"at": "2099-12-24T18:00:00", "timezone": "Europe/Berlin"}
    form = staff.get(page("job_change", job.pk)).context["adminform"].form
    assert (form["at"].value(), form["timezone"].value()) == ("2099-12-24T18:00:00", "Europe/Berlin")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"cron": "99 * * * *"}, "cron", "99"),
        ({"timezone": "Mars/Base"}, "timezone", "not a known time zone"),
        ({"schedule_kind": "every", "every": "PT0.1S"}, "every", "shorter than 1 second"),
        ({"schedule_kind": "at", "at": "2020-01-01T00:00:00Z"}, "at", "past"),
        ({"schedule_kind": "at", "at": ""}, "at", ""),
        ({"timeout": "soon"}, "timeout", "not a duration"),
        ({"priority": "1001"}, "priority", "out of range"),
        ({"priority": ""}, "priority", ""),
        ({"retry_base": "PT9H", "retry_cap": "PT1H"}, "retry_cap", "below the first one"),
        ({"retry_max_attempts": "0"}, "retry_max_attempts", "out of range"),
        ({"retry_max_losses": "0"}, "retry_max_losses", "out of range"),
        ({"retry_permanent": "ValueError, HTTP 9xx"}, "retry_permanent", "not the name of an error"),
        ({"retry_user": "E", "retry_permanent": "E"}, "retry_user", "permanent already"),
        ({"breaker_failures": "0"}, "breaker_failures", "out of range"),
        ({"breaker_failures": "5", "breaker_cooldown": ""}, "breaker_cooldown", "not a duration"),
        ({"target": '{"kind": "http", "url": "ftp://x"}'}, "target", "url: "),
        ({"target": '{"kind": "celery", "task": "unheard.of"}'}, "target", "does not export"),
        ({"target": "{"}, "target", "valid JSON"),
        ({"target": ""}, "target", "required"),
        ({"tags": "[1]"}, "tags", "not an object"),
        ({"name": ""}, "name", "required"),
        ({"name": " settle"}, "name", "not a name"),
        ({"max_concurrency": "0"}, "max_concurrency", "out of range"),
        ({"catch_up_window": "P400D"}, "catch_up_window", "out of range"),
    ],
)
def test_what_the_service_refuses_is_reported_at_its_field(
    staff: Client, tenant: Tenant, pool: Pool, changes: dict[str, str], field: str, words: str
) -> None:
    answer = staff.post(page("job_add"), {**filled(pool, **changes), "tenant": tenant.pk})
    assert answer.status_code == 200
    errors = answer.context["adminform"].form.errors
    assert list(errors) == [field], errors
    assert words in " ".join(errors[field])
    assert not Job.objects.exists() and not AuditEntry.objects.exists()


DEEP = "[" * 60 + "]" * 60
TOO_DEEP_TO_READ = "[" * 5000


@pytest.mark.parametrize(
    "value", [r'"\u0000"', r'"\ud800"', "Infinity", "NaN", "1e999", DEEP, TOO_DEEP_TO_READ]
)
def test_json_that_cannot_be_kept_is_reported_at_its_field(
    staff: Client, tenant: Tenant, pool: Pool, value: str
) -> None:
    texts = {
        "target": f'{{"kind": "command", "argv": ["true"], "env": {{"A": {value}}}}}',
        "tags": f'{{"a": {value}}}',
    }
    answer = staff.post(page("job_add"), {**filled(pool, **texts), "tenant": tenant.pk})
    assert answer.status_code == 200
    assert set(answer.context["adminform"].form.errors) == {"target", "tags"}


@pytest.mark.parametrize("query", ["status__exact=%00", "q=a&q=%00", "tenant__id__exact=%00", f"p={10**20}"])
def test_a_list_asked_for_nonsense_says_so(staff: Client, job: Job, query: str) -> None:
    answer = staff.get(f"{page('job_changelist')}?{query}")
    assert (answer.status_code, answer["Location"]) == (302, f"{page('job_changelist')}?e=1")


def test_a_search_for_nul_finds_nothing(staff: Client, tenant: Tenant) -> None:
    asked = {"app_label": "beatkeeper_jobs", "model_name": "job", "field_name": "tenant", "term": "\x00"}
    assert staff.get(reverse("admin:autocomplete"), asked).json()["results"] == []
    users = reverse("admin:auth_user_changelist")
    assert staff.get(users, {"username__exact": "\x00"})["Location"] == f"{users}?e=1"


def test_a_name_that_is_taken_is_reported_at_the_name(staff: Client, job: Job, pool: Pool) -> None:
    answer = staff.post(page("job_add"), {**filled(pool), "tenant": job.tenant_id})
    assert "already" in " ".join(answer.context["adminform"].form.errors["name"])


def test_an_edit_changes_only_what_was_changed(staff: Client, job: Job, pool: Pool) -> None:
    planned = job.clock.next_run_at
    answer = staff.post(page("job_change", job.pk), shown(job, pool, priority="700"))
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    job.refresh_from_db()
    assert (job.priority, job.version, job.clock.next_run_at) == (700, 2, planned)
    assert AuditEntry.objects.get(action="job.edited").after == {"priority": 700, "version": 2}


def test_a_calendar_a_window_and_what_to_make_up_for(
    staff: Client, job: Job, pool: Pool, tenant: Tenant
) -> None:
    create_calendar(tenant, {"name": "holidays", "dates": ["2099-12-25"]})
    changes = {
        "calendar": "holidays",
        "on_closed": "next",
        "jitter": "PT5M",
        "catch_up_policy": "all",
        "catch_up_max": "20",
        "catch_up_order": "newest",
    }
    answer = staff.post(page("job_change", job.pk), shown(job, pool, **changes))
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    job.refresh_from_db()
    spec: Any = job.spec
    assert spec.schedule["calendar"] == {"name": "holidays", "on_closed": "next"}
    assert spec.schedule["jitter"] == 300 and spec.calendar.name == "holidays"
    assert spec.catch_up == {
        "policy": "all",
        "window": 86_400.0,
        "max": 20,
        "per_minute": 60,
        "order": "newest",
    }
    again = staff.post(page("job_change", job.pk), shown(job, pool, **changes))
    assert again.status_code == 302
    job.refresh_from_db()
    assert job.version == 2
    page_text = staff.get(page("job_change", job.pk)).content.decode()
    assert "moved to the next open day when holidays is closed, beginning within 5 minutes" in page_text


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"calendar": "holidays"}, "calendar", "there is no calendar"),
        ({"jitter": "P2D"}, "jitter", "not from 0 to a day"),
        ({"catch_up_policy": "all", "catch_up_max": "0"}, "catch_up_max", "out of range"),
    ],
)
def test_what_is_wrong_with_them_is_reported_at_its_field(
    staff: Client, job: Job, pool: Pool, changes: dict[str, str], field: str, said: str
) -> None:
    answer = staff.post(page("job_change", job.pk), shown(job, pool, **changes))
    assert said in str(answer.context["adminform"].form.errors[field]).lower()


def test_an_interval_that_cannot_be_moved_is_reported_at_its_field(
    staff: Client, job: Job, pool: Pool, tenant: Tenant
) -> None:
    create_calendar(tenant, {"name": "holidays"})
    changes = {"schedule_kind": "every", "every": "PT1H", "calendar": "holidays", "on_closed": "next"}
    answer = staff.post(page("job_change", job.pk), shown(job, pool, **changes))
    assert "no time on the clock" in str(answer.context["adminform"].form.errors["on_closed"])


def test_an_edit_of_the_spec_writes_a_version(staff: Client, job: Job, pool: Pool) -> None:
    staff.post(
        page("job_change", job.pk), shown(job, pool, schedule_kind="every", every="PT30S", timeout="PT2M")
    )
    job.refresh_from_db()
    assert job.version == 2
    assert job.spec.schedule == {"every": 30}
    assert job.spec.timeout_ms == 120_000
    assert job.versions.get(version=1).schedule == {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}


def test_saving_without_a_change_leaves_no_trace(staff: Client, job: Job, pool: Pool) -> None:
    before = AuditEntry.objects.count()
    staff.post(page("job_change", job.pk), shown(job, pool))
    job.refresh_from_db()
    assert job.version == 1 and AuditEntry.objects.count() == before


def test_a_stale_form_puts_nothing_back(staff: Client, job: Job, pool: Pool) -> None:
    stale = shown(job, pool, description="only this was changed")
    assert stale["seen"] in staff.get(page("job_change", job.pk)).content.decode()
    changes: list[Callable[[], Job]] = [
        lambda: edit_job(job, {"schedule": {"every": 60}}),
        lambda: pause_job(job),
    ]
    for change in changes:
        change()
        answer = staff.post(page("job_change", job.pk), stale)
        assert answer.status_code == 200
        assert b"System has changed the job at" in answer.content
        job.refresh_from_db()
        assert job.spec.schedule == {"every": 60} and job.description == ""
        stale = shown(job, pool, schedule_kind="every", every="PT1M", description="only this was changed")
    answer = staff.post(page("job_change", job.pk), {**stale, "seen": edition(job)})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    job.refresh_from_db()
    assert (job.description, job.spec.schedule) == ("only this was changed", {"every": 60})


def test_no_page_shows_a_secret_of_a_target(staff: Client, job: Job) -> None:
    version = job.spec
    for url in (page("job_changelist"), page("job_change", job.pk), page("jobversion_change", version.pk)):
        answer = staff.get(url)
        assert answer.status_code == 200 and b"xyzzy-4711" not in answer.content


def test_a_masked_secret_survives_an_edit_of_the_same_target(staff: Client, job: Job, pool: Pool) -> None:
    target = {
        **job.spec.target,
        "url": "https://example.com/b",
        "headers": {"Authorization": MASK, "X-A": "1"},
    }
    answer = staff.post(page("job_change", job.pk), shown(job, pool, target=json.dumps(target)))
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    job.refresh_from_db()
    assert job.spec.target["headers"] == {"Authorization": "Bearer xyzzy-4711", "X-A": "1"}


def test_a_masked_secret_never_goes_to_another_host(staff: Client, job: Job, pool: Pool) -> None:
    target = {**job.spec.target, "url": "https://evil.example/", "headers": {"Authorization": MASK}}
    answer = staff.post(page("job_change", job.pk), shown(job, pool, target=json.dumps(target)))
    assert "write the secret itself" in " ".join(answer.context["adminform"].form.errors["target"])
    job.refresh_from_db()
    assert job.version == 1


def test_a_new_secret_may_look_like_anything_but_the_mask(staff: Client, tenant: Tenant, pool: Pool) -> None:
    for secret, status in ((f"{MASK}x", 302), (MASK, 200)):
        target = {"kind": "command", "argv": ["true"], "env": {"TOKEN": secret}}
        fields = {**filled(pool, target=json.dumps(target), name=str(status)), "tenant": tenant.pk}
        answer = staff.post(page("job_add"), fields)
        assert answer.status_code == status, answer.context["adminform"].form.errors


def test_a_text_with_a_masked_part_is_not_kept_as_it_is_shown(staff: Client, job: Job, pool: Pool) -> None:
    spec: dict[str, Any] = {"kind": "command", "argv": ["psql", "host=a password=xyzzy"], "env": {}}
    job = edit_job(job, {"target": spec})
    target_column = {**spec, "argv": ["psql", f"host=a password={MASK}"]}
    answer = staff.post(page("job_change", job.pk), shown(job, pool, target=json.dumps(target_column)))
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    job.refresh_from_db()
    changed = {**spec, "argv": ["psql", f"host=b password={MASK}"]}
    answer = staff.post(page("job_change", job.pk), shown(job, pool, target=json.dumps(changed)))
    assert "write the secret itself" in " ".join(answer.context["adminform"].form.errors["target"])
    job.refresh_from_db()
    assert job.spec.target == spec


def test_the_page_of_a_job_shows_its_next_five_firings(staff: Client, job: Job) -> None:
    answer = staff.get(page("job_change", job.pk))
    assert len(answer.context["firings"]) == 5
    assert answer.context["words"] == "At 03:00 every day, Europe/Berlin"


def test_pause_and_resume_by_button(staff: Client, job: Job) -> None:
    press(staff, job, "pause", "holidays")
    job.refresh_from_db()
    assert (job.status, job.status_reason, job.clock.next_run_at) == (JobStatus.PAUSED, "holidays", None)
    press(staff, job, "resume")
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE and job.clock.next_run_at is not None
    assert list(AuditEntry.objects.order_by("id").values_list("action", "actor"))[-2:] == [
        ("job.paused", "olga"),
        ("job.resumed", "olga"),
    ]


def test_a_get_of_a_button_only_asks(staff: Client, job: Job) -> None:
    for button in ("pause", "cancel", "delete", "run_now"):
        answer = staff.get(f"{page('job_change', job.pk).removesuffix('change/')}{button}/")
        assert answer.status_code == 200 and b"reason" in answer.content
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE and job.deleted_at is None and not Run.objects.exists()


def test_run_now_leads_to_the_page_of_the_run(staff: Client, job: Job) -> None:
    answer = press(staff, job, "run_now", "just to see")
    run = Run.objects.get()
    assert answer.redirect_chain[-1][0].endswith(f"{run.pk}/change/")
    assert AuditEntry.objects.get(action="run.requested").reason == "just to see"


def test_cancel_is_refused_nowhere_and_buttons_that_make_no_sense_are_gone(staff: Client, job: Job) -> None:
    press(staff, job, "cancel", "wrong")
    job.refresh_from_db()
    assert job.status == JobStatus.CANCELLED
    titles = {action["title"] for action in staff.get(page("job_change", job.pk)).context["actions_detail"]}
    assert titles == {"Delete"}
    assert "cancelled" in messages_of(press(staff, job, "run_now")).lower()


def test_delete_is_soft_and_the_list_forgets_the_job(staff: Client, job: Job) -> None:
    press(staff, job, "delete", "not needed")
    job.refresh_from_db()
    assert job.deleted_at is not None
    assert b"settle" not in staff.get(page("job_changelist")).content
    assert AuditEntry.objects.get(action="job.deleted").reason == "not needed"


def test_many_jobs_are_paused_at_once(staff: Client, job: Job, tenant: Tenant) -> None:
    other = create_job(tenant, {"name": "other", "target": HTTP})
    data = {"action": "pause_chosen", "_selected_action": [str(job.pk), str(other.pk)]}
    staff.post(page("job_changelist"), data)
    assert Job.objects.filter(status=JobStatus.PAUSED).count() == 2


def test_the_list_of_jobs_takes_few_queries(
    staff: Client, tenant: Tenant, pool: Pool, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        create_job(tenant, {"name": f"job {number}", "target": HTTP, "schedule": {"every": 60}})
    with django_assert_max_num_queries(10) as seen:
        assert staff.get(page("job_changelist")).status_code == 200
    assert not [query["sql"] for query in seen.captured_queries if "COUNT(" in query["sql"]]


def test_a_key_is_shown_once_and_its_digest_never(staff: Client, tenant: Tenant) -> None:
    fields = {"tenant": tenant.pk, "name": "ci", "role": "operator", "expires_at_0": "", "expires_at_1": ""}
    answer = staff.post(page("apikey_add"), fields)
    key = ApiKey.objects.get()
    keys_on_page = KEY_TEXT.findall(answer.content.decode())
    assert keys_on_page == [key.prefix] and "no-store" in answer["Cache-Control"]
    assert key.prefix not in str(staff.cookies)
    for url in (page("apikey_changelist"), page("apikey_change", key.pk)):
        content = staff.get(url).content.decode()
        assert key.digest not in content and f"bk_{key.prefix}_…" in content
        assert not KEY_TEXT.search(content)
    assert AuditEntry.objects.get(action="key.created").actor == "olga"


def test_a_key_is_revoked_by_button(staff: Client, tenant: Tenant) -> None:
    staff.post(page("apikey_add"), {"tenant": tenant.pk, "name": "ci", "role": "viewer"})
    key = ApiKey.objects.get()
    url = f"{page('apikey_change', key.pk).removesuffix('change/')}revoke/"
    staff.post(url, {"_form_submitted": "True", "reason": "leaked"})
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert AuditEntry.objects.get(action="key.revoked").reason == "leaked"


def test_tenants_and_pools_are_audited(staff: Client, tenant: Tenant) -> None:
    fields = {"slug": "payments", "name": "Payments", "weight": "3", "allowed_hosts": "10.0.0.1,b:80"}
    answer = staff.post(page("tenant_change", tenant.pk), fields)
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    entry = AuditEntry.objects.get(action="tenant.edited")
    assert entry.after == {"name": "Payments", "weight": 3, "allowed_hosts": ["10.0.0.1", "b:80"]}
    pool: dict[str, Any] = {
        "slug": "gpu",
        "description": "",
        "exported_kinds": ["http", "htpp"],
        "exported_tasks": "",
        "tenants": str(tenant.pk),
    }
    wrong = staff.post(page("pool_add"), pool).context["adminform"].form.errors
    assert "htpp is not one of the available choices" in wrong["exported_kinds"][0]
    answer = staff.post(page("pool_add"), {**pool, "exported_kinds": ["http", "command"]})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert (AuditEntry.objects.get(action="pool.created").after or {})["tenants"] == ["payments"]


def test_a_pool_is_paused_and_resumed(staff: Client, pool: Pool) -> None:
    url = page("pool_change", pool.pk).removesuffix("change/")
    staff.post(f"{url}pause/", {"_form_submitted": "True", "reason": "upgrade"})
    assert pools.pauses(pool).get().reason == "upgrade"
    staff.post(f"{url}resume/", {"_form_submitted": "True"})
    assert not pools.pauses(pool).exists()
    assert {"pool.paused", "pool.resumed"} <= set(AuditEntry.objects.values_list("action", flat=True))


def test_memberships_go_through_their_service(staff: Client, tenant: Tenant) -> None:
    user = User.objects.create_user("nina", is_staff=True)
    staff.post(page("membership_add"), {"user": user.pk, "tenant": tenant.pk, "role": "viewer"})
    member = Membership.objects.get()
    staff.post(page("membership_change", member.pk), {"role": "operator"})
    member.refresh_from_db()
    assert member.role == Role.OPERATOR
    staff.post(page("membership_delete", member.pk), {"post": "yes"})
    assert not Membership.objects.exists()
    assert list(AuditEntry.objects.order_by("id").values_list("action", flat=True)) == [
        "member.added",
        "member.edited",
        "member.removed",
    ]


def test_an_unknown_job_is_answered_kindly(staff: Client) -> None:
    for identity in (UUID(int=5), "no-uuid"):
        answer = staff.get(page("job_change", identity), follow=True)
        assert answer.status_code == 200 and "exist" in messages_of(answer)
