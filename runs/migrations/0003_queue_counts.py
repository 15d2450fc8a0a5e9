"""Let the runs of a queue that nobody hands over be counted without reading those of others."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_runs", "0002_guards")]
    operations = [
        migrations.AddIndex(
            model_name="liverun",
            index=models.Index(
                condition=models.Q(("state__in", ["delayed", "blocked", "waiting_callback"])),
                fields=["pool", "tenant", "state", "rank"],
                name="live_run_counted_idx",
            ),
        ),
    ]
