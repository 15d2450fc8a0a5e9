"""What was sent for the rows of django-celery-beat: each planned time once."""

import uuid

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_runs', '0008_dead_letters'),
    ]

    # runs/sql/celery_beat.sql makes the same table in databases of others.
    operations = [
        migrations.CreateModel(
            name='CeleryFiring',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('task_id', models.BigIntegerField()),
                ('name', models.CharField(max_length=200)),
                ('task', models.CharField(max_length=200)),
                ('planned_at', models.DateTimeField()),
                ('missed_since', models.DateTimeField(null=True)),
                ('message_id', models.UUIDField()),
                ('state', models.CharField(choices=[('claimed', 'Claimed'), ('publishing', 'Publishing'), ('sent', 'Sent'), ('unknown', 'Unknown'), ('refused', 'Refused')], db_default='claimed', default='claimed', max_length=10)),
                ('owner', models.UUIDField(default=uuid.uuid4)),
                ('scheduler', models.CharField(max_length=200)),
                ('claimed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('sent_at', models.DateTimeField(null=True)),
                ('tries', models.PositiveSmallIntegerField(db_default=0, default=0)),
                ('error', models.CharField(blank=True, db_default='', max_length=2000)),
            ],
            options={
                'verbose_name': 'Celery beat firing',
                'db_table': 'beatkeeper_celery_firing',
                'indexes': [models.Index(condition=models.Q(('state__in', ('claimed', 'publishing'))), fields=['task_id'], name='celery_firing_open_idx'), models.Index(fields=['-planned_at'], name='celery_firing_planned_idx')],
                'constraints': [models.UniqueConstraint(fields=('task_id', 'planned_at'), name='celery_firing_once_per_planned_time')],
            },
        ),
    ]
