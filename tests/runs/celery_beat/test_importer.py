"""The import by its command: what it says, what it does, that it can be repeated and undone."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from psycopg.conninfo import make_conninfo

from auditlog.models import AuditEntry
from jobs.models import ImportedTask, Job, JobClock, JobStatus, Tenant
from jobs.services.status import pause_job
from runs.celery_beat.due_tasks import read_tasks
from runs.celery_beat.importer import AGAIN_SECONDS, HostRows, Import, rows_at, undo
from runs.celery_beat.schedules import first_time
from runs.celery_beat.translation import ImportOptions
from runs.models import Run
from tests.runs.celery_beat.host import MIGRATE, HostProject
from tests.runs.celery_beat.rows import HOUR, add, clocked, crontab, interval, now
from tests.support.factories import make_pool, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant() -> Tenant:
    make_pool(slug="default", exported_tasks=["their.witness", "their.routed"])
    return make_tenant(slug="shop")


@pytest.fixture
def host(host: HostProject, settings: LazySettings, tenant: Tenant) -> HostProject:
    settings.CELERY_BEAT_URL = host.url
    return host


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("import_celery_beat", "--tenant", "shop", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def lines(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if f"  {name}" in line]
    return line


def job(name: str) -> Job:
    return Job.objects.get(name=name, deleted_at=None)


def clock(name: str) -> Any:
    return JobClock.objects.get(job__name=name).next_run_at


def fill(host: HostProject) -> None:
    at = now(host)
    last = at - timedelta(minutes=10)
    add(host, "hourly", last_run_at=last, queue="fast", args="[1]")
    add(host, "off", last_run_at=None, enabled=False)
    add(host, "typo", last_run_at=last, task="their.witnes")
    add(host, "broken", last_run_at=last, args="[1,")


def test_without_apply_nothing_changes_and_everything_is_said(host: HostProject) -> None:
    fill(host)
    before = host.task("hourly")
    output = command()
    assert "Nothing was changed" in output
    assert lines(output, "hourly").startswith("created  hourly: their.witness. Every hour, from")
    assert "queue are not kept" in output and "job is paused" in output
    assert lines(output, "typo").startswith("not imported") and "their.witness" in output
    assert "does not export, and so cannot run: their.witnes" in output
    assert lines(output, "broken").startswith("not imported") and "args are not JSON" in output
    assert "2 created, 2 not imported" in output
    assert not Job.objects.exists() and not ImportedTask.objects.exists() and not AuditEntry.objects.exists()
    assert host.task("hourly") == before


def test_applied_jobs_wait_until_their_rows_are_switched_off(host: HostProject) -> None:
    fill(host)
    assert "2 created, 2 not imported" in command("--apply")
    made = job("hourly")
    assert made.status == JobStatus.PAUSED and "still at work" in made.status_reason
    assert host.task("hourly")["enabled"]
    assert AuditEntry.objects.filter(action="job.created", actor="import_celery_beat").count() == 2


def test_applied_again_nothing_changes_or_what_the_row_says_now(host: HostProject) -> None:
    fill(host)
    command("--apply")
    version = job("hourly").version
    assert lines(command("--apply"), "hourly").startswith("unchanged")
    assert job("hourly").version == version
    host.rows(
        "UPDATE django_celery_beat_periodictask SET args = '[2]', last_run_at = last_run_at + interval '1 m'"
    )
    host.rows("UPDATE django_celery_beat_periodictask SET name = 'each hour' WHERE name = 'hourly'")
    assert lines(command("--apply"), "each hour").startswith("updated")
    assert job("each hour").version == version + 1 and not Job.objects.filter(name="hourly").exists()


def test_with_the_rows_off_their_jobs_go_on_in_the_same_rhythm(host: HostProject) -> None:
    fill(host)
    due = host.task("hourly")["last_run_at"] + HOUR
    command("--apply")
    output = command("--apply", "--disable-imported")
    assert lines(output, "hourly").startswith("updated")
    made = job("hourly")
    assert made.status == JobStatus.ACTIVE
    assert abs(clock("hourly") - due) < timedelta(milliseconds=1)
    assert not host.task("hourly")["enabled"] and host.task("typo")["enabled"]
    assert job("off").status == JobStatus.PAUSED
    record = ImportedTask.objects.get(name="hourly")
    assert record.switched_off_at is not None and record.job == made
    assert ImportedTask.objects.get(name="off").switched_off_at is None
    assert lines(command("--apply", "--disable-imported"), "hourly").startswith("unchanged")


def test_all_in_one_step(host: HostProject) -> None:
    fill(host)
    assert lines(command("--apply", "--disable-imported"), "hourly").startswith("created")
    assert job("hourly").status == JobStatus.ACTIVE and not host.task("hourly")["enabled"]


def test_undone_the_rows_go_on_in_the_rhythm_of_their_jobs(host: HostProject) -> None:
    fill(host)
    due = host.task("hourly")["last_run_at"] + HOUR
    command("--apply", "--disable-imported")
    assert "given back  hourly" in command("--undo", "--dry-run")
    assert not host.task("hourly")["enabled"]
    output = command("--undo")
    assert "given back  hourly" in output
    row = host.task("hourly")
    assert row["enabled"] and abs(row["last_run_at"] + HOUR - due) < timedelta(milliseconds=1)
    assert not host.task("off")["enabled"]
    assert job("hourly").status == JobStatus.PAUSED and clock("hourly") is None
    assert "there are no rows" in command("--undo")


@pytest.mark.parametrize("kind", ["interval", "crontab", "one off", "clocked"])
def test_a_time_that_the_platform_has_not_triggered_is_the_rows_after_the_way_back(
    host: HostProject, kind: str
) -> None:
    """Its schedulers are down, which is why somebody goes back."""
    at = now(host)
    due = (at + HOUR).replace(second=0, microsecond=0)
    rows: dict[str, dict[str, Any]] = {
        "interval": {"last_run_at": due - HOUR},
        "crontab": {"crontab_id": crontab(host, str(due.minute), "*"), "last_run_at": at},
        "one off": {"one_off": True, "last_run_at": due - HOUR},
        "clocked": {"clocked_id": clocked(host, due), "one_off": True, "last_run_at": None},
    }
    add(host, "settle", **rows[kind])
    command("--apply", "--disable-imported")
    assert clock("settle") == due
    missed = due - 2 * HOUR
    JobClock.objects.update(next_run_at=missed)
    host.rows("UPDATE django_celery_beat_clockedschedule SET clocked_time = %s", [missed])
    assert "given back  settle" in command("--undo")
    with host.connect() as connection:
        (task,) = read_tasks(connection, [host.task("settle")["id"]])
    assert task.enabled and first_time(task) == missed
    assert clock("settle") is None and not Run.objects.exists()


def test_after_the_way_back_there_is_a_way_forth(host: HostProject) -> None:
    fill(host)
    command("--apply", "--disable-imported")
    command("--undo")
    assert lines(command("--apply", "--disable-imported"), "hourly").startswith("updated")
    assert job("hourly").status == JobStatus.ACTIVE and not host.task("hourly")["enabled"]
    assert Job.objects.filter(name="hourly").count() == 1


def test_a_job_that_somebody_paused_stays_so(host: HostProject) -> None:
    fill(host)
    command("--apply")
    host.rows("UPDATE django_celery_beat_periodictask SET enabled = false WHERE name = 'hourly'")
    Job.objects.filter(name="hourly").update(status_reason="by hand")
    host.rows("UPDATE django_celery_beat_periodictask SET enabled = true WHERE name = 'hourly'")
    command("--apply", "--disable-imported")
    assert job("hourly").status == JobStatus.PAUSED


def test_a_row_that_is_switched_on_beside_its_job_is_reported(host: HostProject) -> None:
    fill(host)
    command("--apply", "--disable-imported")
    host.rows("UPDATE django_celery_beat_periodictask SET enabled = true WHERE name = 'hourly'")
    assert "beside its job: both run it" in command("--apply")


def test_a_job_of_the_same_name_is_left_alone(host: HostProject, tenant: Tenant) -> None:
    fill(host)
    command("--apply")
    ImportedTask.objects.all().delete()
    output = command("--apply")
    assert lines(output, "hourly").startswith("not imported") and "of that name already" in output


def test_a_row_whose_time_is_just_now_is_waited_for(
    host: HostProject, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever serves it sends it; then it is the job's turn."""
    add(host, "minutely", interval_id=interval(host, 60), last_run_at=now(host) - timedelta(seconds=61))
    slept = []

    def sent_meanwhile(seconds: float) -> None:
        slept.append(seconds)
        host.rows("UPDATE django_celery_beat_periodictask SET last_run_at = last_run_at + interval '60 s'")

    monkeypatch.setattr("runs.celery_beat.importer.time", SimpleNamespace(sleep=sent_meanwhile))
    with rows_at(host.url) as rows:
        (done,) = Import(tenant, ImportOptions("default"), rows, False, True).run()
    assert slept == [AGAIN_SECONDS] and done.what == "created"
    assert not host.task("minutely")["enabled"] and clock("minutely") > now(host)


