"""Let claims start reading where dispatch knows the oldest queued run to be (decision 20)."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_jobs", "0009_broker_queue_of_a_pool")]
    operations = [
        migrations.AddField("pool", "queued_since", models.DateTimeField(editable=False, null=True)),
    ]
