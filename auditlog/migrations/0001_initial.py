import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('tenant_id', models.IntegerField(blank=True, null=True)),
                ('actor_kind', models.CharField(choices=[('user', 'User'), ('key', 'Key'), ('system', 'System'), ('worker', 'Worker')], max_length=8)),
                ('actor', models.CharField(max_length=200)),
                ('action', models.CharField(max_length=60)),
                ('object_type', models.CharField(max_length=40)),
                ('object_id', models.CharField(max_length=60)),
                ('before', models.JSONField(blank=True, null=True)),
                ('after', models.JSONField(blank=True, null=True)),
                ('reason', models.TextField(blank=True)),
                ('request_id', models.CharField(blank=True, max_length=64)),
                ('address', models.GenericIPAddressField(blank=True, null=True)),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'db_table': 'beatkeeper_audit_entry',
                'indexes': [models.Index(fields=['tenant_id', '-id'], name='audit_tenant_idx'), models.Index(fields=['object_type', 'object_id', '-id'], name='audit_object_idx')],
            },
        ),
    ]
