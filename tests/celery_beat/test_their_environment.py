"""A code base that has our code, and neither our settings nor our apps."""

from typing import Any

import pytest
from celery import Celery

from runs.celery_beat.source import KEEP_DAYS, NotServable, of_application, of_platform
from tests.celery_beat.theirs import Theirs

LOADED = """
import sys, runs.beat
from runs.beat import PartitionedScheduler
app = tests.celery_beat.their_app.app
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


def test_the_scheduler_loads_there_and_finds_their_database_and_their_entries(theirs: Theirs) -> None:
    info, dsn, entries, ours = theirs.python(LOADED).splitlines()
    assert "periodic tasks of django-celery-beat" in info
    assert theirs.url.rpartition("/")[2] in dsn
    cleanup = ("celery.backend_cleanup", "celery.backend_cleanup", None, "4")
    assert entries == f"{[cleanup, ('from the code', 'their.witness', 3600, None)]} 43200"
    assert ours == "[]"


def test_the_settings_of_the_environment_count(theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> None:
    set_there = {
        "BEATKEEPER_CELERY_BEAT_URL": "postgresql://elsewhere/theirs",
        "BEATKEEPER_CELERY_BEAT_UNKNOWN": "drop",
        "BEATKEEPER_CELERY_BEAT_KEEP_DAYS": "2.5",
    }
    code = "from runs.celery_beat.source import of_application\n"
    code += "source = of_application(tests.celery_beat.their_app.app)\n"
    code += "print(source.dsn, source.resend, source.keep_days)"
    env = theirs.env
    monkeypatch.setattr(theirs, "env", lambda: {**env(), **set_there})
    assert theirs.python(code).split() == ["postgresql://elsewhere/theirs", "False", "2.5"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("BEATKEEPER_CELERY_BEAT_UNKNOWN", "perhaps"), ("BEATKEEPER_CELERY_BEAT_KEEP_DAYS", "a week")],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    theirs: Theirs, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    code = "from runs.celery_beat.source import NotServable, of_application\n"
    code += "try: of_application(tests.celery_beat.their_app.app)\n"
    code += "except NotServable as why: print(why)"
    env = theirs.env
    monkeypatch.setattr(theirs, "env", lambda: {**env(), name: value})
    told = theirs.python(code)
    assert name in told and value in told


def test_an_application_without_the_tables_is_told_what_is_missing() -> None:
    with pytest.raises(NotServable, match="INSTALLED_APPS"):
        of_application(Celery("other", set_as_current=False))


def test_the_platform_serves_nobody_unless_it_is_asked_to(settings: Any) -> None:
    settings.CELERY_BEAT_URL = ""
    assert of_platform() is None
    settings.CELERY_BEAT_URL = "postgresql://elsewhere/theirs"
    settings.CELERY_BEAT_BROKER_URL = "redis://elsewhere"
    settings.CELERY_BEAT_QUEUE = "fast"
    source = of_platform()
    assert source is not None and source.keep_days == KEEP_DAYS and source.resend
    assert source.app.conf.broker_url == "redis://elsewhere"
    assert source.app.conf.task_default_queue == "fast" and source.write_entries is None
