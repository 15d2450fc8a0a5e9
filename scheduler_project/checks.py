"""Refuse to migrate a database that another line of migrations made."""

from collections.abc import Iterable
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError, connections, transaction

from scheduler_project import schema_history


@register(Tags.database)
def check_schema_history(databases: Iterable[str] | None = None, **_: Any) -> list[CheckMessage]:
    return [
        Error(
            f"This database cannot be used: {schema_history.describe(found)}.",
            hint="To begin anew, set DATABASE_URL to an empty database, or move the state folder of `make up` away. "
            "Nothing was changed or deleted.",
            id="beatkeeper.E003",
        )
        for alias in databases or ()
        if (found := foreign_migrations(alias))
    ]


def foreign_migrations(alias: str) -> list[str]:
    connection = connections[alias]
    try:
        with transaction.atomic(using=alias), connection.cursor() as cursor:
            if "django_migrations" not in connection.introspection.table_names(cursor):
                return []
            cursor.execute(schema_history.APPLIED)
            return schema_history.foreign_migrations(cursor.fetchall())
    except DatabaseError:
        return []  # the command itself reports a database that does not answer
