"""Promise 9 in the admin: members of staff see their tenants only, and do what their role allows."""

from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.access.api_keys import create_key
from jobs.models import (
    ApiKey,
    Job,
    JobStatus,
    JobVersion,
    Membership,
    Override,
    Pool,
    Role,
    RunRequest,
    Suspension,
    Tenant,
)
from jobs.services.definition import create_job
from runs.models import Attempt, CeleryFiring, LiveRun, MissedSpan, Queue, Run, SchedulerNode
from runs.services.runs import run_now
from tests.support.factories import make_pool, make_queue, make_suspension, make_tenant, make_worker, now

pytestmark = pytest.mark.django_db
# What has no page of its own in the admin, and why.
WITHOUT_PAGE = {
    "Allowance": "counts of a minute; what a tenant may do is on its page",
    "IdempotentRequest": "what an API caller was answered is nobody else's to read",
    "Breaker": "shown on the page of its job, with the button that closes it",
    "RetryBudget": "a bucket's level; a run that waits for it says so",
    "ImportedTask": "the import's own book, which its command reads out",
}
TARGET = {"kind": "http", "url": "https://example.com/"}
SECRETIVE = "competitor"


@pytest.fixture
def ours() -> Tenant:
    return make_tenant(slug="ours")


@pytest.fixture
def theirs() -> Tenant:
    return make_tenant(slug=SECRETIVE)


@pytest.fixture
def pool() -> Pool:
    return make_pool(slug="default")


@pytest.fixture
def our_job(ours: Tenant, pool: Pool) -> Job:
    return create_job(ours, {"name": "our-job", "target": TARGET, "schedule": {"every": 60}})


@pytest.fixture
def their_job(theirs: Tenant, pool: Pool) -> Job:
    """Make everything that belongs to a job, each row with its tenant's name in it."""
    job = create_job(theirs, {"name": f"{SECRETIVE}-job", "target": TARGET, "schedule": {"every": 60}})
    run_now(job)
    make_queue(job)
    create_key(theirs, f"{SECRETIVE}-key")
    MissedSpan.objects.create(
        tenant=theirs,
        job=job,
        version=1,
        begins_at=job.created_at,
        ends_at=now(),
        reason=SECRETIVE,
    )
    RunRequest.objects.create(tenant=theirs, pool=pool, job=job, key=SECRETIVE, spec={})
    make_worker(pool, name=f"worker-of-{SECRETIVE}")
    make_suspension(tenant=theirs, reason=SECRETIVE)
    make_suspension(pool=make_pool(shared=False, slug=f"pool-of-{SECRETIVE}"))
    Override.objects.create(job=job, planned_at=now() + timedelta(hours=1), reason=SECRETIVE)
    return job


def member(client: Client, tenant: Tenant, role: Role) -> Client:
    user = User.objects.create_user("mona", password="x", is_staff=True)
    Membership.objects.create(user=user, tenant=tenant, role=role)
    client.force_login(user)
    return client


