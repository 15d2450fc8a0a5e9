"""Dead letters in the admin: redrive or dismiss in a few clicks, after reading what each does."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.models import Job, Membership, Role, Tenant
from runs.models import Breaker, DeadLetter, Redrive, Run
from runs.services import redrives
from tests.support.factories import make_dead, make_tenant, make_user, now, post_job

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)
LIST = "admin:beatkeeper_runs_deadletter_changelist"


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant(slug="payments")


@pytest.fixture
def job(tenant: Tenant) -> Job:
    return post_job(tenant, name="settle")


def dead_letters_page(client: Client, **query: Any) -> tuple[list[Any], str]:
    answer = client.get(reverse(LIST), query)
    assert answer.status_code == 200, answer
    return list(answer.context["cl"].result_list), answer.content.decode()


def press(client: Client, row: Any, button: str, **fields: Any) -> Any:
    url = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
    address = f"{url.removesuffix('change/')}{button}/"
    return client.post(address, {"_form_submitted": "True", "reason": "", **fields}, follow=True)


def messages_of(answer: Any) -> str:
    return " ".join(str(message) for message in answer.context["messages"])


def letter(run: Run) -> DeadLetter:
    return DeadLetter.objects.get(pk=run.pk)


def test_it_shows_what_died_by_error(staff: Client, job: Job) -> None:
    make_dead(job, finished_at=now() - 9 * SECOND)
    last = make_dead(job)
    make_dead(job, fingerprint="b2", error_line="another one")
    rows, page = dead_letters_page(staff)
    assert sorted(row.group.size for row in rows) == [1, 2]
    assert {row.pk for row in rows} >= {last.pk}
    assert "no answer" in page and "another one" in page and "settle" in page
    assert "/redrive_group/" in page and "/dismiss_group/" in page


def test_of_an_error_it_shows_the_dead_runs(staff: Client, job: Job) -> None:
    dead = [make_dead(job) for _ in range(2)]
    make_dead(job, fingerprint="b2")
    rows, page = dead_letters_page(staff, tenant__id__exact=job.tenant_id, fingerprint__exact="f00d")
    assert {row.pk for row in rows} == {run.pk for run in dead}
    assert "/redrive_group/" not in page and "/redrive/" in page
    rows, _ = dead_letters_page(staff, job__id__exact=job.pk)
    assert len(rows) == 3


def test_a_group_is_sent_on_its_way_at_a_pace(staff: Client, job: Job) -> None:
    dead = [make_dead(job, finished_at=now() - (n + 1) * SECOND) for n in range(2)]
    answer = press(
        staff, letter(dead[0]), "redrive_group", per_minute="30", input='{"args": [2]}', reason="mended"
    )
    assert "redrive has started" in messages_of(answer)
    redrive = Redrive.objects.get()
    assert (redrive.per_minute, redrive.input, redrive.requested_by) == (30, {"args": [2]}, "olga")
    assert redrives.work_off() == 1
    _, page = dead_letters_page(staff)
    assert "1 created, 30 per minute" in page
    stopped = press(staff, redrive, "stop", reason="too early")
    assert "stopped" in messages_of(stopped)
    redrive.refresh_from_db()
    assert (redrive.state, redrive.ended_by) == ("stopped", "olga")
    assert "is stopped" in messages_of(press(staff, redrive, "stop"))


def test_the_input_of_a_redrive_is_shown_like_that_of_a_run(staff: Client, job: Job) -> None:
    make_dead(job)
    redrive = redrives.start(job.tenant, "f00d", 30, {"kwargs": {"password": "hunter2", "size": 7}})
    page = staff.get(reverse("admin:beatkeeper_runs_redrive_change", args=[redrive.pk])).content.decode()
    assert "size" in page and "hunter2" not in page


def test_the_dialog_says_how_many_and_of_what(staff: Client, job: Job) -> None:
    dead = [make_dead(job) for _ in range(3)]
    url = reverse("admin:beatkeeper_runs_deadletter_change", args=[dead[0].pk]).removesuffix("change/")
    page = staff.get(f"{url}redrive_group/").content.decode()
    assert "3 dead runs of ConnectionError: no answer" in page
    assert "come back to this list" in page.replace("\n", " ")


def test_a_group_is_dismissed_with_a_note_and_not_without(staff: Client, job: Job) -> None:
    dead = [make_dead(job) for _ in range(2)]
    press(staff, letter(dead[0]), "dismiss_group")
    assert DeadLetter.objects.filter(decision="").count() == 2
    answer = press(staff, letter(dead[0]), "dismiss_group", reason="known bug 7")
    assert "2 runs are dismissed" in messages_of(answer)
    assert set(DeadLetter.objects.values_list("reason", "decided_by")) == {("known bug 7", "olga")}
    assert AuditEntry.objects.filter(action="run.dismissed", reason="known bug 7").count() == 2
    rows, _ = dead_letters_page(staff, decision="dismissed")
    assert len(rows) == 2


def test_one_run_is_redriven_once(staff: Client, job: Job) -> None:
    dead = make_dead(job)
    answer = press(staff, letter(dead), "redrive", input='{"args": [5]}', reason="mended")
    new = Run.objects.get(trigger="redrive")
    assert (new.input, new.retry_of) == ({"args": [5]}, dead.pk)
    assert answer.redirect_chain[-1][0].endswith(f"{new.pk}/change/")
    assert f"redriven it as {new.pk}" in messages_of(press(staff, letter(dead), "redrive"))
    assert Run.objects.filter(trigger="redrive").count() == 1


def test_an_input_that_is_none_is_reported_in_the_dialog(staff: Client, job: Job) -> None:
    dead = make_dead(job)
    press(staff, letter(dead), "redrive", input="[1")
    assert letter(dead).decision == ""


def test_chosen_runs_are_redriven_and_dismissed(staff: Client, job: Job) -> None:
    dead = [make_dead(job) for _ in range(4)]
    url = f"{reverse(LIST)}?tenant__id__exact={job.tenant_id}&fingerprint__exact=f00d"
    for action, chosen in (("redrive_chosen", dead[:2]), ("dismiss_chosen", dead[2:])):
        ids = [str(run.pk) for run in chosen]
        staff.post(url, {"action": action, "_selected_action": ids}, follow=True)
    assert [letter(run).decision for run in dead] == ["redriven"] * 2 + ["dismissed"] * 2


def test_members_decide_of_their_own_alone(client: Client, tenant: Tenant, job: Job) -> None:
    own, foreign = make_dead(job), make_dead(post_job())
    client.force_login(make_user(tenant, Role.OPERATOR, is_staff=True))
    rows, page = dead_letters_page(client)
    assert [row.pk for row in rows] == [own.pk]
    press(client, letter(foreign), "redrive")
    press(client, letter(foreign), "dismiss_group", reason="x")
    assert letter(foreign).decision == ""
    press(client, letter(own), "dismiss", reason="known")
    assert letter(own).decision == "dismissed"


@pytest.mark.parametrize("button", ["redrive", "dismiss", "redrive_group", "dismiss_group"])
def test_who_operates_for_one_team_gets_no_dialog_of_another(
    client: Client, tenant: Tenant, job: Job, button: str
) -> None:
    """Refuse rows of other tenants, and rows that the user may only look at."""
    user = make_user(tenant, Role.OPERATOR, is_staff=True)
    looked_at = make_tenant()
    Membership.objects.create(user=user, tenant=looked_at, role=Role.VIEWER)
    client.force_login(user)
    for other in (post_job(), post_job(looked_at)):
        dead = make_dead(other, error_line="their words")
        url = reverse("admin:beatkeeper_runs_deadletter_change", args=[dead.pk]).removesuffix("change/")
        answer = client.get(f"{url}{button}/")
        assert answer.status_code == 403 and b"their words" not in answer.content
        press(client, letter(dead), button, reason="x", per_minute="60")
        assert letter(dead).decision == "" and not Redrive.objects.exists()


def test_who_may_only_look_decides_nothing(client: Client, tenant: Tenant, job: Job) -> None:
    dead = make_dead(job)
    client.force_login(make_user(tenant, Role.VIEWER, is_staff=True))
    assert len(dead_letters_page(client)[0]) == 1
    for button in ("redrive", "dismiss", "redrive_group", "dismiss_group"):
        press(client, letter(dead), button, reason="x", per_minute="60")
    assert letter(dead).decision == "" and not Redrive.objects.exists()


def test_the_dashboard_counts_them_and_leads_there(staff: Client, job: Job) -> None:
    make_dead(job)
    figures = {figure.name: figure for figure in staff.get("/admin/").context["figures"]}
    assert (figures["Dead letters"].value, figures["Dead letters"].url) == ("1", reverse(LIST))


def test_a_dead_run_leads_to_the_others_of_its_error(staff: Client, job: Job) -> None:
    run = make_dead(job)
    page = staff.get(reverse("admin:beatkeeper_runs_run_change", args=[run.pk])).content.decode()
    assert "Dead letters with the same error" in page
    answer = staff.get(reverse("admin:beatkeeper_runs_deadletter_change", args=[run.pk]))
    assert answer["Location"].endswith(f"/run/{run.pk}/change/")


class TestBreakerButton:
    @pytest.fixture
    def broken(self, tenant: Tenant) -> Job:
        job = post_job(tenant, name="calls", breaker={"failures": 2})
        at = now()
        Breaker.objects.update(state="open", failures=2, opened_at=at, probe_at=at + 60 * SECOND)
        return job

    def test_the_page_of_the_job_says_what_holds_it_and_offers_to_close(
        self, staff: Client, broken: Job
    ) -> None:
        page = staff.get(reverse("admin:beatkeeper_jobs_job_change", args=[broken.pk])).content.decode()
        assert "Its breaker opened at" in page and "Close breaker" in page
        answer = press(staff, broken, "close_breaker", reason="mended")
        assert "the runs that it held go" in messages_of(answer)
        assert Breaker.objects.get().state == "closed"
        page = staff.get(reverse("admin:beatkeeper_jobs_job_change", args=[broken.pk])).content.decode()
        assert "Close breaker" not in page
