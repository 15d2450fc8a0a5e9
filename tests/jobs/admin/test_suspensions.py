"""Pauses and blackouts in the admin: who may create and lift which, and how the pages of jobs show them."""

from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.models import Effect, Job, JobStatus, Override, Role, Suspension, SuspensionState, Tenant
from jobs.services.status import pause_job
from jobs.validation.instants import as_text, read
from runs.models import Run
from tests.support.factories import (
    make_pool,
    make_queue,
    make_suspension,
    make_tenant,
    make_user,
    make_worker,
    now,
    post_job,
)

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant(slug="payments")


def member(client: Client, tenant: Tenant, role: Role) -> Client:
    client.force_login(make_user(tenant, role, is_staff=True))
    return client


def page(name: str, *arguments: Any) -> str:
    return reverse(f"admin:beatkeeper_jobs_{name}", args=arguments)


def press(client: Client, url: str, **fields: Any) -> Any:
    return client.post(url, {"_form_submitted": "True", **fields})


def filled(**fields: Any) -> dict[str, Any]:
    empty = {"kind": "pause", "tenant": "", "pool": "", "tag": "", "effect": "", "reason": ""}
    return {**empty, "begins_at": "", "ends_at": "", **fields}


def errors(answer: Any) -> dict[str, list[str]]:
    assert answer.status_code == 200
    found: dict[str, list[str]] = answer.context["adminform"].form.errors
    return found


def lift(client: Client, suspension: Suspension) -> Any:
    return press(
        client, page("suspension_change", suspension.pk).removesuffix("change/") + "lift/", reason="all clear"
    )


def test_an_operator_of_a_tenant_blacks_out_one_of_its_jobs(client: Client, tenant: Tenant) -> None:
    operator = member(client, tenant, Role.OPERATOR)
    job, of_others = post_job(tenant, name="settle"), post_job()
    given = {"kind": "blackout", "tenant": str(tenant.pk), "ends_at": as_text(now() + HOUR)}
    assert operator.post(page("suspension_add"), filled(**given, job=str(job.pk))).status_code == 302
    suspension = Suspension.objects.get()
    assert (suspension.job, suspension.effect) == (job, "skip")
    shown = operator.get(page("suspension_change", suspension.pk)).content.decode()
    assert "the job settle of payments" in shown
    assert errors(operator.post(page("suspension_add"), filled(**given, job=str(of_others.pk)))).keys() == {
        "job"
    }
    assert Suspension.objects.count() == 1


def test_an_operator_of_the_platform_pauses_everything(staff: Client) -> None:
    answer = staff.post(page("suspension_add"), filled(everything="on", reason="database move"))
    assert answer.status_code == 302
    suspension = Suspension.objects.get()
    assert (suspension.tenant, suspension.pool, suspension.tag_name, suspension.effect) == (
        None,
        None,
        "",
        "catch_up",
    )
    assert AuditEntry.objects.get(action="suspension.created").actor == "olga"


def test_one_that_concerns_no_job_is_saved_with_a_warning(staff: Client, tenant: Tenant) -> None:
    post_job(tenant, tags={"team": "x"})
    for tag, warned in (("team:x", False), ("team:y", True)):
        fields = filled(tenant=str(tenant.pk), tag=tag)
        answer = staff.post(page("suspension_add"), fields, follow=True)
        assert (b"None of the jobs there are is concerned" in answer.content) is warned