def page(model: Any, name: str, *arguments: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{name}", args=arguments)


def button(job: Job, name: str) -> str:
    return f"{page(Job, 'change', job.pk).removesuffix('change/')}{name}/"


def test_every_model_of_ours_is_in_the_admin() -> None:
    ours = {model for model in apps.get_models() if model._meta.app_label.startswith("beatkeeper_")}
    assert {model.__name__ for model in ours - set(admin.site._registry)} == set(WITHOUT_PAGE)


def test_no_list_names_another_tenant(client: Client, ours: Tenant, our_job: Job, their_job: Job) -> None:
    staff = member(client, ours, Role.ADMIN)
    for model in admin.site._registry:
        if model in (User, Membership):
            continue
        answer = staff.get(page(model, "changelist"))
        # Who schedules is the platform's business alone.
        assert answer.status_code == (403 if model in (SchedulerNode, CeleryFiring) else 200), model
        assert SECRETIVE not in answer.content.decode(), model
    assert SECRETIVE not in staff.get("/admin/").content.decode()


def test_no_page_of_another_tenant_opens(client: Client, ours: Tenant, our_job: Job, their_job: Job) -> None:
    staff = member(client, ours, Role.ADMIN)
    rows = [
        their_job,
        their_job.spec,
        their_job.tenant,
        Run.objects.get(),
        Queue.objects.get(),
        ApiKey.objects.get(),
        MissedSpan.objects.get(),
        *Suspension.objects.all(),
        Override.objects.get(),
        RunRequest.objects.get(),
        AuditEntry.objects.filter(tenant_id=their_job.tenant_id).first(),
    ]
    for row in rows:
        assert row is not None
        answer = staff.get(page(type(row), "change", row.pk))
        assert answer.status_code in (302, 403), row
    run = Run.objects.get()
    assert staff.get(f"{page(Run, 'change', run.pk).removesuffix('change/')}log/").status_code == 404


def test_buttons_of_another_tenant_are_refused(client: Client, ours: Tenant, their_job: Job) -> None:
    staff = member(client, ours, Role.ADMIN)
    for name in ("pause", "resume", "set_override", "cancel", "delete", "run_now"):
        assert staff.post(button(their_job, name), {"_form_submitted": "True"}).status_code == 403
    run = Run.objects.get()
    for name in ("cancel", "retry"):
        url = f"{page(Run, 'change', run.pk).removesuffix('change/')}{name}/"
        assert staff.post(url, {"_form_submitted": "True"}).status_code == 403
    their_job.refresh_from_db()
    assert their_job.status == JobStatus.ACTIVE and Run.objects.count() == 1


def test_chosen_jobs_of_another_tenant_are_not_paused(
    client: Client, ours: Tenant, our_job: Job, their_job: Job
) -> None:
    staff = member(client, ours, Role.ADMIN)
    data = {"action": "pause_chosen", "_selected_action": [str(our_job.pk), str(their_job.pk)]}
    staff.post(page(Job, "changelist"), data)
    our_job.refresh_from_db()
    their_job.refresh_from_db()
    assert (our_job.status, their_job.status) == (JobStatus.PAUSED, JobStatus.ACTIVE)


def test_filters_and_suggestions_name_only_ones_own(
    client: Client, ours: Tenant, our_job: Job, their_job: Job
) -> None:
    staff = member(client, ours, Role.ADMIN)
    for model, field in ((Job, "tenant"), (Run, "job"), (LiveRun, "job")):
        query = {
            "app_label": model._meta.app_label,
            "model_name": str(model._meta.model_name),
            "field_name": field,
        }
        answer = staff.get(reverse("admin:autocomplete"), {**query, "term": ""})
        names = [found["text"] for found in answer.json()["results"]]
        assert names in (["ours"], ["our-job"])
    answer = staff.get(page(Job, "changelist"), {"tenant__id__exact": their_job.tenant_id})
    assert SECRETIVE not in answer.content.decode()


def test_a_job_is_not_created_for_another_tenant(
    client: Client, ours: Tenant, theirs: Tenant, pool: Pool
) -> None:
    from tests.jobs.admin.test_jobs import filled

    staff = member(client, ours, Role.ADMIN)
    answer = staff.post(page(Job, "add"), {**filled(pool), "tenant": theirs.pk})
    assert "tenant" in answer.context["adminform"].form.errors
    assert staff.post(page(Job, "add"), {**filled(pool), "tenant": ours.pk}).status_code == 302
    assert Job.objects.get().tenant == ours


def test_a_viewer_looks_and_changes_nothing(client: Client, ours: Tenant, our_job: Job) -> None:
    staff = member(client, ours, Role.VIEWER)
    answer = staff.get(page(Job, "change", our_job.pk))
    assert answer.status_code == 200 and not answer.context["actions_detail"]
    assert b'name="_save"' not in answer.content and b"https://example.com/" in answer.content
    assert staff.post(button(our_job, "pause"), {"_form_submitted": "True"}).status_code == 403
    assert staff.post(page(Job, "change", our_job.pk), {}).status_code == 403
    assert staff.get(page(Job, "add")).status_code == 403
    data = {"action": "pause_chosen", "_selected_action": [str(our_job.pk)]}
    staff.post(page(Job, "changelist"), data)
    our_job.refresh_from_db()
    assert our_job.status == JobStatus.ACTIVE


def test_an_operator_acts_but_does_not_edit(client: Client, ours: Tenant, our_job: Job) -> None:
    staff = member(client, ours, Role.OPERATOR)
    assert staff.post(button(our_job, "pause"), {"_form_submitted": "True"}).status_code == 302
    our_job.refresh_from_db()
    assert our_job.status == JobStatus.PAUSED
    assert AuditEntry.objects.get(action="job.paused").actor == "mona"
    assert staff.post(page(Job, "change", our_job.pk), {}).status_code == 403
    assert staff.post(button(our_job, "delete"), {"_form_submitted": "True"}).status_code == 403


def test_only_operators_of_the_platform_change_what_all_share(
    client: Client, ours: Tenant, pool: Pool
) -> None:
    staff = member(client, ours, Role.ADMIN)
    assert staff.post(page(Pool, "change", pool.pk), {}).status_code == 403
    assert staff.post(page(Tenant, "change", ours.pk), {}).status_code == 403
    assert staff.get(page(Pool, "add")).status_code == 403
    assert staff.get(page(Membership, "add")).status_code == 403
    assert staff.get(page(User, "changelist")).status_code == 403
    url = page(Pool, "change", pool.pk).removesuffix("change/")
    assert staff.post(f"{url}pause/", {"_form_submitted": "True"}).status_code == 403


def test_a_tenants_admin_makes_keys_for_that_tenant_alone(
    client: Client, ours: Tenant, theirs: Tenant
) -> None:
    staff = member(client, ours, Role.ADMIN)
    fields = {"name": "ci", "role": "admin"}
    assert staff.post(page(ApiKey, "add"), {**fields, "tenant": theirs.pk}).status_code == 200
    assert not ApiKey.objects.exists()
    assert b"shown only once" in staff.post(page(ApiKey, "add"), {**fields, "tenant": ours.pk}).content
    assert ApiKey.objects.get().tenant == ours


def test_staff_without_membership_sees_nothing(client: Client, their_job: Job) -> None:
    client.force_login(User.objects.create_user("nobody", is_staff=True))
    assert client.get(page(Job, "changelist")).status_code == 403
    assert SECRETIVE not in client.get("/admin/").content.decode()


def test_who_is_not_staff_is_sent_to_the_login(client: Client, our_job: Job) -> None:
    client.force_login(User.objects.create_user("gone", is_superuser=True))
    for url in (page(Job, "changelist"), page(Run, "changelist"), "/admin/", button(our_job, "pause")):
        assert client.get(url).status_code == 302
    assert Attempt.objects.count() == 0


@pytest.mark.parametrize(
    "model, lookup",
    [
        (JobVersion, "target__icontains"),
        (JobVersion, "target__headers__Authorization__startswith"),
        (ApiKey, "digest__startswith"),
        (Suspension, "created_by__startswith"),
        (Pool, "tenants__slug"),
        (Pool, "tenants"),
    ],
)
def test_what_pages_mask_is_not_guessed_by_addresses(
    client: Client, ours: Tenant, our_job: Job, model: Any, lookup: str
) -> None:
    staff = member(client, ours, Role.VIEWER)
    assert staff.get(page(model, "changelist")).status_code == 200
    assert staff.get(page(model, "changelist"), {lookup: "1"}).status_code == 400


def test_who_comes_to_the_login_itself_is_led_to_the_dashboard(client: Client) -> None:
    User.objects.create_superuser("ops", password="correct horse battery")  # noqa: S106
    answer = client.post(reverse("admin:login"), {"username": "ops", "password": "correct horse battery"})
    assert answer.headers["Location"] == reverse("admin:index")