def test_a_row_that_ran_once_as_a_job_stays_off(host: HostProject, tenant: Tenant) -> None:
    add(host, "once", one_off=True, last_run_at=now(host))
    command("--apply", "--disable-imported")
    Job.objects.filter(name="once").update(status=JobStatus.FINISHED)
    assert "stays switched off" in command("--undo")
    assert not host.task("once")["enabled"]


def test_a_row_that_was_deleted_meanwhile_is_reported(host: HostProject) -> None:
    fill(host)
    command("--apply", "--disable-imported")
    host.rows("DELETE FROM django_celery_beat_periodictask")
    assert "its row was deleted" in command("--undo")
    assert job("hourly").status == JobStatus.PAUSED


def test_the_shadow_finds_every_time_the_same(host: HostProject) -> None:
    fill(host)
    output = command("--shadow", "--hours", "48")
    assert "hourly: 48 times are the same\n" in output
    assert "not imported  broken: its args are not JSON" in output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--apply", "--dry-run"], "exclude each other"),
        (["--apply", "--undo"], "not allowed with"),
        (["--tenant", "shpo"], "there is no tenant shpo; there are shop"),
    ],
)
def test_nonsense_is_refused_in_words(host: HostProject, arguments: list[str], why: str) -> None:
    with pytest.raises(CommandError, match=why):
        command(*arguments)


