"""The ready runs of a lane in one order to the last, so that they can be read on from any of them."""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):

    # Beside schedulers that go on with the old index until the new one is there.
    atomic = False

    dependencies = [
        ('beatkeeper_runs', '0011_breaker_not_closed_idx'),
    ]

    operations = [
        # Whoever was interrupted leaves one that nobody uses, and begins anew.
        migrations.RunSQL('DROP INDEX CONCURRENTLY IF EXISTS live_run_ready_order_idx', migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name='liverun',
            index=models.Index(condition=models.Q(('state', 'ready')), fields=['pool', 'tenant', 'rank', 'run'], name='live_run_ready_order_idx'),
        ),
        RemoveIndexConcurrently(
            model_name='liverun',
            name='live_run_ready_idx',
        ),
        migrations.RunSQL(migrations.RunSQL.noop, 'DROP INDEX CONCURRENTLY IF EXISTS live_run_ready_idx'),
    ]
