"""Let dispatch count what runs of one queue, and find the queues that show a reason (decision 19).

The index of a table that grows is made without a lock that holds up writers.
"""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("beatkeeper_runs", "0008_final_updates")]
    operations = [
        AddIndexConcurrently(
            model_name="liverun",
            index=models.Index(
                condition=models.Q(("state", "running")),
                fields=["pool", "tenant"],
                name="live_run_running_idx",
            ),
        ),
        AddIndexConcurrently(
            model_name="queue",
            index=models.Index(
                condition=models.Q(("reason", ""), _negated=True),
                fields=["pool", "tenant"],
                name="queue_shows_reason_idx",
            ),
        ),
    ]
