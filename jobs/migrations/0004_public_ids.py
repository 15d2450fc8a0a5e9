"""Give pauses, blackouts and overrides ids that do not count those of other tenants."""

import uuid

import django.contrib.postgres.functions
from django.db import migrations, models

PUBLIC_ID = models.UUIDField(
    db_default=django.contrib.postgres.functions.RandomUUID(),
    default=uuid.uuid4,
    editable=False,
    unique=True,
)


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_jobs", "0003_version_job_fields")]
    operations = [
        migrations.AddField("suspension", "public_id", PUBLIC_ID),
        migrations.AddField("override", "public_id", PUBLIC_ID.clone()),
    ]
