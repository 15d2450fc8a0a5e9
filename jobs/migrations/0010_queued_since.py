"""Let claims start reading where dispatch knows the oldest queued run to be (decision 20)."""

from datetime import datetime, timezone

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_jobs", "0009_broker_queue_of_a_pool")]
    operations = [
        migrations.AddField(
            "pool",
            "queued_since",
            models.DateTimeField(db_default=datetime(1970, 1, 1, tzinfo=timezone.utc), editable=False),
        ),
    ]
