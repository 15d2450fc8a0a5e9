"""django-celery-beat's DatabaseScheduler, given as many due tasks on the same broker, for so many seconds.

It is not asked to store those that are not due, and its start is not counted: time runs from its first message on.
"""

import time
from typing import Any

from tests.benchmarks import stored
from tests.benchmarks.stage import Database, Stage, check_alive, depth
from tests.support.processes import RealProcess
from tests.support.waiting import wait_until

TASK = "peer.noop"
START_SECONDS = 120.0
TASKS = """
INSERT INTO django_celery_beat_intervalschedule (every, period) VALUES (3600, 'seconds');
INSERT INTO django_celery_beat_periodictask
        (name, task, args, kwargs, queue, exchange, routing_key, headers, enabled, one_off, description,
         interval_id, last_run_at, total_run_count, date_changed)
    SELECT 'job-' || i, %(task)s, '[]', jsonb_build_object('payload', repeat(md5(i::text), 32))::text,
           %(prefix)s || (1 + i %% %(queues)s), NULL, NULL, '{}', true, false, '',
           (SELECT max(id) FROM django_celery_beat_intervalschedule), now() - interval '3600 seconds', 0, now()
    FROM generate_series(1, %(due)s) i
"""


def measure(stage: Stage, due: int, seconds: float) -> dict[str, Any]:
    url = stage.empty_database("peer")
    app = "tests.benchmarks.peer_app"
    migrate = (
        f"import {app}; from django.core.management import call_command; call_command('migrate', verbosity=0)"
    )
    stage.python("-c", migrate, url=url, name="peer-migrate").wait_for_success(120)
    prefix = f"{stage.prefix}.peer."
    database = Database(url, due)
    _fill(database, due, prefix)
    beat = [
        "-m",
        "celery",
        "-A",
        app,
        "beat",
        "-l",
        "warning",
        "--pidfile=",
        f"-s{stage.folder}/peer-schedule",
    ]
    process = stage.python(*beat, url=url, name="peer", DJANGO_SETTINGS_MODULE=None).process
    queues = [f"{prefix}{number}" for number in range(1, stored.TENANTS + 1)]
    try:
        published, spent = _count(stage, process, queues, due, seconds)
    finally:
        process.kill()
        database.session.close()
        stage.delete_queues()
    assert published > 0, f"the peer published nothing:\n{process.text()[-3000:]}"
    return {"published": published, "seconds": spent}


def _count(
    stage: Stage, process: RealProcess, queues: list[str], due: int, seconds: float
) -> tuple[int, float]:
    """How many messages came after the first, and in what time."""
    with stage.channel() as channel:
        wait_until(
            lambda: _published(channel, queues[1:2]) or not process.is_alive(),
            START_SECONDS,
            "the peer's first message",
        )
        began = time.monotonic()
        check_alive(process)
        before = _published(channel, queues)
        wait_until(
            lambda: time.monotonic() - began >= seconds or _published(channel, queues) >= due,
            seconds + 30,
            "the peer's time",
            interval=min(1.0, seconds / 10),
        )
        return _published(channel, queues) - before, time.monotonic() - began


def _fill(database: Database, due: int, prefix: str) -> None:
    values = {"task": TASK, "prefix": prefix, "queues": stored.TENANTS, "due": due}
    for statement in TASKS.split(";\n"):
        stored.fill_in(database.session, statement, values)
    database.session.execute("VACUUM ANALYZE")


def _published(channel: Any, queues: list[str]) -> int:
    return sum(depth(channel, queue) for queue in queues)
