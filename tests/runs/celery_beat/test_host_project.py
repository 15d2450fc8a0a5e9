"""A code base that has our code, and neither our settings nor our apps."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from runs.celery_beat.source import KEEP_DAYS, NotServable, of_application, of_platform
from tests.runs.celery_beat.host import HostProject
from tests.runs.celery_beat.rows import now

LOADED = """
import sys, runs.beat
from runs.beat import PartitionedScheduler
app = tests.runs.celery_beat.host_app.app
print(PartitionedScheduler(app, lazy=True).info)
from runs.celery_beat.source import of_application
source = of_application(app)
print(source.dsn)
source.write_entries()
source.write_entries()
names = PeriodicTask.objects.order_by("name").values_list("name", "task", "interval__every", "crontab__hour")
print(list(names), PeriodicTask.objects.get(name="celery.backend_cleanup").expire_seconds)
print([name for name in sys.modules if name.split(".")[0] in ("jobs", "auditlog")])
"""


def test_the_scheduler_loads_there_and_finds_their_database_and_their_entries(host: HostProject) -> None:
    info, dsn, entries, ours = host.python(LOADED).splitlines()
    assert "periodic tasks of django-celery-beat" in info
    assert host.url.rpartition("/")[2] in dsn
    cleanup = ("celery.backend_cleanup", "celery.backend_cleanup", None, "4")
    assert entries == f"{[cleanup, ('from the code', 'their.witness', 3600, None)]} 43200"
    assert ours == "[]"


IN_A_SCHEMA = """
import django.db
from runs.celery_beat.source import of_application, prepare
from runs.scheduler.partitions.lock_session import LockSession
default = django.db.connections["default"]
default.settings_dict["OPTIONS"] = {"options": "-c search_path=shop"}
default.close()
source = of_application(tests.runs.celery_beat.host_app.app)
with LockSession(source.dsn, "a scheduler") as session:
    prepare(session.connection)
print(PeriodicTask.objects.count())
"""


def test_rows_in_a_schema_that_their_settings_name_are_found(host: HostProject) -> None:
    host.rows("ALTER SCHEMA public RENAME TO shop")
    assert host.python(IN_A_SCHEMA) == "0\n"
    tables = host.rows("SELECT schemaname FROM pg_tables WHERE tablename = 'beatkeeper_celery_firing'")
    assert tables == [{"schemaname": "shop"}]


# DatabaseScheduler under settings as those of Django before 5, sends a row once.
NAIVE = """
import os, psycopg
from django.conf import settings
settings.USE_TZ, settings.TIME_ZONE, settings.DJANGO_CELERY_BEAT_TZ_AWARE = {use_tz}, "{zone}", False
app = tests.runs.celery_beat.host_app.app
app.conf.timezone = "{zone}"
every = IntervalSchedule.objects.create(every=5, period="minutes")
PeriodicTask.objects.create(name="settle", task="their.witness", interval=every)
from django_celery_beat.schedulers import DatabaseScheduler
scheduler = DatabaseScheduler(app)
scheduler.reserve(scheduler.schedule["settle"])
scheduler.sync()
from runs.celery_beat.source import NotServable, of_application
try:
    of_application(app)
    print("is served")
except NotServable as why:
    print(why)
"""


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin"])
@pytest.mark.parametrize("use_tz", [True, False])
def test_times_that_their_scheduler_kept_hours_off_are_refused_with_what_puts_them_right(
    host: HostProject, use_tz: bool, zone: str
) -> None:
    output = host.python(NAIVE.format(use_tz=use_tz, zone=zone))
    assert "DJANGO_CELERY_BEAT_TZ_AWARE" in output and zone in output
    assert abs(host.task("settle")["last_run_at"] - now(host)) > timedelta(minutes=50)
    _, statement = output.split(": ", 1)
    host.rows(statement.split(";")[0])
    assert abs(host.task("settle")["last_run_at"] - now(host)) < timedelta(minutes=2)


def test_their_scheduler_keeps_right_times_in_utc(host: HostProject) -> None:
    assert "is served" in host.python(NAIVE.format(use_tz=False, zone="UTC"))


ENTRIES = """
from django.db import OperationalError
from django_celery_beat.clockedschedule import clocked
from runs.celery_beat.source import of_application
app = tests.runs.celery_beat.host_app.app
entry = {"task": "their.witness", "schedule": 60.0}
app.conf.beat_schedule = {
    "an unknown key": {**entry, "comment": "each minute"},
    "clocked and not one_off": {**entry, "schedule": clocked(now + timedelta(days=1))},
    "too long": {**entry, "task": "x" * 201},
    "good": entry,
}
write_entries = of_application(app).write_entries
write_entries()
print(sorted(PeriodicTask.objects.values_list("name", flat=True)))

