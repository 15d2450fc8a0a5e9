"""What tenants keep secret, encrypted, and which versions of jobs refer to it."""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0005_worker_keys'),
    ]

    operations = [
        migrations.CreateModel(
            name='Secret',
            fields=[
                ('id', models.AutoField(primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=64)),
                ('ciphertext', models.TextField(editable=False)),
                ('key_id', models.CharField(editable=False, max_length=12)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('created_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('updated_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to='beatkeeper_jobs.tenant')),
            ],
            options={
                'db_table': 'beatkeeper_secret',
                'indexes': [
                    models.Index(fields=['tenant', '-created_at', '-id'], name='secret_newest_first_idx'),
                    models.Index(fields=['key_id'], name='secret_key_idx'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('tenant', 'name'), name='secret_name_once_per_tenant'),
                ],
            },
        ),
        migrations.AddField(
            model_name='jobversion',
            name='secret_names',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), db_default=[], default=list, size=None),
        ),
        migrations.AddIndex(
            model_name='jobversion',
            index=django.contrib.postgres.indexes.GinIndex(condition=models.Q(('secret_names', []), _negated=True), fields=['secret_names'], name='job_version_secret_names_idx'),
        ),
    ]
