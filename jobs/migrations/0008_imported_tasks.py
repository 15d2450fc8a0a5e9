"""Which job a row of django-celery-beat has become."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0007_retries'),
    ]

    operations = [
        migrations.CreateModel(
            name='ImportedTask',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('source', models.CharField(max_length=200)),
                ('task_id', models.BigIntegerField()),
                ('name', models.CharField(max_length=200)),
                ('imported_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('switched_off_at', models.DateTimeField(null=True)),
                ('undone_at', models.DateTimeField(null=True)),
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='imported_task', to='beatkeeper_jobs.job')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_imported_task',
                'constraints': [models.UniqueConstraint(fields=('source', 'task_id', 'tenant'), name='imported_task_once_per_row')],
            },
        ),
    ]
