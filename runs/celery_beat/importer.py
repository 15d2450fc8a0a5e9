"""Import rows of django-celery-beat as jobs, one transaction each; a repeated import changes what differs.

A job is active from the moment its row is switched off, and paused before: the two never both run a time. Where the
rows lie in the platform's own database that is one transaction. Elsewhere it is two, the job's committed first: an
import that dies between them leaves both active until it is run again. On the way back such a death leaves neither
active until it is run again; only when both are committed is the row noted as given back.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from django.db import connection as django_connection
from django.db import transaction

from jobs.clock import database_now
from jobs.errors import DomainError, DuplicateName, hinted
from jobs.models import ImportedTask, Job, JobClock, JobStatus, Pool, Tenant
from jobs.schedules import Interval, next_after
from jobs.services.definition import create_job, edit_job
from jobs.services.occurrences import schedule_of
from jobs.services.status import pause_job, resume_with
from jobs.spec.targets.celery import is_reserved
from jobs.validation.checks import Json
from runs.celery_beat.due_tasks import task_of
from runs.celery_beat.schedules import Every, Task, Unservable, first_time
from runs.celery_beat.source import check_tables
from runs.celery_beat.translation import ImportOptions, Translation, translate
from runs.scheduler.partitions.lock_session import options_of
from runs.sql import Connection, change, django_session, records, rows

CREATED, UPDATED, UNCHANGED, REFUSED = "created", "updated", "unchanged", "not imported"
GIVEN_BACK = "given back"
ROW_IS_OFF = "its row was switched off"
ROW_IS_ON = "its row is still at work"
IS_GIVEN_BACK = "given back to celery beat"
CUT_SHORT = "neither it nor its job is at work, as its way back was cut short: run it with --undo again"
# What is due this moment is about to be sent by the scheduler that serves the row: check again after that.
JUST_DUE = timedelta(seconds=10)
AGAIN_SECONDS = 0.3
MILLISECOND = timedelta(milliseconds=1)


class Done(NamedTuple):
    name: str
    what: str
    # Why not, or what of the row is not kept.
    notes: list[str]
    spec: Json | None = None


class DueNow(Exception):
    """The row's next time is now: importing at this moment would run it once too often or once too few."""


@dataclass
class HostRows:
    """The database in which the periodic tasks lie."""

    connection: Connection
    source: str
    # Whether they lie in the platform's own database, on Django's own connection.
    own: bool

    def ids(self) -> list[int]:
        return [task for (task,) in rows(self.connection, "all_rows")]

    def read(self, task_id: int) -> tuple[Json, Task] | None:
        found = records(self.connection, "rows_to_import", {"tasks": [task_id]})
        return (found[0], task_of(found[0])) if found else None

    def all(self) -> Iterator[tuple[Json, Task]]:
        yield from filter(None, map(self.read, self.ids()))

    def lock(self, task_id: int) -> bool:
        return bool(rows(self.connection, "lock_row", {"task": task_id}))

    @contextmanager
    def together(self, dry_run: bool) -> Iterator[None]:
        """Open a transaction over the host project's rows and our jobs; a dry run rolls it back at its end."""
        host_transaction = nullcontext() if self.own else self.connection.transaction()
        with suppress(psycopg.Rollback), host_transaction, transaction.atomic():
            yield
            if dry_run:
                raise psycopg.Rollback


@contextmanager
def rows_at(url: str) -> Iterator[HostRows]:
    """Return the rows at a URL, or of the platform's own database; NotServable where none can be served."""
    if not url:
        check_tables(django_session())
        yield HostRows(django_session(), django_connection.settings_dict["NAME"], own=True)
        return
    options = options_of(url, {"timezone": "UTC"})
    with psycopg.connect(url, autocommit=True, connect_timeout=5, options=options) as connection:
        check_tables(connection)
        info = connection.info
        yield HostRows(connection, f"{info.host}:{info.port}/{info.dbname}"[:200], own=False)


