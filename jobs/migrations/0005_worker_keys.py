"""Keys for workers that reach the platform over HTTPS: of one tenant and one pool."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('beatkeeper_jobs', '0004_time'),
    ]

    operations = [
        migrations.AddField(
            model_name='apikey',
            name='pool',
            field=models.ForeignKey(blank=True, help_text="Of a worker's key: the one pool whose runs it may take.", null=True, on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='beatkeeper_jobs.pool'),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='role',
            field=models.CharField(choices=[('viewer', 'Viewer'), ('operator', 'Operator'), ('admin', 'Admin'), ('worker', 'Worker')], default='admin', max_length=8),
        ),
        migrations.AddConstraint(
            model_name='apikey',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('pool__isnull', False), ('role', 'worker')), models.Q(models.Q(('role', 'worker'), _negated=True), ('pool__isnull', True)), _connector='OR'), name='api_key_of_worker_has_pool'),
        ),
    ]
