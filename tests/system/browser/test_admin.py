"""Use the admin in a browser: log in, look at jobs, open a run with its log, run a job, pause it.

Screenshots are left in the test's temporary folder.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from auditlog.models import AuditEntry
from jobs.access.api_keys import KEY_TEXT
from jobs.models import ApiKey, Job, JobStatus, Suspension
from jobs.services.definition import create_job, edit_job
from jobs.validation.instants import as_text
from runs.models import LiveRun, MissedSpan, Run
from runs.states import FinalState, LiveState
from scheduler_project.sdk.logs.folder import FolderLogStore
from tests.support.factories import make_attempt, make_pool, make_run, make_tenant, make_worker, now
from tests.support.ports import free_port
from tests.support.processes import Processes
from tests.support.servers.api import serve
from tests.support.waiting import wait_until

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
PASSWORD = "correct horse"
ADMIN = "admin in browser"
LOG = ["settling 3 accounts", "Traceback (most recent call last):", "  no such account: 4711"]


@dataclass
class Browser:
    page: "sync_api.Page"  # type: ignore[name-defined]
    base: str
    folder: Path
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(f"{self.base}{path}")

    def picture(self, name: str) -> None:
        self.page.screenshot(path=self.folder / f"{name}.png")

    def log_in(self) -> None:
        self.open("/admin/")
        self.page.fill("#id_username", "olga")
        self.page.fill("#id_password", PASSWORD)
        self.page.click("button[type=submit]")
        self.page.wait_for_selector("#dashboard")

    def press(self, title: str, reason: str) -> None:
        """Press a button of the page, fill its dialog, and wait for the next page."""
        self.page.locator("a[hx-get]", has_text=title).first.click()
        dialog = self.page.locator("#dialog")
        dialog.locator("input[name=reason]").fill(reason)
        self.picture(f"dialog-{title.lower().replace(' ', '-')}")
        with self.page.expect_navigation():
            dialog.locator("button[type=submit]").click()


@pytest.fixture
def site(database_url: str, processes: Processes, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    logs = (tmp_path / "logs").as_uri()
    env = {"DATABASE_URL": database_url, "LOG_STORE_URL": logs, "PGAPPNAME": ADMIN}
    process = serve(processes, port, env)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    wait_until(lambda: not admins_in_database(), 10, "the end of the admin's sessions")


def admins_in_database() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
            [ADMIN],
        )
        return int(cursor.fetchone()[0])


@pytest.fixture
def browser(site: str, chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    # Playwright keeps an event loop in this thread, where Django would refuse every query.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    folder = tmp_path / "screenshots"
    folder.mkdir()
    with sync_api.sync_playwright() as play:
        chrome = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--no-proxy-server"])
        page = chrome.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(20_000)
        found = Browser(page, site, folder)
        page.on("console", lambda said: found.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on(
            "request", lambda asked: None if is_ours(asked.url, site) else found.complaints.append(asked.url)
        )
        yield found
        chrome.close()
        # Beside the loop Django has opened another connection than the one that empties the database.
        connection.close()


def is_ours(url: str, site: str) -> bool:
    return url.startswith((site, "data:", "blob:"))


@pytest.fixture
def job(browser: Browser) -> Job:
    User.objects.create_superuser("olga", password=PASSWORD)
    make_pool(slug="default")
    target = {"kind": "http", "url": "https://example.com/settle"}
    schedule = {"cron": "*/5 * * * *", "timezone": "America/New_York"}
    return create_job(
        make_tenant(slug="payments"), {"name": "settle", "target": target, "schedule": schedule}
    )


@pytest.fixture
def dead_run(job: Job, tmp_path: Path) -> Run:
    """Make a dead run with an attempt and a log, as a worker leaves them."""
    live = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool, name="worker-7"))
    store = FolderLogStore(tmp_path / "logs")
    with store.open(live.pk, live.claim_seq) as file:
        for text in LOG:
            line = {"t": now().isoformat(), "s": "stderr", "l": "", "m": text}
            file.write(json.dumps(line).encode() + b"\n")
    pointer = store.seal(live.pk, live.claim_seq, "payments", uuid4())
    assert pointer is not None
    ending: dict[str, Any] = {
        "error_class": "transient",
        "error_line": LOG[-1].strip(),
        "finished_at": now(),
        "started_at": live.claimed_at or now(),
    }
    where: dict[str, Any] = {
        "log_object": pointer.object,
        "log_offset": pointer.offset,
        "log_length": pointer.length,
    }
    make_attempt(live, **where, **ending)
    Run.objects.filter(pk=live.pk).update(state=FinalState.DEAD, ended_from="running", attempts=1, **ending)
    LiveRun.objects.filter(pk=live.pk).delete()
    return Run.objects.get(pk=live.pk)


def test_a_person_finds_out_why_a_run_failed(browser: Browser, job: Job, dead_run: Run) -> None:
    browser.log_in()
    browser.picture("dashboard")
    assert "No scheduler is alive" in browser.page.inner_text("#problems")
    browser.page.locator("a", has_text="Jobs").first.click()
    browser.page.wait_for_selector("#result_list")
    row = browser.page.inner_text("#result_list")
    assert "settle" in row and "Every 5 minutes, America/New_York" in row
    assert "ACTIVE" in row and "DEAD" in row
    browser.picture("job-list")
    browser.page.locator("#result_list a", has_text="dead").click()
    browser.page.wait_for_selector("#run-page")
    browser.picture("run-with-log")
    assert browser.page.inner_text("#log").count("\n") >= len(LOG) - 1
    assert all(line.strip() in browser.page.inner_text("#log") for line in LOG)
    assert "worker-7" in browser.page.inner_text("#attempts")
    assert browser.complaints == []


def test_a_person_runs_a_job_now_and_pauses_it(browser: Browser, job: Job) -> None:
    browser.log_in()
    browser.open(f"/admin/beatkeeper_jobs/job/{job.pk}/change/")
    assert browser.page.locator("#next-firings li").count() == 5
    browser.picture("job")
    browser.press("Run now", "just to see")
    browser.page.wait_for_selector("#run-page")
    browser.picture("run-just-asked-for")
    assert Run.objects.get().requested_by
    browser.open(f"/admin/beatkeeper_jobs/job/{job.pk}/change/")
    browser.press("Pause", "holidays")
    browser.page.wait_for_selector("#job-summary")
    browser.picture("job-paused")
    assert "holidays" in browser.page.inner_text("#job-summary")
    job.refresh_from_db()
    assert job.status == JobStatus.PAUSED
    entries = AuditEntry.objects.filter(actor="olga").values_list("action", "reason")
    assert set(entries) == {("run.requested", "just to see"), ("job.paused", "holidays")}
    assert browser.complaints == []


def test_a_person_edits_when_a_job_runs(browser: Browser, job: Job) -> None:
    browser.log_in()
    browser.open(f"/admin/beatkeeper_jobs/job/{job.pk}/change/")
    page = browser.page
    assert page.is_visible("input[name=cron]") and not page.is_visible("input[name=every]")
    page.select_option("select[name=schedule_kind]", "every")
    page.wait_for_selector("input[name=every]", state="visible")
    page.wait_for_selector("input[name=cron]", state="hidden")
    page.fill("input[name=every]", "often")
    page.click("button[name=_continue]")
    page.wait_for_selector(".errors")
    page.locator("input[name=every]").scroll_into_view_if_needed()
    browser.picture("job-refused")
    assert "is not an interval" in page.inner_text("#job_form") or "not a duration" in page.inner_text(
        "#job_form"
    )
    page.fill("input[name=every]", "PT90S")
    page.click("button[name=_continue]")
    page.wait_for_selector("text=was changed successfully")
    job.refresh_from_db()
    assert job.spec.schedule == {"every": 90}
    assert browser.complaints == []


def test_a_person_makes_a_key_and_sees_it_once(browser: Browser, job: Job) -> None:
    browser.log_in()
    tenant = job.tenant_id
    browser.open("/admin/beatkeeper_jobs/apikey/add/")
    page = browser.page
    page.locator("#select2-id_tenant-container").click()
    page.locator(".select2-results__option", has_text="payments").click()
    page.fill("input[name=name]", "ci")
    browser.picture("key-form")
    page.click("button[name=_save]")
    page.wait_for_selector("#new-key")
    browser.picture("new-key")
    found = KEY_TEXT.search(page.inner_text("#new-key"))
    assert found and ApiKey.objects.get().prefix == found[1] and ApiKey.objects.get().tenant_id == tenant
    assert all(found[0] not in cookie["value"] for cookie in page.context.cookies())
    page.locator("#new-key a").click()
    page.wait_for_selector("text=begins with")
    browser.picture("key")
    assert found[0] not in page.content()
    assert browser.complaints == []


def test_a_person_learns_that_a_form_is_stale(browser: Browser, job: Job) -> None:
    browser.log_in()
    browser.open(f"/admin/beatkeeper_jobs/job/{job.pk}/change/")
    edit_job(job, {"schedule": {"every": 60}})
    browser.page.fill("textarea[name=description]", "only this")
    browser.page.click("button[name=_continue]")
    browser.page.wait_for_selector("text=has changed the job")
    browser.picture("job-stale")
    assert browser.complaints == []


def test_a_person_blacks_out_an_afternoon_and_lifts_it(browser: Browser, job: Job) -> None:
    browser.log_in()
    browser.open("/admin/beatkeeper_jobs/suspension/add/")
    page = browser.page
    page.select_option("select[name=kind]", "blackout")
    page.fill("textarea[name=reason]", "inventory")
    browser.picture("suspension-form")
    page.locator("#id_everything").check(force=True)
    page.click("button[name=_save]")
    page.wait_for_selector("text=Ends_at is required")
    browser.picture("suspension-refused")
    page.fill("input[name=ends_at]", as_text(now() + timedelta(hours=2)))
    page.click("button[name=_save]")
    page.wait_for_selector("#result_list")
    browser.picture("suspensions")
    assert "all jobs" in page.inner_text("#result_list") and "IN FORCE" in page.inner_text("#result_list")
    browser.open("/admin/")
    assert "inventory" in page.inner_text("#suspensions")
    browser.picture("dashboard-suspended")
    browser.open(f"/admin/beatkeeper_jobs/job/{job.pk}/change/")
    assert "inventory" in page.inner_text("#why") and "no run" in page.inner_text("#next-firings")
    browser.picture("job-blacked-out")
    page.locator("#why a").click()
    page.wait_for_selector("text=Audit trail")
    browser.picture("suspension")
    browser.press("Lift", "done early")
    page.wait_for_selector("text=is over.")
    browser.picture("suspension-lifted")
    assert Suspension.objects.get().lifted_by == "olga"
    assert browser.complaints == []


def test_a_person_moves_one_time_and_resumes_with_a_choice(browser: Browser, job: Job) -> None:
    browser.log_in()
    browser.open(f"/admin/beatkeeper_jobs/job/{job.pk}/change/")
    page = browser.page
    browser.press("Change a time", "holiday")
    page.wait_for_selector("#next-firings .bk-dropped")
    browser.picture("job-time-skipped")
    assert "skipped by olga: holiday" in page.inner_text("#next-firings")
    browser.press("Pause", "deploy")
    page.wait_for_selector("text=is paused")
    Job.objects.filter(pk=job.pk).update(status_at=now() - timedelta(hours=1))
    backdate(job)
    browser.open(f"/admin/beatkeeper_jobs/job/{job.pk}/change/")
    assert "Missed 12 planned times" in page.inner_text("#why")
    page.locator("a[hx-get]", has_text="Resume").first.click()
    page.wait_for_selector("#missed")
    browser.picture("resume")
    page.select_option("#dialog select[name=catch_up]", "skip")
    with page.expect_navigation():
        page.locator("#dialog button[type=submit]").click()
    page.wait_for_selector("text=is resumed.")
    browser.picture("job-resumed")
    assert not LiveRun.objects.exists() and {span.policy for span in MissedSpan.objects.all()} == {"skip"}
    assert browser.complaints == []


def backdate(job: Job) -> None:
    """Make the version old, past the guard that lets no version change."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "UPDATE beatkeeper_job_version SET anchor_at = now() - interval '1 day' WHERE job_id = %s",
            [job.pk],
        )
