"""Workers that reach the platform over HTTPS belong to a tenant; workers say that they have heard of a cancel."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_runs', '0009_celery_firings'),
    ]

    operations = [
        migrations.AddField(
            model_name='workernode',
            name='tenant',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='nodes', to='beatkeeper_jobs.tenant'),
        ),
        migrations.AddField(
            model_name='liverun',
            name='cancel_acknowledged_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AlterField(
            model_name='workernode',
            name='state',
            field=models.CharField(choices=[('active', 'Active'), ('draining', 'Draining'), ('lost', 'Lost'), ('left', 'Left')], db_default='active', max_length=8),
        ),
        # Workers of before write it when they register, so the column outlives the field.
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    "ALTER TABLE beatkeeper_worker_node ALTER COLUMN resources SET DEFAULT '{}'",
                    "ALTER TABLE beatkeeper_worker_node ALTER COLUMN resources DROP DEFAULT",
                ),
            ],
            state_operations=[migrations.RemoveField(model_name='workernode', name='resources')],
        ),
    ]
