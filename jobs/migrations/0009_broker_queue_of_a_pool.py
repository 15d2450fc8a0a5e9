"""Let one broker queue of a pool wake its workers, whatever tenants it has."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_jobs", "0008_request_limits")]
    operations = [
        migrations.AddField(
            "pool", "broker_queue", models.CharField(db_default="", editable=False, max_length=120)
        ),
    ]
