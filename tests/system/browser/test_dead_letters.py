"""Redrive a group of dead letters in a browser."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection

from jobs.services.definition import create_job
from runs.models import Redrive
from tests.support.factories import job_spec, make_dead, make_pool, make_tenant, now
from tests.system.browser.test_admin import PASSWORD, Browser, browser, site

__all__ = ["browser", "site"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_dead_letters_are_decided_with_a_few_clicks(browser: Browser) -> None:
    User.objects.create_superuser("olga", password=PASSWORD)
    make_pool(slug="default")
    tenant = make_tenant(slug="payments")
    jobs = [create_job(tenant, job_spec(name=name)) for name in ("settle accounts", "send invoices")]
    for number in range(12):
        line = f"HTTPSConnectionPool(host='ledger.example', port=443): no answer after {number} s"
        at = now() - timedelta(minutes=number)
        make_dead(jobs[number % 2], error_type="requests.ConnectionError", error_line=line, finished_at=at)
    make_dead(jobs[0], fingerprint="b2", error_type="KeyError", error_line="'iban'", error_class="permanent")
    connection.commit()

    browser.log_in()
    browser.picture("dashboard")
    browser.page.locator("#figures a", has_text="Dead letters").click()
    browser.page.wait_for_selector("text=requests.ConnectionError")
    browser.picture("dead_letters")

    browser.page.locator("tr", has_text="requests.ConnectionError").locator(
        "a", has_text="requests"
    ).first.click()
    browser.page.wait_for_selector("text=All errors")
    browser.picture("group")
    browser.open("/admin/beatkeeper_runs/deadletter/")

    row = browser.page.locator("tr", has_text="requests.ConnectionError")
    row.locator("a", has_text="Redrive").click()
    browser.page.wait_for_selector("#dialog #what")
    assert "12 dead runs of requests.ConnectionError" in browser.page.locator("#what").inner_text()
    browser.picture("dialog")
    browser.page.locator("#dialog input[name=per_minute]").fill("30")
    browser.page.locator("#dialog input[name=reason]").fill("ledger is back")
    with browser.page.expect_navigation():
        browser.page.locator("#dialog button[type=submit]").click()
    browser.page.wait_for_selector("text=The redrive has started")
    browser.picture("redrives")
    assert Redrive.objects.get().per_minute == 30
    assert browser.complaints == []