def test_without_their_tables_it_says_so(settings: LazySettings, tenant: Tenant) -> None:
    settings.CELERY_BEAT_URL = ""
    with pytest.raises(CommandError, match="no tables of django-celery-beat"):
        command()


@pytest.fixture
def at_home(
    database_url: str, settings: LazySettings, tenant: Tenant, tmp_path: Any
) -> Iterator[HostProject]:
    """Their tables in the platform's own database."""
    settings.CELERY_BEAT_URL = ""
    host = HostProject(database_url, "none", "memory://", tmp_path)
    host.python(MIGRATE)
    yield host
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'django_celery_beat_%'")
        for (table,) in cursor.fetchall():
            cursor.execute(f"DROP TABLE {table} CASCADE")
        cursor.execute("DELETE FROM django_migrations WHERE app = 'django_celery_beat'")


def test_in_one_database_job_and_row_are_one_transaction(
    at_home: HostProject, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(at_home)

    class Cut(Exception):
        pass

    def cut(*_: Any, **__: Any) -> None:
        raise Cut

    monkeypatch.setattr(ImportedTask, "save", cut)
    with pytest.raises(Cut):
        command("--apply", "--disable-imported")
    assert at_home.task("hourly")["enabled"] and not Job.objects.exists()
    monkeypatch.undo()
    command("--apply", "--disable-imported")
    assert not at_home.task("hourly")["enabled"] and job("hourly").status == JobStatus.ACTIVE
    command("--undo")
    assert at_home.task("hourly")["enabled"]


def test_rows_in_a_schema_that_the_url_names_are_found(host: HostProject, settings: LazySettings) -> None:
    fill(host)
    host.rows("ALTER SCHEMA public RENAME TO shop")
    settings.CELERY_BEAT_URL = make_conninfo(host.url, options="-c search_path=shop")
    assert lines(command(), "hourly").startswith("created")


def test_in_two_databases_who_dies_between_them_can_go_on(host: HostProject, tenant: Tenant) -> None:
    """The job's transaction is committed, the row's is not: both are at work, and the import puts that right."""
    add(host, "hourly", last_run_at=now(host))
    with rows_at(host.url) as rows:
        work = Import(tenant, ImportOptions("default"), rows, False, True)
        with pytest.raises(ZeroDivisionError), rows.connection.transaction():
            work.rows.own = True
            work._one(rows.ids()[0])
            raise ZeroDivisionError
    assert host.task("hourly")["enabled"] and job("hourly").status == JobStatus.ACTIVE
    command("--apply", "--disable-imported")
    assert not host.task("hourly")["enabled"] and job("hourly").status == JobStatus.ACTIVE


@pytest.mark.parametrize("untriggered", [False, True])
def test_in_two_databases_who_dies_amid_the_way_back_can_go_it_again(
    host: HostProject, monkeypatch: pytest.MonkeyPatch, untriggered: bool
) -> None:
    """Die between the two commits: neither job nor row is active, and nothing is lost.

    The job's transaction is committed, the row's is not. The row continues from the pause, or from the time that no
    scheduler had triggered.
    """
    add(host, "hourly", last_run_at=now(host))
    command("--apply", "--disable-imported")
    missed = now(host).replace(microsecond=0) - 2 * HOUR
    if untriggered:
        JobClock.objects.update(next_run_at=missed)

    @contextmanager
    def cut(rows: HostRows, dry_run: bool) -> Iterator[None]:
        with rows.connection.transaction():
            with transaction.atomic():
                yield
            raise ZeroDivisionError

    monkeypatch.setattr(HostRows, "together", cut)
    with pytest.raises(ZeroDivisionError):
        command("--undo")
    monkeypatch.undo()
    assert not host.task("hourly")["enabled"] and job("hourly").status == JobStatus.PAUSED
    assert "run it with --undo again" in command("--apply")
    output = command("--undo")
    assert "given back  hourly" in output and "stays switched off" not in output
    assert host.task("hourly")["enabled"]
    if untriggered:
        assert host.task("hourly")["last_run_at"] + HOUR == missed
    record = ImportedTask.objects.get()
    assert record.undone_at is not None and record.switched_off_at is record.untriggered_at is None


def test_the_way_back_is_found_where_the_database_is_called_by_another_name(
    host: HostProject, settings: LazySettings
) -> None:
    add(host, "hourly", last_run_at=now(host))
    settings.CELERY_BEAT_URL = make_conninfo(host.url, host="127.0.0.1")
    command("--apply", "--disable-imported")
    source = ImportedTask.objects.get().source
    settings.CELERY_BEAT_URL = make_conninfo(host.url, host="localhost")
    with pytest.raises(CommandError, match=f"localhost.* --source {source}"):
        command("--undo")
    with pytest.raises(CommandError, match=f"nothing was imported from elsewhere.*{source}"):
        command("--undo", "--source", "elsewhere")
    assert not host.task("hourly")["enabled"]
    assert "given back  hourly" in command("--undo", "--source", source)
    assert host.task("hourly")["enabled"]
    assert "there are no rows" in command("--undo")


def test_the_services_know_their_own_records(host: HostProject, tenant: Tenant) -> None:
    fill(host)
    command("--apply", "--disable-imported")
    other = make_tenant(slug="other")
    with rows_at(host.url) as rows:
        assert list(undo(other, rows, dry_run=False)) == []
    pause_job(job("hourly"), "by hand")
    assert "stays switched off" in command("--undo")
