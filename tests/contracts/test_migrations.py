"""Check that the migrations make what the models say."""

import pytest
from django.core.management import call_command
from django.db import connection

from scheduler_project.schema_history import FOLDERS


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db
def test_all_our_tables_carry_our_name() -> None:
    from django.apps import apps

    ours = [apps.get_app_config(label) for label in FOLDERS]
    tables = {model._meta.db_table for app in ours for model in app.get_models(include_auto_created=True)}
    assert all(table.startswith("beatkeeper_") for table in tables)
    with connection.cursor() as cursor:
        assert tables <= set(connection.introspection.table_names(cursor))