def sources_of(tenant: Tenant, **which: Any) -> list[str]:
    """Return the databases that the tenant's rows were imported from."""
    records = ImportedTask.objects.filter(tenant=tenant, **which)
    return list(records.order_by("source").values_list("source", flat=True).distinct())


def missing_exports(tenant: Tenant, rows: HostRows, wanted: ImportOptions) -> list[str]:
    """Return tasks of the rows that the pool does not export; their jobs are refused until it does."""
    pool = Pool.objects.open_to(tenant).filter(slug=wanted.pool).first()
    exported = set(pool.exported_tasks) if pool is not None else set()
    tasks = {row["task"] for row, _ in rows.all()}
    return sorted(task for task in tasks - exported if not is_reserved(task))


@dataclass
class Import:
    tenant: Tenant
    wanted: ImportOptions
    rows: HostRows
    dry_run: bool = True
    switch_off: bool = False

    def run(self) -> Iterator[Done]:
        yield from filter(None, map(self._one, self.rows.ids()))

    def _one(self, task_id: int) -> Done | None:
        while True:
            try:
                with self.rows.together(self.dry_run):
                    return self._import(task_id)
            except DueNow:
                time.sleep(AGAIN_SECONDS)

    def _import(self, task_id: int) -> Done | None:
        if self.switch_off and not self.dry_run and not self.rows.lock(task_id):
            return None
        found = self.rows.read(task_id)
        if found is None:
            return None
        row, task = found
        key: dict[str, Any] = {"tenant": self.tenant, "source": self.rows.source, "task_id": task_id}
        records = ImportedTask.objects.select_related("job").select_for_update(of=("self",))
        known = records.filter(**key).first()
        if known is not None and known.switched_off_at is not None and not row["enabled"]:
            note = CUT_SHORT if _was_cut_short(known.job) else "it is switched off in favour of its job"
            return Done(row["name"], UNCHANGED, [note])
        try:
            translation = translate(row, task, database_now(), self.wanted)
            with transaction.atomic():
                what, job = self._write(row, translation, known)
        except DuplicateName:
            return Done(row["name"], REFUSED, ["there is a job of that name already: rename one of the two"])
        except DomainError as refused:
            return Done(row["name"], REFUSED, [hinted(str(refused), refused.hint)])
        values = {"name": row["name"], "job": job, "undone_at": None}
        record, _ = ImportedTask.objects.update_or_create(**key, defaults=values)
        if self.switch_off and row["enabled"]:
            self._switch_off(record, task)
            what = UPDATED if what == UNCHANGED else what
        return Done(row["name"], what, translation.notes, translation.spec)

    def _write(self, row: Json, translation: Translation, known: ImportedTask | None) -> tuple[str, Job]:
        job = known.job if known is not None else None
        takes_over = row["enabled"] and self.switch_off
        if job is None or job.deleted_at is not None or job.status == JobStatus.CANCELLED:
            job = create_job(self.tenant, translation.spec)
            return CREATED, job if takes_over else pause_job(job, ROW_IS_ON if row["enabled"] else ROW_IS_OFF)
        before = _compared(job)
        job = edit_job(job, _in_step(job, translation.spec), whole=True)
        if job.status == JobStatus.ACTIVE and row["enabled"] and not self.switch_off:
            translation.notes.append("its row is at work beside its job: both run it")
        if takes_over and job.status_reason in (ROW_IS_ON, ROW_IS_OFF, IS_GIVEN_BACK):
            job = resume_with(job, "taken over from celery beat", catch_up="skip").job
        return (UNCHANGED if _compared(job) == before else UPDATED), job

    def _switch_off(self, record: ImportedTask, task: Task) -> None:
        """Switch the row off under its lock, so that its next time is the job's, and no time is both's or nobody's."""
        now, first = database_now(), first_time(task)
        if not self.dry_run and now - JUST_DUE < first <= now:
            raise DueNow
        change(
            self.rows.connection,
            "switch_row",
            {"task": record.task_id, "enabled": False, "last_run_at": None},
        )
        record.switched_off_at = now
        record.save(update_fields=["switched_off_at"])


