"""Runs in the admin: one state, the log, two buttons; and lists that touch only the partitions of their window."""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from auditlog.models import AuditEntry
from jobs.models import Job
from runs.admin.jobs import latest_runs
from runs.admin.run_detail import LINES_SHOWN
from runs.models import Attempt, LiveRun, Run
from runs.states import FinalState, LiveState
from scheduler_project.sdk.logs.folder import FolderLogStore
from tests.support.factories import make_attempt, make_job, make_run, make_worker, now

pytestmark = pytest.mark.django_db


@pytest.fixture
def store(tmp_path: Path, settings: Any) -> FolderLogStore:
    settings.LOG_STORE_URL = tmp_path.as_uri()
    return FolderLogStore(tmp_path)


def page(run: Any, part: str = "change") -> str:
    return (
        reverse("admin:beatkeeper_runs_run_change", args=[getattr(run, "pk", run)]).removesuffix("change/")
        + f"{part}/"
    )


def ago(seconds: float) -> datetime:
    return now() - timedelta(seconds=seconds)


def runs(staff: Client, **query: str) -> list[Run]:
    answer = staff.get(reverse("admin:beatkeeper_runs_run_changelist"), query)
    assert answer.status_code == 200
    return list(answer.context["cl"].result_list)


@pytest.mark.parametrize("query", ["p=99999999999999999999", "p=1000000000000", "trigger__exact=%00"])
def test_a_list_asked_for_nonsense_says_so(staff: Client, query: str) -> None:
    for name in ("run", "liverun", "attempt"):
        url = reverse(f"admin:beatkeeper_runs_{name}_changelist")
        answer = staff.get(f"{url}?{query}")
        assert (answer.status_code, answer["Location"]) == (302, f"{url}?e=1")


def press(staff: Client, run: Any, button: str, reason: str = "") -> Any:
    return staff.post(page(run, button), {"_form_submitted": "True", "reason": reason}, follow=True)


def end(live: LiveRun, state: str, **values: Any) -> Run:
    """End a run as the statement of an outcome does."""
    Run.objects.filter(pk=live.pk).update(
        state=state,
        ended_from=live.state,
        finished_at=now(),
        started_at=live.started_at,
        attempts=live.attempt,
        error_class={"dead": "transient", "cancelled": "cancelled"}.get(state, ""),
        **values,
    )
    LiveRun.objects.filter(pk=live.pk).delete()
    return Run.objects.get(pk=live.pk)


def try_once(store: FolderLogStore, live: LiveRun, lines: list[str], outcome: str = "failed") -> Attempt:
    with store.open(live.pk, live.claim_seq) as file:
        for text in lines:
            line = {"t": "2026-11-18T12:00:00.123+00:00", "s": "stdout", "l": "", "m": text}
            file.write(json.dumps(line).encode() + b"\n")
    pointer = store.seal(live.pk, live.claim_seq, "tenant", uuid4())
    assert pointer is not None
    where = {"log_object": pointer.object, "log_offset": pointer.offset, "log_length": pointer.length}
    return make_attempt(live, outcome, error_line="it broke", **where)


def test_the_list_shows_one_state_live_or_final(staff: Client) -> None:
    job = make_job(name="settle")
    make_run(job, LiveState.RUNNING)
    end(make_run(job, LiveState.RUNNING), FinalState.DEAD, error_line="it broke")
    content = staff.get(reverse("admin:beatkeeper_runs_run_changelist")).content.decode()
    assert "running" in content and "dead" in content and "it broke" in content and "settle" in content


@pytest.mark.parametrize("state", ["ready", "queued", "running", "delayed", "blocked"])
def test_the_list_is_filtered_by_a_live_state(staff: Client, state: str) -> None:
    job = make_job()
    states = ("ready", "queued", "running", "delayed", "blocked")
    lives = {made: make_run(job, made, planned_at=ago(number)) for number, made in enumerate(states)}
    assert [run.pk for run in runs(staff, state=state)] == [lives[state].pk]
    assert len(runs(staff, state="unfinished")) == 5
    assert runs(staff, state="dead") == []


