"""Where declared jobs come from, what they were when applied, and the runs that code asks for."""

import uuid

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0008_imported_tasks'),
    ]

    operations = [
        migrations.AddField(
            model_name='declaration',
            name='source',
            field=models.CharField(blank=True, db_default='', max_length=200),
        ),
        migrations.AddField(
            model_name='declaration',
            name='withdrawn_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='declaration',
            name='of_key',
            field=models.BooleanField(db_default=False),
        ),
        migrations.AddField(
            model_name='declaration',
            name='job',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='declarations', to='beatkeeper_jobs.job'),
        ),
        migrations.AddField(
            model_name='declaration',
            name='applied',
            field=models.JSONField(blank=True, null=True),
        ),
        # Of what was applied before, the job is the one of its name.
        migrations.RunSQL(
            """
            UPDATE beatkeeper_declaration declaration SET job_id = job.id FROM beatkeeper_job job
            WHERE job.tenant_id = declaration.tenant_id AND job.name = declaration.name AND job.deleted_at IS NULL
              AND declaration.applied_at IS NOT NULL AND declaration.error = ''
            """,
            migrations.RunSQL.noop,
        ),
        migrations.CreateModel(
            name='RunRequest',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=200)),
                ('spec', models.JSONField()),
                ('at', models.DateTimeField(blank=True, null=True)),
                ('requested_at', models.DateTimeField(db_default=Now())),
                ('cancel_requested_at', models.DateTimeField(blank=True, null=True)),
                ('applied_at', models.DateTimeField(blank=True, null=True)),
                ('error', models.TextField(blank=True, db_default='')),
                ('run', models.UUIDField(blank=True, null=True)),
                ('job', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='beatkeeper_jobs.job')),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='beatkeeper_jobs.pool')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_run_request',
                'indexes': [
                    models.Index(condition=models.Q(('applied_at', None)), fields=['requested_at'], name='run_request_waiting_idx'),
                    models.Index(fields=['requested_at'], name='run_request_age_idx'),
                ],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'key'), name='run_request_once_per_key')],
            },
        ),
    ]