def test_a_blackout_is_made_with_all_it_can_have(staff: Client, tenant: Tenant) -> None:
    pool = make_pool()
    fields = filled(
        kind="blackout",
        tenant=str(tenant.pk),
        pool=str(pool.pk),
        tag="team:x",
        effect="run_after",
        begins_at=as_text(now() + HOUR),
        ends_at=as_text(now() + 2 * HOUR),
    )
    assert staff.post(page("suspension_add"), fields).status_code == 302
    suspension = Suspension.objects.get()
    assert (suspension.kind, suspension.tenant, suspension.pool, suspension.tag_value) == (
        "blackout",
        tenant,
        pool,
        "x",
    )
    assert suspension.effect == "run_after" and suspension.ends_at


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "tag"),
        ({"tag": ":x"}, "tag"),
        ({"tag": "x", "everything": "on"}, "everything"),
        ({"tag": "x", "ends_at": "tomorrow"}, "ends_at"),
        ({"tag": "x", "kind": "blackout"}, "ends_at"),
        ({"tag": "x", "effect": "skip"}, "effect"),
        ({"tag": "x", "kind": "forever"}, "kind"),
    ],
)
def test_a_mistake_is_shown_at_its_field(staff: Client, fields: dict[str, Any], field: str) -> None:
    assert list(errors(staff.post(page("suspension_add"), filled(**fields)))) == [field]
    assert not Suspension.objects.exists()


def test_a_suspension_is_changed_and_lifted(staff: Client) -> None:
    suspension = make_suspension(tag_name="team", reason="old")
    shown = staff.get(page("suspension_change", suspension.pk))
    assert shown.status_code == 200
    form = shown.context["adminform"].form
    end = as_text(now() + HOUR)
    fields = {**{name: form[name].value() or "" for name in form.fields}, "reason": "new", "ends_at": end}
    del fields["everything"]
    answer = staff.post(page("suspension_change", suspension.pk), fields)
    assert answer.status_code == 302, errors(answer)
    suspension.refresh_from_db()
    assert (suspension.reason, as_text(suspension.ends_at or now())) == ("new", end)
    staff.post(page("suspension_change", suspension.pk), {**fields, "tag": "other", "effect": "hold"})
    suspension.refresh_from_db()
    assert (suspension.tag_name, suspension.effect) == ("team", "catch_up")
    assert lift(staff, suspension).status_code == 302
    suspension.refresh_from_db()
    assert suspension.state(database_now()) == SuspensionState.OVER and suspension.lifted_by == "olga"
    assert AuditEntry.objects.get(action="suspension.lifted").reason == "all clear"


def test_a_planned_one_is_changed_whole(staff: Client) -> None:
    suspension = make_suspension(tag_name="team", begins_at=now() + HOUR)
    fields = filled(tag="other:x", effect="hold", begins_at=as_text(suspension.begins_at))
    assert staff.post(page("suspension_change", suspension.pk), fields).status_code == 302
    suspension.refresh_from_db()
    assert (suspension.tag_name, suspension.tag_value, suspension.effect) == ("other", "x", "hold")


def test_one_that_is_over_is_only_looked_at(staff: Client) -> None:
    suspension = make_suspension(ends_at=now() - HOUR / 2)
    shown = staff.get(page("suspension_change", suspension.pk))
    assert (
        shown.status_code == 200 and b'name="reason"' not in shown.content and b"lift/" not in shown.content
    )
    assert lift(staff, suspension).status_code == 403
    assert staff.post(page("suspension_change", suspension.pk), filled(tag="x")).status_code == 403


def test_the_list_tells_the_states_apart(staff: Client) -> None:
    made = {
        "planned": make_suspension(begins_at=now() + HOUR),
        "in_force": make_suspension(),
        "over": make_suspension(ends_at=now() - HOUR / 2),
    }
    assert staff.get(page("suspension_changelist")).context["cl"].result_count == 3
    for state, suspension in made.items():
        answer = staff.get(page("suspension_changelist"), {"state": state})
        assert list(answer.context["cl"].result_list) == [suspension]


def test_an_operator_of_a_tenant_suspensions_its_own_jobs(client: Client, tenant: Tenant) -> None:
    theirs = member(client, tenant, Role.OPERATOR)
    assert "tenant" in errors(theirs.post(page("suspension_add"), filled(everything="on")))
    other = make_tenant()
    fields = filled(tenant=str(other.pk), everything="on")
    assert "tenant" in errors(theirs.post(page("suspension_add"), fields))
    assert (
        theirs.post(page("suspension_add"), filled(tenant=str(tenant.pk), everything="on")).status_code == 302
    )
    suspension = Suspension.objects.get()
    assert suspension.tenant == tenant
    assert lift(theirs, suspension).status_code == 302