def test_the_list_is_filtered_by_an_outcome_job_tenant_and_trigger(staff: Client) -> None:
    job, other = make_job(), make_job()
    dead = end(make_run(job, LiveState.RUNNING), FinalState.DEAD)
    make_run(other, trigger="manual")
    assert runs(staff, state="dead") == [dead]
    assert runs(staff, job__id__exact=str(job.pk)) == [dead]
    assert runs(staff, tenant__id__exact=str(job.tenant_id)) == [dead]
    assert runs(staff, trigger__exact="schedule") == [dead]


def test_the_list_keeps_to_its_window(staff: Client) -> None:
    job = make_job()
    recent = make_run(job)
    old = make_run(job, planned_at=now() - timedelta(days=3))
    assert [run.pk for run in runs(staff)] == [recent.pk]
    assert [run.pk for run in runs(staff, window="7d")] == [recent.pk, old.pk]
    assert [run.pk for run in runs(staff, window="nonsense")] == [recent.pk]


def test_a_run_is_found_by_its_id_whenever_it_was_and_by_the_name_of_its_job(staff: Client) -> None:
    old = make_run(make_job(name="settle"), planned_at=now() - timedelta(days=9))
    new = make_run(make_job(name="other settlement"))
    assert [run.pk for run in runs(staff, q=str(old.pk))] == [old.pk]
    assert [run.pk for run in runs(staff, q="SETTLE")] == [new.pk]
    assert runs(staff, q="nothing like it") == []


def test_pages_go_on_until_there_are_no_more(staff: Client) -> None:
    job = make_job()
    made = [make_run(job, planned_at=ago(number)).pk for number in range(120)]
    found = [run.pk for number in ("1", "2", "3", "4") for run in runs(staff, p=number)]
    assert found == sorted(made, reverse=True)
    answer = staff.get(reverse("admin:beatkeeper_runs_run_changelist"), {"p": "3"})
    assert not answer.context["cl"].paginator.has_more


def test_lists_of_runs_never_count_and_touch_two_partitions_at_most(staff: Client) -> None:
    job = make_job()
    make_run(job)
    for name in ("run", "attempt", "liverun"):
        for query in ({}, {"q": "settle"}, {"state": "dead"}, {"tenant__id__exact": str(job.tenant_id)}):
            with CaptureQueriesContext(connection) as seen:
                staff.get(reverse(f"admin:beatkeeper_runs_{name}_changelist"), query)
            for sql in (query["sql"] for query in seen.captured_queries):
                if 'FROM "beatkeeper_run"' in sql or 'FROM "beatkeeper_attempt"' in sql:
                    assert "COUNT(" not in sql and "DISTINCT" not in sql
                    assert 1 <= partitions_of(sql) <= 2, sql


