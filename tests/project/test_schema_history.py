"""A database of a version from before 0.1.0 is refused; one of a newer version is not."""

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection

from scheduler_project.doctor import database
from scheduler_project.doctor.findings import Level
from scheduler_project.schema_history import foreign_migrations
from tests.support.processes import CHECKOUT

RUNS = [path.stem for path in sorted((CHECKOUT / "runs" / "migrations").glob("0*.py"))]
OURS = [*(("beatkeeper_runs", name) for name in RUNS), ("auth", "0012_any")]
NEWER = [("beatkeeper_runs", f"{len(RUNS) + number:04}_newer") for number in (1, 2)]


@pytest.mark.parametrize(
    ("applied", "foreign"),
    [
        ([], []),
        (OURS, []),
        (OURS[:1], []),
        ([*OURS, *NEWER], []),
        ([*OURS, ("beatkeeper_runs", "0012_ready_order")], ["beatkeeper_runs.0012_ready_order"]),
        ([("beatkeeper_auditlog", "0002_append_only")], ["beatkeeper_auditlog.0002_append_only"]),
    ],
    ids=["empty", "ours", "not yet complete", "newer", "of before", "of before, with a number of ours"],
)
def test_the_line_of_migrations_is_recognized(applied: list[tuple[str, str]], foreign: list[str]) -> None:
    assert foreign_migrations(applied) == foreign


@pytest.fixture
def of_before(db: None) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('beatkeeper_runs', '0012_ready_order', now())"
        )
    yield


@pytest.mark.usefixtures("of_before")
def test_migrate_refuses_a_database_of_before() -> None:
    with pytest.raises(SystemCheckError) as refused:
        call_command("migrate", verbosity=0, skip_checks=False)
    said = str(refused.value)
    assert "beatkeeper_runs.0012_ready_order" in said and "before 0.1.0" in said
    assert "move the state folder of `make up` away" in said and "Nothing was changed or deleted" in said


@pytest.mark.django_db
def test_migrate_accepts_its_own_database() -> None:
    call_command("migrate", verbosity=0, skip_checks=False)


@pytest.mark.usefixtures("of_before")
def test_the_doctor_names_a_database_of_before() -> None:
    (found,) = [one for one in database.migrations() if one.level != Level.FINE]
    assert found.level == Level.PROBLEM and "before 0.1.0" in found.what