class Away:
    def db_for_write(self, *_, **__):
        raise OperationalError("the server is starting up")

from django.db import router
router.routers = [Away()]
try:
    write_entries()
except OperationalError as error:
    print(error)
"""


def test_an_entry_that_makes_no_sense_is_left_out_and_a_database_that_is_away_is_reported(
    host: HostProject,
) -> None:
    written, away = host.python(ENTRIES).splitlines()
    assert written == "['celery.backend_cleanup', 'good']"
    assert away == "the server is starting up"


def test_packages_of_theirs_that_are_called_as_ours_stand_in_no_way(
    host: HostProject, tmp_path: Path
) -> None:
    for name in ("jobs", "auditlog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("THEIRS = True")
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport jobs, auditlog\n"
    code += "from runs.beat import PartitionedScheduler\n"
    code += "info = PartitionedScheduler(tests.runs.celery_beat.host_app.app, lazy=True).info\n"
    code += "print(info, jobs.THEIRS, auditlog.THEIRS)"
    output = host.python(code)
    assert "periodic tasks of django-celery-beat" in output and "True True" in output


def test_the_settings_of_the_environment_count(host: HostProject, monkeypatch: pytest.MonkeyPatch) -> None:
    set_there = {
        "BEATKEEPER_CELERY_BEAT_URL": "postgresql://elsewhere/host",
        "BEATKEEPER_CELERY_BEAT_UNKNOWN": "drop",
        "BEATKEEPER_CELERY_BEAT_KEEP_DAYS": "2.5",
    }
    code = "from runs.celery_beat.source import of_application\n"
    code += "source = of_application(tests.runs.celery_beat.host_app.app)\n"
    code += "print(source.dsn, source.resend, source.keep_days)"
    env = host.env
    monkeypatch.setattr(host, "env", lambda: {**env(), **set_there})
    assert host.python(code).split() == ["postgresql://elsewhere/host", "False", "2.5"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("BEATKEEPER_CELERY_BEAT_UNKNOWN", "perhaps"), ("BEATKEEPER_CELERY_BEAT_KEEP_DAYS", "a week")],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    host: HostProject, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    code = "from runs.celery_beat.source import NotServable, of_application\n"
    code += "try: of_application(tests.runs.celery_beat.host_app.app)\n"
    code += "except NotServable as why: print(why)"
    env = host.env
    monkeypatch.setattr(host, "env", lambda: {**env(), name: value})
    output = host.python(code)
    assert name in output and value in output


def test_an_application_without_the_tables_learns_what_is_missing() -> None:
    with pytest.raises(NotServable, match="INSTALLED_APPS"):
        of_application(Celery("other", set_as_current=False))


def test_the_platform_serves_nobody_unless_it_is_asked_to(settings: Any) -> None:
    settings.CELERY_BEAT_URL = ""
    assert of_platform() is None
    settings.CELERY_BEAT_URL = "postgresql://elsewhere/host"
    settings.CELERY_BEAT_BROKER_URL = "redis://elsewhere"
    settings.CELERY_BEAT_QUEUE = "fast"
    source = of_platform()
    assert source is not None and source.keep_days == KEEP_DAYS and source.resend
    assert source.app.conf.broker_url == "redis://elsewhere"
    assert source.app.conf.task_default_queue == "fast" and source.write_entries is None
    assert not source.knows_queues
