"""Calendars in the admin: the form asks the service, and members see their own."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.access.memberships import set_membership
from jobs.calendars.service import create_calendar
from jobs.models import Calendar, Role, Tenant
from tests.support.factories import make_tenant, post_job

pytestmark = pytest.mark.django_db
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant(slug="payments")


def page(name: str, *arguments: Any) -> str:
    return reverse(f"admin:beatkeeper_jobs_calendar_{name}", args=arguments)


def filled(**changes: str) -> dict[str, Any]:
    hours = dict.fromkeys(DAYS, "")
    return {"name": "days", "description": "", "timezone": "Europe/Berlin", "dates": "", **hours, **changes}


def member(client: Client, tenant: Tenant, role: Role) -> Client:
    user = User.objects.create_user("mara", password="x", is_staff=True)
    set_membership(user, tenant, role)
    client.force_login(user)
    return client


def test_a_calendar_is_made_as_it_is_written(staff: Client, tenant: Tenant) -> None:
    written = {"dates": "2026-12-25 Christmas Day\n\n2026-01-01", "mon": "09:00-12:00, 13:00 - 17:00"}
    answer = staff.post(page("add"), {**filled(**written), "tenant": tenant.pk})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    calendar = Calendar.objects.get(tenant=tenant)
    assert calendar.weekly == {"mon": [["09:00", "12:00"], ["13:00", "17:00"]]}
    assert calendar.dates == [
        {"date": "2026-01-01", "name": ""},
        {"date": "2026-12-25", "name": "Christmas Day"},
    ]
    assert AuditEntry.objects.get(action="calendar.created").actor == "olga"
    shown = staff.get(page("change", calendar.pk)).content.decode()
    assert "2026-12-25 Christmas Day" in shown and "09:00-12:00, 13:00-17:00" in shown
    assert "days" in staff.get(page("changelist")).content.decode()


def test_a_form_that_is_sent_as_it_was_changes_nothing(staff: Client, tenant: Tenant) -> None:
    spans = {"mon": [["00:00", "24:00"]], "fri": [["09:00", "12:00"], ["13:00", "15:30"]]}
    calendar = create_calendar(tenant, {"name": "days", "dates": ["2026-12-25"], "weekly": spans})
    form = staff.get(page("change", calendar.pk)).context["adminform"].form
    sent = {name: form.initial.get(name) or "" for name in form.fields}
    assert staff.post(page("change", calendar.pk), sent).status_code == 302
    calendar.refresh_from_db()
    assert (calendar.edition, calendar.weekly) == (1, spans)
    assert not AuditEntry.objects.filter(action="calendar.edited").exists()


def test_an_edit_goes_through_the_service(staff: Client, tenant: Tenant) -> None:
    calendar = create_calendar(tenant, {"name": "days"})
    assert staff.post(page("change", calendar.pk), filled(name="other", sat="10:00-11:00")).status_code == 302
    calendar.refresh_from_db()
    assert (calendar.name, calendar.timezone, calendar.edition) == ("days", "Europe/Berlin", 2)
    assert calendar.weekly == {"sat": [["10:00", "11:00"]]}
    assert "being applied" in staff.get(page("change", calendar.pk)).content.decode()


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"name": "Days Off"}, "name", "is not a name"),
        ({"timezone": "Mars"}, "timezone", "not a known time zone"),
        ({"dates": "2026-12-25\n2026-02-30 Nothing"}, "dates", "Date 2: 2026-02-30 does not exist"),
        ({"mon": "22:00-06:00"}, "mon", "is not after 22:00"),
        ({"tue": "all day"}, "tue", "not a span"),
        ({"wed": "09:00-12:00, 11:00-13:00"}, "wed", "overlap"),
    ],
)
def test_what_is_wrong_is_reported_at_its_field(
    staff: Client, tenant: Tenant, changes: dict[str, str], field: str, said: str
) -> None:
    answer = staff.post(page("add"), {**filled(**changes), "tenant": tenant.pk})
    assert said in str(answer.context["adminform"].form.errors[field])
    assert not Calendar.objects.exists()


def test_only_what_nobody_uses_is_deleted(staff: Client, tenant: Tenant) -> None:
    calendar = create_calendar(tenant, {"name": "days"})
    schedule = {"cron": "0 9 * * *", "calendar": {"name": "days"}}
    post_job(tenant, name="settle", schedule=schedule)
    url = f"{page('change', calendar.pk).removesuffix('change/')}delete/"
    shown = staff.get(page("change", calendar.pk)).content.decode()
    assert "settle" in shown
    refused = staff.post(url, {"_form_submitted": "True", "reason": ""}, follow=True)
    assert "jobs plan by days: settle" in " ".join(str(m) for m in refused.context["messages"]).lower()
    unused = create_calendar(tenant, {"name": "unused"})
    staff.post(url.replace(str(calendar.pk), str(unused.pk)), {"_form_submitted": "True", "reason": "old"})
    assert [left.name for left in Calendar.objects.of(tenant)] == ["days"]
    assert AuditEntry.objects.get(action="calendar.deleted").reason == "old"


def test_members_see_and_change_their_own(client: Client, tenant: Tenant) -> None:
    own = create_calendar(tenant, {"name": "days"})
    other = create_calendar(make_tenant(), {"name": "theirs"})
    mara = member(client, tenant, Role.ADMIN)
    listed = mara.get(page("changelist")).content.decode()
    assert "days" in listed and "theirs" not in listed
    assert mara.post(page("change", own.pk), filled(mon="09:00-10:00")).status_code == 302
    assert mara.get(page("change", other.pk), follow=True).context.get("adminform") is None
    foreign = mara.post(page("add"), {**filled(name="mine"), "tenant": other.tenant_id})
    assert "tenant" in foreign.context["adminform"].form.errors


def test_a_viewer_looks_only(client: Client, tenant: Tenant) -> None:
    calendar = create_calendar(tenant, {"name": "days", "dates": ["2026-12-25"]})
    viewer = member(client, tenant, Role.VIEWER)
    assert "1 date<" in viewer.get(page("change", calendar.pk)).content.decode()
    assert viewer.post(page("change", calendar.pk), filled(mon="09:00-10:00")).status_code == 403
    viewer.post(
        f"{page('change', calendar.pk).removesuffix('change/')}delete/",
        {"_form_submitted": "True", "reason": ""},
    )
    calendar.refresh_from_db()
    assert calendar.edition == 1 and calendar.deleted_at is None
