"""Let claims find what was queued first in all queues of a pool. Made without a lock that holds up writers."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("beatkeeper_runs", "0006_budget_has_tenant")]
    operations = [
        AddIndexConcurrently(
            model_name="liverun",
            index=models.Index(
                condition=models.Q(("state", "queued")),
                fields=["pool", "queued_at"],
                name="live_run_turn_idx",
            ),
        ),
    ]
