"""Limit the requests of tenants, keys and addresses."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_jobs", "0007_suspension_of_a_job")]
    operations = [
        migrations.AddField(
            "tenant",
            "requests_per_minute",
            models.PositiveIntegerField(
                blank=True,
                help_text="Requests to the API, one key at most half of them; empty: BEATKEEPER_REQUESTS_PER_MINUTE.",
                null=True,
            ),
        ),
        migrations.AddConstraint(
            "tenant",
            models.CheckConstraint(
                condition=models.Q(("requests_per_minute__gt", 0)), name="tenant_requests_per_minute_positive"
            ),
        ),
        migrations.CreateModel(
            "Allowance",
            [
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "minute", "subject", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("minute", models.DateTimeField()),
                ("subject", models.TextField()),
                ("taken", models.BigIntegerField()),
            ],
            options={"db_table": "beatkeeper_allowance"},
        ),
        migrations.RunSQL(
            "ALTER TABLE beatkeeper_allowance SET UNLOGGED", "ALTER TABLE beatkeeper_allowance SET LOGGED"
        ),
    ]
