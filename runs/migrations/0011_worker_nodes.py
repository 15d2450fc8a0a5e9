"""Workers that reach the platform over HTTPS belong to a tenant."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_runs', '0010_celery_beat'),
    ]

    operations = [
        migrations.AddField(
            model_name='workernode',
            name='tenant',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='nodes', to='beatkeeper_jobs.tenant'),
        ),
    ]
