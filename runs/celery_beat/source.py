"""Find whose periodic tasks are served: the database they lie in, and the broker their messages go to."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from celery import Celery
from celery.schedules import crontab
from django.conf import settings
from psycopg.conninfo import make_conninfo

from runs.scheduler.partitions.lock_session import CELERY
from runs.sql import SQL, Connection, rows
from scheduler_project.sdk.transport.broker_tls import CheckedAMQP, checked_on_redis

logger = logging.getLogger(__name__)

CLEAN_UP = "celery.backend_cleanup"
TWELVE_HOURS = 12 * 3600
KEEP_DAYS = 7.0


class NotServable(Exception):
    """The periodic tasks cannot be served here; the message says why and what helps."""


@dataclass(frozen=True)
class Source:
    dsn: str
    app: Celery
    # Whether a message is sent again that its scheduler died over: at least once, or at most once.
    resend: bool = True
    keep_days: float = KEEP_DAYS
    # Whether the application knows how its queues are made; else those that are there are used as they are.
    knows_queues: bool = True
    # Writes the entries of the application's own code into rows, as DatabaseScheduler does when it starts.
    write_entries: Callable[[], None] | None = None


def of_platform() -> Source | None:
    """Return another code base's database, if the platform's settings name one.

    Its application is known by its broker.
    """
    if not settings.CELERY_BEAT_URL:
        return None
    broker = checked_on_redis(settings.CELERY_BEAT_BROKER_URL, settings.BROKER_CA_FILE)
    app = Celery("celery-beat", broker=broker, amqp=CheckedAMQP, set_as_current=False)
    app.conf.update(enable_utc=True, timezone="UTC", task_default_queue=settings.CELERY_BEAT_QUEUE)
    return Source(
        settings.CELERY_BEAT_URL,
        app,
        resend=settings.CELERY_BEAT_RESEND,
        keep_days=settings.CELERY_BEAT_KEEP_DAYS,
        knows_queues=False,
    )


def of_application(app: Celery) -> Source:
    """Return the database of the Django project that this beat was started for (celery -A project beat)."""
    try:
        from django.db import connections, router
        from django_celery_beat.models import PeriodicTask

        connection = connections[router.db_for_write(PeriodicTask)]
    except Exception as error:
        raise NotServable(
            f"neither the platform nor django_celery_beat is among the INSTALLED_APPS: {error}"
        ) from error
    if connection.vendor != "postgresql":
        raise NotServable(
            f"django-celery-beat's tables lie in {connection.vendor}; only PostgreSQL is served: "
            "stay with its DatabaseScheduler, or move them (manage.py dumpdata django_celery_beat)"
        )
    _refuse_shifted_times(connection.timezone_name)
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    parameters: dict[str, Any] = connection.get_connection_params()
    dsn = make_conninfo(**{name: value for name, value in parameters.items() if name in known})
    unknown = os.environ.get("BEATKEEPER_CELERY_BEAT_UNKNOWN") or "resend"
    if unknown not in ("resend", "drop"):
        raise NotServable(f"BEATKEEPER_CELERY_BEAT_UNKNOWN={unknown!r} is not one of resend, drop")
    return Source(
        os.environ.get("BEATKEEPER_CELERY_BEAT_URL") or dsn,
        app,
        resend=unknown == "resend",
        keep_days=_keep_days(),
        write_entries=lambda: _write_entries(app),
    )


def _refuse_shifted_times(session_zone: str) -> None:
    """Refuse settings under which DatabaseScheduler writes naive UTC that Django reads as local time."""
    zone = settings.TIME_ZONE if settings.USE_TZ else session_zone
    if getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True) or zone in ("UTC", "Etc/UTC"):
        return
    instant = f"last_run_at AT TIME ZONE '{zone}' AT TIME ZONE 'UTC'"
    statement = f"UPDATE django_celery_beat_periodictask SET last_run_at = {instant}"  # noqa: S608 - to be read
    raise NotServable(
        f"under DJANGO_CELERY_BEAT_TZ_AWARE = False DatabaseScheduler has kept each last_run_at as far off as {zone} "
        "is from UTC. Stop it, take that setting out, which nothing else here needs, and put the times right, once: "
        f"{statement}; then start again"
    )


def _keep_days() -> float:
    value = os.environ.get("BEATKEEPER_CELERY_BEAT_KEEP_DAYS") or KEEP_DAYS
    try:
        return float(value)
    except ValueError:
        raise NotServable(f"BEATKEEPER_CELERY_BEAT_KEEP_DAYS={value!r} is not a number of days") from None


def _write_entries(app: Celery) -> None:
    """Write the entries of beat_schedule; one that makes no sense is logged and left out."""
    from django.db import InterfaceError, OperationalError
    from django_celery_beat.schedulers import ModelEntry

    entries: dict[str, Any] = {}
    if app.conf.result_expires:
        options = {"expire_seconds": TWELVE_HOURS}
        entries[CLEAN_UP] = {"task": CLEAN_UP, "schedule": crontab("0", "4", "*"), "options": options}
    for name, entry in {**entries, **app.conf.beat_schedule}.items():
        try:
            ModelEntry.from_entry(name, app=app, **entry)
        except (OperationalError, InterfaceError):  # the database is away: all are tried again
            raise
        except Exception as error:  # the models have errors of their own
            logger.exception("the entry %s of beat_schedule cannot be written: %s", name, error)


def check_tables(connection: Connection) -> bool:
    """Make sure that django-celery-beat's tables exist, and return whether ours does."""
    there, ours, zoneless = rows(connection, "celery_tables")[0]
    database = connection.info.dbname
    if not there:
        raise NotServable(f"the database {database} has no tables of django-celery-beat: run its migrations")
    if zoneless:
        raise NotServable(
            f"{', '.join(zoneless)} in {database} are kept without their time zone, so nobody knows which instants "
            "are meant; Django makes them as timestamptz: convert them (ALTER COLUMN … TYPE timestamptz USING …)"
        )
    return bool(ours)


def prepare(connection: Connection) -> None:
    """Make our table beside those of django-celery-beat."""
    if check_tables(connection):
        return
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, -1)", [CELERY])
            connection.execute(SQL["make_celery_firing"])
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotServable(
            f"the user {connection.info.user} may not make the table beatkeeper_celery_firing in "
            f"{connection.info.dbname}: let its owner run the statement that docs/how-to/celery-beat.md gives"
        ) from error