def test_a_pool_of_others_is_found_by_no_number(client: Client, tenant: Tenant) -> None:
    hidden = make_pool(slug="competitor", shared=False)
    theirs = member(client, tenant, Role.OPERATOR)
    answer = theirs.post(page("suspension_add"), filled(tenant=str(tenant.pk), pool=str(hidden.pk)))
    assert "pool" in errors(answer) and b"competitor" not in answer.content


def test_a_viewer_makes_and_lifts_nothing(client: Client, tenant: Tenant) -> None:
    suspension = make_suspension(tenant=tenant)
    viewer = member(client, tenant, Role.VIEWER)
    assert viewer.get(page("suspension_changelist")).context["cl"].result_count == 1
    assert viewer.get(page("suspension_add")).status_code == 403
    assert lift(viewer, suspension).status_code == 403
    assert viewer.post(page("suspension_change", suspension.pk), filled(reason="x")).status_code == 403


def test_a_member_sees_what_concerns_it(client: Client, tenant: Tenant) -> None:
    theirs = member(client, tenant, Role.ADMIN)
    own = make_suspension(tenant=tenant)
    everything = make_suspension(created_by="olga", reason="database move")
    make_suspension(pool=make_pool(shared=False), reason="competitor")
    of_others = make_suspension(tenant=make_tenant(slug="competitor"), reason="competitor")
    answer = theirs.get(page("suspension_changelist"))
    assert set(answer.context["cl"].result_list) == {own, everything}
    assert b"competitor" not in answer.content
    assert b"the platform" in answer.content and b"olga" not in answer.content
    shown = theirs.get(page("suspension_change", everything.pk))
    assert shown.status_code == 200 and b'name="reason"' not in shown.content and b"olga" not in shown.content
    assert lift(theirs, everything).status_code == 403
    assert theirs.post(page("suspension_change", everything.pk), filled(reason="x")).status_code == 403
    assert lift(theirs, of_others).status_code == 403
    assert theirs.get(page("suspension_change", of_others.pk)).status_code == 302


def test_the_dashboard_says_what_is_stopped(client: Client, tenant: Tenant) -> None:
    make_suspension(tenant=tenant, reason="quarter end")
    make_suspension(reason="database move", created_by="olga")
    make_suspension(tenant=make_tenant(), reason="of others")
    make_suspension(tenant=tenant, reason="over", ends_at=now() - HOUR / 2)
    theirs = member(client, tenant, Role.VIEWER)
    answer = theirs.get(reverse("admin:index"))
    assert {suspension["reason"] for suspension in answer.context["suspensions"]} == {
        "quarter end",
        "database move",
    }
    assert b'id="suspensions"' in answer.content and b"olga" not in answer.content
    Suspension.objects.all().delete()
    assert b'id="suspensions"' not in theirs.get(reverse("admin:index")).content


@pytest.fixture
def job(tenant: Tenant) -> Job:
    return post_job(tenant, name="settle", schedule={"every": 3600})


def why(staff: Client, job: Job) -> str:
    return " | ".join(str(line) for line in staff.get(page("job_change", job.pk)).context["why"])


def test_a_job_says_why_it_does_not_run(staff: Client, job: Job) -> None:
    make_worker(job.pool)
    assert why(staff, job) == ""
    make_suspension(pool=job.pool, effect=Effect.HOLD, reason="upgrade", ends_at=now() + HOUR)
    assert "Paused" in why(staff, job) and "upgrade" in why(staff, job)
    Suspension.objects.all().delete()
    queue = make_queue(job)
    queue.reason = "no_live_worker"
    queue.save()
    assert "no live worker" in why(staff, job)
    pause_job(job, "deploy", now() + HOUR)
    assert "The job is paused until" in why(staff, job) and "deploy" in why(staff, job)


