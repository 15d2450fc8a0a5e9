"""Which jobs are held by their breakers is asked by lists of jobs."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0009_declared_jobs'),
        ('beatkeeper_runs', '0010_worker_nodes'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='breaker',
            index=models.Index(condition=models.Q(('state', 'closed'), _negated=True), fields=['job'], name='breaker_not_closed_idx'),
        ),
    ]