def _compared(job: Job) -> tuple[Any, ...]:
    return job.version, job.name, job.description, job.pool_id, job.priority, job.tags, job.status


def _in_step(job: Job, spec: Json) -> Json:
    """Keep an interval's rhythm: it continues as its job does, and its row counts from its own last run."""
    present = job.spec.schedule or {}
    wanted = spec["schedule"]
    if "every" not in wanted or present.get("every") != wanted["every"] or "begins_at" not in present:
        return spec
    return {**spec, "schedule": {**wanted, "begins_at": present["begins_at"]}}


def undo(tenant: Tenant, rows: HostRows, dry_run: bool) -> Iterator[Done]:
    """Go the way back: pause the jobs, and let the rows that were switched off for them go on."""
    records = ImportedTask.objects.filter(tenant=tenant, source=rows.source, undone_at=None)
    for record in records.order_by("task_id"):
        with rows.together(dry_run):
            done = _give_back(rows, record)
        if not dry_run:
            # Unless the row was imported again meanwhile.
            as_it_was = ImportedTask.objects.filter(pk=record.pk, switched_off_at=record.switched_off_at)
            as_it_was.update(undone_at=database_now(), switched_off_at=None, untriggered_at=None)
        yield done


def _give_back(rows: HostRows, record: ImportedTask) -> Done:
    there = rows.lock(record.task_id)
    record.refresh_from_db(from_queryset=ImportedTask.objects.select_for_update(of=("self",)))
    job, notes = record.job, list[str]()
    was_at_work = job.status == JobStatus.ACTIVE and job.deleted_at is None
    goes_on = there and record.switched_off_at is not None and (was_at_work or _was_cut_short(job))
    missed = _take_untriggered(record) if goes_on else None
    if was_at_work:
        job = pause_job(job, IS_GIVEN_BACK)
    if not there:
        notes.append("its row was deleted: the job is paused, and nothing runs it")
    elif goes_on:
        last = _before(rows, record.task_id, missed) if missed else _last_time(job)
        switched = {"task": record.task_id, "enabled": True, "last_run_at": last}
        change(rows.connection, "switch_row", switched)
    elif record.switched_off_at is not None:
        notes.append(f"its job is {job.status}, so its row stays switched off")
    return Done(record.name, GIVEN_BACK, notes)


def _before(rows: HostRows, task_id: int, at: datetime) -> datetime:
    """Return a last run after which the row's next time is this one."""
    found = rows.read(task_id)
    with suppress(Unservable):
        if found is not None and isinstance(found[1].times, Every):
            return at - found[1].times.length
    return at - MILLISECOND


def _was_cut_short(job: Job) -> bool:
    """Return whether a way back died between the two databases, so that its row is still off."""
    return job.status == JobStatus.PAUSED and job.status_reason == IS_GIVEN_BACK


def _take_untriggered(record: ImportedTask) -> datetime | None:
    """Take a time that is due and has no run yet, as where no scheduler works; the pause would trigger it.

    It is kept until the row has it, which may be in another database, and this process may die before.
    """
    if _was_cut_short(record.job):
        return record.untriggered_at
    clock = JobClock.objects.select_for_update().get(job=record.job)
    record.untriggered_at = None
    if clock.next_run_at is not None and clock.next_run_at <= database_now():
        record.untriggered_at, clock.next_run_at = clock.next_run_at, None
        clock.save(update_fields=["next_run_at"])
    record.save(update_fields=["untriggered_at"])
    return record.untriggered_at


def _last_time(job: Job) -> datetime:
    """Return where the row goes on after its job's times: an interval in its rhythm, all else from the pause."""
    schedule = schedule_of(job.spec)
    if not isinstance(schedule, Interval):
        return job.status_at
    following = next_after(schedule, job.status_at, anchor=job.spec.anchor_at)
    return following - schedule.every if following is not None else job.status_at