def job_button(job: Job, name: str) -> str:
    return page("job_change", job.pk).removesuffix("change/") + f"{name}/"


def test_a_job_is_paused_until(staff: Client, job: Job) -> None:
    until = as_text(now() + HOUR)
    wrong = press(staff, job_button(job, "pause"), until="soon")
    assert wrong.status_code == 200 and b"is not an instant" in wrong.content
    press(staff, job_button(job, "pause"), until=until, reason="deploy")
    job.refresh_from_db()
    assert (job.status, job.status_reason) == (JobStatus.PAUSED, "deploy")
    assert as_text(job.paused_until or now()) == until


def test_resuming_shows_what_was_missed_and_asks_what_to_do(staff: Client, tenant: Tenant) -> None:
    job = post_job(tenant, schedule={"every": 60, "begins_at": as_text(now() - 24 * HOUR)})
    pause_job(job)
    Job.objects.filter(pk=job.pk).update(status_at=now() - HOUR)
    patch_anchor(job)
    dialog = staff.get(job_button(job, "resume")).content.decode()
    assert "Missed 60 planned times" in dialog and "creates 1 run for them" in dialog
    press(staff, job_button(job, "resume"), catch_up="skip")
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE and not Run.objects.filter(job=job).exists()


def patch_anchor(job: Job) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("UPDATE beatkeeper_job_version SET anchor_at = now() - interval '1 day'")
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")


def test_a_time_is_skipped_moved_and_restored(staff: Client, job: Job) -> None:
    dialog = staff.get(job_button(job, "set_override"))
    [(first, _), (second, _), *_] = dialog.context["form"].fields["planned_at"].choices
    press(staff, job_button(job, "set_override"), planned_at=first, what="skip", reason="holiday")
    change = Override.objects.get()
    assert (as_text(change.planned_at), change.moved_to, change.reason) == (first, None, "holiday")
    firings = staff.get(page("job_change", job.pk)).context["firings"]
    assert firings[0] == {"at": ANY, "words": "skipped by olga: holiday", "dropped": True}
    without = press(staff, job_button(job, "set_override"), planned_at=second, what="move")
    assert b"Enter the new time" in without.content
    to = as_text(read(second, "second") + HOUR / 4)
    press(staff, job_button(job, "set_override"), planned_at=second, what="move", move_to=to)
    assert as_text(Override.objects.get(planned_at=read(second, "s")).moved_to or now()) == to
    press(staff, job_button(job, "set_override"), planned_at=first, what="restore")
    assert Override.objects.count() == 1
    assert len(staff.get(page("override_changelist")).context["cl"].result_list) == 1


def test_a_refusal_becomes_a_message(staff: Client, job: Job) -> None:
    dialog = staff.get(job_button(job, "set_override"))
    [(first, _), *_] = dialog.context["form"].fields["planned_at"].choices
    far = as_text(now() + 60 * 24 * HOUR)
    answer = press(staff, job_button(job, "set_override"), planned_at=first, what="move", move_to=far)
    assert answer.status_code == 302 and not Override.objects.exists()
    said = [str(message) for message in staff.get(page("job_change", job.pk)).context["messages"]]
    assert "too far" in said[0]


@pytest.mark.parametrize("button", ["pause", "resume", "set_override"])
def test_dialogs_are_for_those_who_may(client: Client, tenant: Tenant, job: Job, button: str) -> None:
    viewer = member(client, tenant, Role.VIEWER)
    assert viewer.get(job_button(job, button)).status_code == 403
    stranger = member(client, make_tenant(), Role.ADMIN)
    assert stranger.get(job_button(job, button)).status_code == 403
    assert press(stranger, job_button(job, button), what="skip").status_code == 403