def partitions_of(sql: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    return len(set(re.findall(r"on (beatkeeper_(?:run|attempt)_\d{8}) ", plan)))


def test_the_latest_runs_of_a_page_of_jobs_come_by_one_statement(django_assert_num_queries: Any) -> None:
    jobs = [make_job() for _ in range(5)]
    make_run(jobs[0], planned_at=now() - timedelta(minutes=2))
    newest = make_run(jobs[0], LiveState.RUNNING)
    done = end(make_run(jobs[1], LiveState.RUNNING), FinalState.SUCCEEDED)
    make_run(jobs[2], planned_at=now() - timedelta(days=8))
    with django_assert_num_queries(1):
        latest = latest_runs([job.pk for job in jobs])
    assert {job: (row["id"], row["state"]) for job, row in latest.items()} == {
        jobs[0].pk: (newest.pk, "running"),
        jobs[1].pk: (done.pk, "succeeded"),
    }


def test_the_page_shows_attempts_and_the_log_of_the_last(staff: Client, store: FolderLogStore) -> None:
    live = make_run(make_job(name="settle"), LiveState.RUNNING)
    try_once(store, live, ["first line", "<b>second</b> line"])
    run = end(live, FinalState.DEAD, error_line="it broke")
    content = staff.get(page(run)).content.decode()
    assert "first line" in content and "&lt;b&gt;second&lt;/b&gt; line" in content
    assert "worker-7" in content and "it broke" in content and "settle" in content
    whole = staff.get(page(run, "log"))
    assert whole.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert whole.content.decode().splitlines()[1].endswith("<b>second</b> line")


def test_a_long_log_is_shown_by_its_end(staff: Client, store: FolderLogStore) -> None:
    live = make_run(make_job(), LiveState.RUNNING)
    try_once(store, live, [f"line {number};" for number in range(LINES_SHOWN + 40)])
    content = staff.get(page(end(live, FinalState.DEAD))).content.decode()
    assert "line 39;" not in content and "line 40;" in content and f"line {LINES_SHOWN + 39};" in content
    assert "without 40 earlier ones" in content


def test_a_running_run_shows_its_lines_so_far_and_looks_again(staff: Client, store: FolderLogStore) -> None:
    worker = make_worker(make_job().pool, name="worker-9")
    live = make_run(make_job(), LiveState.RUNNING, worker=worker)
    with store.open(live.pk, live.claim_seq) as file:
        file.write(b'{"t": "2026-11-18T12:00:00+00:00", "s": "stdout", "l": "", "m": "so far"}\n{"t": "half')
    content = staff.get(page(live)).content.decode()
    assert "so far" in content and "{&quot;t&quot;: &quot;half" in content
    assert "worker-9" in content and 'hx-trigger="every 3s"' in content


def test_a_page_that_is_watched_is_loaded_anew_when_the_run_has_ended(staff: Client) -> None:
    live = make_run(make_job(), LiveState.RUNNING)
    watching = {"HX-Request": "true"}
    assert b"run-page" in staff.get(page(live), headers=watching).content
    end(live, FinalState.SUCCEEDED)
    assert staff.get(page(live), headers=watching).headers["HX-Refresh"] == "true"


def test_a_cancelled_run_says_why(staff: Client) -> None:
    live = make_run(make_job(), LiveState.RUNNING)
    run = end(live, FinalState.CANCELLED, reason="wrong account", error_line="The run was cancelled.")
    assert "wrong account" in staff.get(page(run)).content.decode()
    assert "wrong account" in staff.get(reverse("admin:beatkeeper_runs_run_changelist")).content.decode()


def test_a_finished_run_shows_when_it_was_queued_and_cancelled_and_why(staff: Client) -> None:
    live = make_run(make_job(), LiveState.RUNNING)
    kept = {"queued_at": live.queued_at, "cancel_requested_at": now(), "cancel_acknowledged_at": now()}
    run = end(live, FinalState.CANCELLED, **kept, requested_reason="month end")
    shown = staff.get(page(run)).content.decode()
    assert all(words in shown for words in ("Queued", "Cancel requested", "Cancel acknowledged", "month end"))


def test_a_log_that_is_gone_is_reported(staff: Client, store: FolderLogStore) -> None:
    live = make_run(make_job(), LiveState.RUNNING)
    attempt = try_once(store, live, ["a line"])
    (store.root / attempt.log_object).unlink()
    run = end(live, FinalState.DEAD)
    assert "cannot be read" in staff.get(page(run)).content.decode()
    assert staff.get(page(run, "log")).status_code == 404


def test_an_attempt_that_is_not_there_is_reported(staff: Client, store: FolderLogStore) -> None:
    live = make_run(make_job())
    for number in ("7", "x", "99999999"):
        assert staff.get(page(live), {"attempt": number}).status_code == 200


def test_an_unclaimed_run_is_cancelled_at_once(staff: Client) -> None:
    live = make_run(make_job())
    press(staff, live, "cancel", "not today")
    run = Run.objects.get(pk=live.pk)
    assert (run.state, run.reason) == (FinalState.CANCELLED, "cancelled: not today")
    entry = AuditEntry.objects.get(action="run.cancelled")
    assert (entry.actor, entry.reason, entry.object_id) == ("olga", "not today", str(run.pk))


def test_the_worker_of_a_running_run_is_reported(staff: Client) -> None:
    live = make_run(make_job(), LiveState.RUNNING)
    answer = press(staff, live, "cancel")
    live.refresh_from_db()
    assert live.cancel_requested_at is not None
    assert "request to stop" in answer.content.decode() and "asked to stop" in answer.content.decode()


def test_a_finished_run_is_retried_as_a_new_one(staff: Client) -> None:
    dead = end(make_run(make_job(), LiveState.RUNNING), FinalState.DEAD)
    answer = press(staff, dead, "retry", "fixed it")
    retry = Run.objects.exclude(pk=dead.pk).get()
    assert retry.retry_of == dead.pk and answer.redirect_chain[-1][0] == page(retry)
    assert str(dead.pk) in answer.content.decode()
    assert AuditEntry.objects.get(action="run.retried").reason == "fixed it"


def test_only_buttons_that_make_sense_are_shown(staff: Client) -> None:
    job = make_job()
    dead = end(make_run(job, LiveState.RUNNING), FinalState.DEAD)
    expected = {
        make_run(job).pk: ["Cancel run"],
        make_run(job, LiveState.DELAYED).pk: ["Cancel run", "Retry"],
        dead.pk: ["Retry"],
    }
    for identity, titles in expected.items():
        assert [action["title"] for action in staff.get(page(identity)).context["actions_detail"]] == titles


def test_a_refused_cancel_is_reported_and_changes_nothing(staff: Client) -> None:
    dead = end(make_run(make_job(), LiveState.RUNNING), FinalState.DEAD)
    answer = press(staff, dead, "cancel")
    assert answer.status_code == 200
    assert any(message.level_tag == "error" for message in answer.context["messages"])
    assert not AuditEntry.objects.exists()


def test_a_run_cannot_be_edited_added_or_deleted(staff: Client) -> None:
    live = make_run(make_job())
    assert staff.post(page(live), {"priority": "1"}).status_code == 403
    assert staff.post(page(live, "delete"), {"post": "yes"}).status_code == 403
    assert staff.get(reverse("admin:beatkeeper_runs_run_add")).status_code == 403


def test_a_run_of_a_deleted_job_and_an_unknown_run_are_answered_kindly(staff: Client) -> None:
    job = make_job()
    live = make_run(job)
    Job.objects.filter(pk=job.pk).update(deleted_at=now())
    assert staff.get(page(live)).status_code == 200
    for identity in (UUID(int=1), "no-uuid"):
        answer = staff.get(page(identity), follow=True)
        assert answer.status_code == 200


def test_an_unfinished_run_leads_to_its_page(staff: Client) -> None:
    live = make_run(make_job())
    answer = staff.get(reverse("admin:beatkeeper_runs_liverun_change", args=[live.pk]))
    assert answer.headers["Location"] == page(live)


def unfinished(staff: Client, **query: str) -> list[LiveRun]:
    answer = staff.get(reverse("admin:beatkeeper_runs_liverun_changelist"), query)
    assert answer.status_code == 200
    return list(answer.context["cl"].result_list)


def test_unfinished_runs_name_their_worker_and_are_filtered_by_it(
    staff: Client, django_assert_max_num_queries: Any
) -> None:
    job = make_job()
    one, other = make_worker(job.pool, name="one@host"), make_worker(job.pool, name="other@host")
    claimed = [make_run(job, LiveState.RUNNING, worker=one) for _ in range(3)]
    make_run(job, LiveState.RUNNING, worker=other)
    make_run(job, LiveState.QUEUED)
    address = reverse("admin:beatkeeper_runs_workernode_change", args=[one.pk])
    with django_assert_max_num_queries(20):
        text = staff.get(reverse("admin:beatkeeper_runs_liverun_changelist")).content.decode()
    assert text.count(f'href="{address}"') == 3 and "other@host" in text
    assert {live.pk for live in unfinished(staff, worker=str(one.pk))} == {live.pk for live in claimed}


def test_runs_of_a_worker_that_is_gone_are_still_found(staff: Client) -> None:
    job = make_job()
    lost = make_worker(job.pool, state="lost")
    live = make_run(job, LiveState.RUNNING, worker=lost)
    make_run(job, LiveState.RUNNING, worker=make_worker(job.pool))
    assert [found.pk for found in unfinished(staff, worker=str(lost.pk))] == [live.pk]
    assert unfinished(staff, worker=str(uuid4())) == []
    assert unfinished(staff, worker="nonsense") == []
