"""Attacks promise 10: the database refuses to change or remove an entry."""

import pytest
from django.db import IntegrityError, connection, transaction

from auditlog.actions import Action
from auditlog.models import AuditEntry
from auditlog.record import record
from tests.support.factories import make_tenant

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE beatkeeper_audit_entry SET actor = 'nobody'",
        "UPDATE beatkeeper_audit_entry SET transaction = '1'",
        "DELETE FROM beatkeeper_audit_entry",
        "TRUNCATE beatkeeper_audit_entry",
        "TRUNCATE beatkeeper_audit_entry CASCADE",
    ],
)
def test_sql_cannot_touch_an_entry(statement: str) -> None:
    entry = record(Action.TENANT_CREATED, make_tenant())
    with pytest.raises(IntegrityError, match="only ever added"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(statement)
    assert AuditEntry.objects.get().actor == entry.actor


def test_the_orm_cannot_touch_an_entry_either() -> None:
    entry = record(Action.TENANT_CREATED, make_tenant())
    entry.actor = "nobody"
    for change in (entry.save, entry.delete, AuditEntry.objects.all().delete):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()
    assert AuditEntry.objects.get().actor == "system"


def test_an_entry_carries_the_transaction_it_was_written_in() -> None:
    record(Action.TENANT_CREATED, make_tenant())
    with connection.cursor() as cursor:
        cursor.execute("SELECT transaction = pg_current_xact_id() FROM beatkeeper_audit_entry")
        assert cursor.fetchone() == (True,)
