"""Promise 2 rests on these: the same job and time always have the same id, and no two have one."""

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_project.sdk import ids

instants = st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1), timezones=st.just(timezone.utc)).map(
    lambda instant: instant.replace(microsecond=instant.microsecond // 1000 * 1000)
)
jobs = st.uuids()


@given(jobs, instants)
def test_the_same_job_and_time_have_the_same_id(job: UUID, instant: datetime) -> None:
    zoned = instant.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert ids.run_id(job, instant) == ids.run_id(job, zoned)


@given(jobs, instants)
def test_an_id_is_a_uuid_of_version_8_that_holds_its_time(job: UUID, instant: datetime) -> None:
    identity = ids.run_id(job, instant)
    assert (identity.version, identity.variant) == (8, "specified in RFC 4122")
    assert identity.int >> 80 == ids.milliseconds(instant)


@given(jobs, jobs, instants, instants)
def test_ids_sort_by_time_whatever_the_job(one: UUID, other: UUID, first: datetime, second: datetime) -> None:
    if first != second:
        assert (ids.run_id(one, first) < ids.run_id(other, second)) == (first < second)


@given(st.lists(st.tuples(jobs, instants), unique=True, max_size=50))
def test_different_jobs_or_times_never_share_an_id(pairs: list[tuple[UUID, datetime]]) -> None:
    assert len({ids.run_id(job, instant) for job, instant in pairs}) == len(pairs)


def test_a_hundred_thousand_ids_of_one_instant_are_different() -> None:
    instant = datetime(2026, 11, 18, tzinfo=timezone.utc)
    found = {ids.run_id(UUID(int=number), instant).int & ((1 << 80) - 1) for number in range(100_000)}
    assert len(found) == 100_000


@given(jobs, instants)
def test_a_planned_run_and_a_created_one_of_the_same_words_differ(job: UUID, instant: datetime) -> None:
    assert ids.run_id(job, instant) != ids.created_run_id(instant, job.bytes)


@given(jobs, instants, st.integers(1, 2**31), st.integers(1, 2**31))
def test_attempts_lie_in_the_partition_of_their_run(
    job: UUID, instant: datetime, one: int, other: int
) -> None:
    run = ids.run_id(job, instant)
    lower, upper = ids.id_range(instant, instant + ids.MILLISECOND)
    assert lower <= ids.attempt_id(run, one) < upper
    assert (ids.attempt_id(run, one) == ids.attempt_id(run, other)) == (one == other)


@given(jobs, instants)
def test_a_run_lies_in_the_range_of_its_day(job: UUID, instant: datetime) -> None:
    day = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    lower, upper = ids.id_range(day, day + timedelta(days=1))
    assert lower <= ids.run_id(job, instant) < upper


def test_microseconds_do_not_make_another_run() -> None:
    instant = datetime(2026, 11, 18, 12, 0, 0, 5000, tzinfo=timezone.utc)
    job = UUID(int=7)
    assert ids.run_id(job, instant) == ids.run_id(job, instant + timedelta(microseconds=999))


@pytest.mark.parametrize("instant", [datetime(1969, 12, 31, tzinfo=timezone.utc), datetime(2026, 1, 1)])
def test_an_instant_without_a_place_in_the_ids_is_refused(instant: datetime) -> None:
    with pytest.raises(ValueError, match=r"outside the range|needs a zone"):
        ids.run_id(UUID(int=1), instant)


def test_ids_are_what_they_have_always_been() -> None:
    """These values are in databases: another Python or another release must find the same."""
    instant = datetime(2026, 11, 18, 12, 0, tzinfo=timezone.utc)
    job = UUID("623737e3-2504-49ec-9a7c-2efcdd1c69dc")
    run = ids.run_id(job, instant)
    assert str(run) == "01a1ee87-3200-84ee-9603-2a472d005f27"
    assert str(ids.attempt_id(run, 3)) == "01a1ee87-3200-8b13-b686-9ce04e7c78f1"
    assert str(ids.created_run_id(instant, b"request")) == "01a1ee87-3200-8a68-8352-42f86a984c3a"


def test_another_process_with_another_hash_seed_agrees() -> None:
    source = Path(ids.__file__)
    program = (
        "import importlib.util, json, sys; from datetime import datetime, timezone; from uuid import UUID\n"
        f"spec = importlib.util.spec_from_file_location('ids', {str(source)!r})\n"
        "ids = importlib.util.module_from_spec(spec); spec.loader.exec_module(ids)\n"
        "at = datetime(2026, 11, 18, tzinfo=timezone.utc)\n"
        "print(json.dumps([str(ids.run_id(UUID(int=n), at)) for n in range(100)]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "12345"},
        capture_output=True,
        check=True,
        text=True,
    )
    at = datetime(2026, 11, 18, tzinfo=timezone.utc)
    assert json.loads(process.stdout) == [str(ids.run_id(UUID(int=number), at)) for number in range(100)]
