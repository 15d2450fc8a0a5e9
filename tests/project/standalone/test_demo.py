"""The demo is created once, the same at every start, and overwrites nothing of others."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command

from auditlog.models import AuditEntry
from jobs.access.api_keys import find_key, revoke_key
from jobs.models import ApiKey, Job, Pool, Tenant
from jobs.services.definition import delete_job
from jobs.services.status import pause_job
from scheduler_project.celery import keeper
from scheduler_project.standalone.demo import CALL, TASKS, make_demo

pytestmark = pytest.mark.django_db
URL = "http://127.0.0.1:8000"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "credentials.json"


def known(file: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(file.read_text())
    return found


def test_the_demo_has_five_telling_jobs_a_login_and_a_key(file: Path) -> None:
    assert make_demo(file, URL) == []
    names = set(
        Job.objects.filter(tenant__slug="demo", clock__next_run_at__isnull=False).values_list(
            "name", flat=True
        )
    )
    assert names == {
        "hello-every-5-seconds",
        "cron-every-minute",
        "fails-and-retries",
        CALL,
        "long-one-to-cancel",
    }
    login = known(file)
    assert set(login) == {"admin_user", "admin_password", "api_key"}
    user = User.objects.get(username=login["admin_user"])
    assert user.is_superuser and user.check_password(login["admin_password"])
    key = find_key(login["api_key"])
    assert key is not None and key.tenant.slug == "demo"


def test_only_its_owner_reads_the_credentials(file: Path) -> None:
    make_demo(file, URL)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_second_start_changes_nothing(file: Path) -> None:
    make_demo(file, URL)
    before, entries = known(file), AuditEntry.objects.count()
    assert make_demo(file, URL) == []
    assert known(file) == before
    assert AuditEntry.objects.count() == entries and User.objects.count() == 1 and ApiKey.objects.count() == 1


def test_what_somebody_changed_or_deleted_stays_so(file: Path) -> None:
    make_demo(file, URL)
    pause_job(Job.objects.get(name="cron-every-minute"))
    delete_job(Job.objects.get(name="fails-and-retries"))
    make_demo(file, URL)
    assert Job.objects.get(name="cron-every-minute").status == "paused"
    assert Job.objects.get(name="fails-and-retries").deleted_at is not None


def test_another_port_moves_the_call_to_itself(file: Path) -> None:
    make_demo(file, URL)
    make_demo(file, "http://127.0.0.1:9000")
    assert Job.objects.get(name=CALL).spec.target["url"] == "http://127.0.0.1:9000/healthz"
    assert "127.0.0.1:9000" in Tenant.objects.get(slug="demo").allowed_hosts


def test_a_lost_file_gives_a_new_login_and_leaves_the_old_password(file: Path) -> None:
    make_demo(file, URL)
    old = known(file)
    file.unlink()
    make_demo(file, URL)
    new = known(file)
    assert new["admin_user"] == "admin2" and new["api_key"] != old["api_key"]
    assert User.objects.get(username="admin").check_password(old["admin_password"])


def test_a_key_that_was_revoked_is_replaced(file: Path) -> None:
    make_demo(file, URL)
    old = known(file)
    key = find_key(old["api_key"])
    assert key is not None
    revoke_key(key)
    make_demo(file, URL)
    assert known(file)["api_key"] != old["api_key"] and known(file)["admin_user"] == old["admin_user"]


def test_a_pool_of_somebody_else_is_left_alone_and_what_is_refused_is_reported(file: Path) -> None:
    Pool.objects.create(slug="default", shared=True, exported_kinds=["http"])
    troubles = make_demo(file, URL)
    assert len(troubles) == 4 and all("does not" in trouble for trouble in troubles)
    assert Pool.objects.get(slug="default").exported_tasks == []


def test_everything_the_demo_makes_is_in_the_audit_trail(file: Path) -> None:
    make_demo(file, URL)
    actions = list(AuditEntry.objects.filter(actor="demo").values_list("action", flat=True))
    assert actions.count("job.created") == 5
    assert {"tenant.created", "pool.created", "key.created"} < set(actions)


def test_the_platforms_workers_know_the_demo_tasks() -> None:
    keeper.app.loader.import_default_modules()
    assert set(TASKS) <= set(keeper.targets.known())


def test_the_command_takes_the_address_from_the_settings(file: Path, settings: Any) -> None:
    settings.PUBLIC_URL = "http://127.0.0.1:8123"
    call_command("demo", credentials_file=file)
    assert Job.objects.get(name=CALL).spec.target["url"] == "http://127.0.0.1:8123/healthz"
